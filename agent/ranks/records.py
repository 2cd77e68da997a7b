"""Writers of records: the rank process of each, what its records say of the rank; and the table's checkpoint."""

from collections.abc import Mapping

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.clock import Clock
from agent.core.identity import ProcessKey, RankLabel, WriterKey
from agent.ranks.liveness.job_line import JobLine
from agent.ranks.naming.binding import RankBinder
from agent.ranks.rank.process import RankProcess

LINK_SECONDS = 60.0
"""How long the process of a new writer is looked for."""
WRITER_IDLE_SECONDS = 900.0


def is_record_file(path: str) -> bool:
    """True for names such as `host-pid123.log`, also after a rename to `...log.1`: files that may hold records."""
    return "-pid" in path and (".log" in path or ".jsonl" in path)


class WriterRecord(msgspec.Struct):
    """One writer of records: the process it belongs to, or (``unseen``) what stands in for one that was never seen.

    ``uid``: whose its file is, None if not known. An expired one is kept for a while: its series must be removed.
    """

    seen_at: SavedSeconds
    process: ProcessKey | None = None
    unseen: RankProcess | None = None
    expired_at: SavedSeconds | None = None
    uid: int | None = None


class WrittenRanks:
    """Base of the rank table: processes, writers of records, and the binder that labels them."""

    def __init__(self, clock: Clock, hostname: str, settle_at_once: bool) -> None:
        self.clock = clock
        self.hostname = hostname
        self.refused = 0
        self.binder = RankBinder(clock, hostname, settle_at_once)
        self.processes: dict[ProcessKey, RankProcess] = {}
        self.writers: dict[WriterKey, WriterRecord] = {}
        self.hostnames: frozenset[str] = frozenset({hostname})
        """The host names of this node and of its containers with ranks."""

    def unlinked_writers(self) -> dict[WriterKey, int | None]:
        """Writers whose process is not known yet, while it is worth looking for, each with the uid of its file."""
        since = self.clock.monotonic() - LINK_SECONDS
        return {key: self.writers[key].uid for key, unseen in self.unseen().items() if unseen.found_at > since}

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """Return the frozen label of one rank of a writer; None while it is not published."""
        process = self.process_of(writer_key)
        return None if process is None else self.binder.label(process, comm, comm_rank)

    def recording_settings(self, writer_key: WriterKey) -> Mapping[str, str] | None:
        """Return the kept variables (``keep_variables``) of a writer's process; None while they are not known."""
        process = self.process_of(writer_key)
        return None if process is None or process.facts is None else process.facts.environment

    def is_expired(self, writer_key: WriterKey) -> bool:
        """Return True when the series of a writer must go: the record of its rank has expired."""
        record = self.writers.get(writer_key)
        return record is not None and record.expired_at is not None

    def unseen(self) -> dict[WriterKey, RankProcess]:
        """Return the writers whose process was never seen, each with its stand-in."""
        return {writer_key: record.unseen for writer_key, record in self.writers.items() if record.unseen is not None}

    def expire_writers(self, now: float) -> None:
        """Expire writers whose process left the table, and idle writers without a process or of an older file."""
        newest: dict[tuple[int, int], int] = {}
        for writer_key in self.writers:
            file = (writer_key.device, writer_key.inode)
            newest[file] = max(newest.get(file, 0), writer_key.generation)
        for writer_key, record in list(self.writers.items()):
            if record.expired_at is None:
                older = writer_key.generation < newest[writer_key.device, writer_key.inode]
                idle = (record.process is None or older) and now - record.seen_at > WRITER_IDLE_SECONDS
                orphaned = record.unseen is None if record.process is None else record.process not in self.processes
                if idle or orphaned:
                    self.binder.release(writer_key, record.unseen)
                    record.expired_at, record.unseen = now, None
            elif now - record.expired_at > WRITER_IDLE_SECONDS:
                del self.writers[writer_key]
        self.name_hosts()

    def name_hosts(self) -> None:
        """Collect the host names of this node and of its containers with ranks. A name can move with its pod."""
        theirs = (key.hostname for key, record in self.writers.items() if record.process in self.processes)
        self.hostnames = frozenset({self.hostname, *theirs})

    def process_of(self, writer_key: WriterKey) -> RankProcess | None:
        """Return the process of a writer, or its stand-in."""
        record = self.writers.get(writer_key)
        if record is None:
            return None
        return self.processes.get(record.process) if record.process is not None else record.unseen


class SavedTable(msgspec.Struct):
    """The saved rank table; ``saved_at`` is monotonic; ``schedulers``: those with a proven job on this node."""

    processes: list[RankProcess]
    writer_keys: list[tuple[WriterKey, WriterRecord]]
    saved_at: SavedSeconds = 0.0
    schedulers: list[str] = []
    jobs: dict[str, JobLine] = {}


def decode(section: bytes) -> SavedTable:
    """Take back what ``RankTable.dump`` gave earlier in this boot; raises ValueError when it cannot be read.

    Processes that ran count as unconfirmed: whether they still do is not known.
    """
    saved = msgspec.msgpack.decode(section, type=SavedTable)
    for process in saved.processes:
        process.confirmed = process.exited_at is not None
        process.silence = None
        if process.exited_at is None and process.unproven_since is None:
            process.unproven_since = saved.saved_at
    return saved
