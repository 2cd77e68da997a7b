"""Writers of records: which rank process each belongs to; and the checkpoint of the rank table."""

from collections.abc import Mapping

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.clock import Clock
from agent.core.identity import ProcessKey, RankLabel, WriterKey
from agent.ranks.liveness.job_line import JobLine
from agent.ranks.naming.binding import RankBinder
from agent.ranks.rank.process import RankProcess

LINK_SECONDS = 60.0
"""How long the agent searches for the process of a new writer."""
WRITER_IDLE_SECONDS = 900.0


def is_record_file(path: str) -> bool:
    """Return True if a file with this name may hold records: `host-pid123.log`, also renamed to `host-pid123.log.1`."""
    return "-pid" in path and (".log" in path or ".jsonl" in path)


class WriterRecord(msgspec.Struct):
    """A writer of records with its process, or the stand-in (``unseen``) for a process that was never seen.

    ``uid``: owner of its file, None if unknown. An expired writer stays for a while: its series must be removed.
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
        """Host names of this node and of its containers with ranks."""

    def unlinked_writers(self) -> dict[WriterKey, int | None]:
        """Return the writers whose process is still searched for, each with the uid of its file."""
        since = self.clock.monotonic() - LINK_SECONDS
        return {key: self.writers[key].uid for key, unseen in self.unseen().items() if unseen.found_at > since}

    def label(self, writer_key: WriterKey, comm: str, comm_rank: int) -> RankLabel | None:
        """Return the fixed label of one rank of a writer; None until it is published."""
        process = self.process_of(writer_key)
        return None if process is None else self.binder.label(process, comm, comm_rank)

    def recording_settings(self, writer_key: WriterKey) -> Mapping[str, str] | None:
        """Return the kept variables (``keep_variables``) of a writer's process; None while unknown."""
        process = self.process_of(writer_key)
        return None if process is None or process.facts is None else process.facts.environment

    def is_expired(self, writer_key: WriterKey) -> bool:
        """Return True when the writer's series must be removed because the record of its rank has expired."""
        record = self.writers.get(writer_key)
        return record is not None and record.expired_at is not None

    def unseen(self) -> dict[WriterKey, RankProcess]:
        """Return the stand-ins of processes that were never seen, by writer."""
        return {writer_key: record.unseen for writer_key, record in self.writers.items() if record.unseen is not None}

    def expire_writers(self, now: float) -> None:
        """Expire writers whose process left the table, and idle writers with an older file or without a process."""
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
        self.collect_hostnames()

    def collect_hostnames(self) -> None:
        """Collect the host names of this node and of its containers with ranks. A name can move with its pod."""
        of_containers = (key.hostname for key, record in self.writers.items() if record.process in self.processes)
        self.hostnames = frozenset({self.hostname, *of_containers})

    def process_of(self, writer_key: WriterKey) -> RankProcess | None:
        """Return the process of a writer, or its stand-in."""
        record = self.writers.get(writer_key)
        if record is None:
            return None
        return self.processes.get(record.process) if record.process is not None else record.unseen


class SavedTable(msgspec.Struct):
    """The rank table in the checkpoint. ``saved_at``: monotonic. ``schedulers``: those with a proven job here."""

    processes: list[RankProcess]
    writer_keys: list[tuple[WriterKey, WriterRecord]]
    saved_at: SavedSeconds = 0.0
    schedulers: list[str] = []
    jobs: dict[str, JobLine] = {}
