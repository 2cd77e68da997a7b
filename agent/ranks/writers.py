"""Writers of records, as the records name them: which process each belongs to, and when it is forgotten."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.identity import ProcessKey, WriterKey
from agent.ranks.rank.process import RankProcess

MAX_WRITERS = 4096
LINK_SECONDS = 60.0
"""How long the process of a new writer is looked for."""
WRITER_IDLE_SECONDS = 900.0
MAX_FORMER = 8
"""How many generations of a file are looked through for its last writer: some may have held no record."""


def is_record_file(path: str) -> bool:
    """True for names such as `host-pid123.log`, also after a rename to `...log.1`: files that may hold records."""
    return "-pid" in path and (".log" in path or ".jsonl" in path)


class WriterRecord(msgspec.Struct):
    """One writer of records: the process it belongs to, or (``unseen``) what stands in for one that was never seen.

    ``uid``: whose its file is, None if not known.
    """

    seen_at: SavedSeconds
    process: ProcessKey | None = None
    unseen: RankProcess | None = None
    expired_at: SavedSeconds | None = None
    uid: int | None = None


class WriterBook:
    """The writers known, MAX_WRITERS at most. An expired one is kept for a while: its series must be removed."""

    def __init__(self) -> None:
        self.records: dict[WriterKey, WriterRecord] = {}

    def see(self, writer_key: WriterKey, now: float) -> WriterRecord | None:
        """Return the record of a writer that has just written, a new one if need be; None when the book is full."""
        record = self.records.get(writer_key)
        if record is None and len(self.records) >= MAX_WRITERS:
            return None
        if record is None or record.expired_at is not None:
            record = self.records[writer_key] = WriterRecord(now, None, RankProcess(found_at=now))
        record.seen_at = now
        return record

    def unseen(self) -> dict[WriterKey, RankProcess]:
        """Return the writers whose process was never seen, each with its stand-in."""
        return {writer_key: record.unseen for writer_key, record in self.records.items() if record.unseen is not None}

    def unlinked(self, now: float) -> dict[WriterKey, int | None]:
        """Writers whose process is not known yet and still looked for, each with the uid of its file."""
        return {
            writer_key: record.uid
            for writer_key, record in self.records.items()
            if record.unseen is not None and now - record.unseen.found_at < LINK_SECONDS
        }

    def former(self, writer_key: WriterKey) -> ProcessKey | None:
        """Return the process that wrote what the same file held before, under the same host name and pid."""
        for generation in range(writer_key.generation - 1, max(-1, writer_key.generation - 1 - MAX_FORMER), -1):
            record = self.records.get(writer_key._replace(generation=generation))
            if record is not None and record.process is not None:
                return record.process
        return None

    def is_expired(self, writer_key: WriterKey) -> bool:
        """Return True when a writer was forgotten."""
        record = self.records.get(writer_key)
        return record is not None and record.expired_at is not None

    def expire(self, now: float, processes: Container[ProcessKey]) -> list[tuple[WriterKey, RankProcess | None]]:
        """Forget writers whose process is none of ``processes``, and idle ones without a process or of an older file.

        Returns those forgotten, each with what stood in for its process.
        """
        newest: dict[tuple[int, int], int] = {}
        for writer_key in self.records:
            file = (writer_key.device, writer_key.inode)
            newest[file] = max(newest.get(file, 0), writer_key.generation)
        gone = []
        for writer_key, record in list(self.records.items()):
            if record.expired_at is None:
                older = writer_key.generation < newest[writer_key.device, writer_key.inode]
                idle = (record.process is None or older) and now - record.seen_at > WRITER_IDLE_SECONDS
                orphaned = record.unseen is None if record.process is None else record.process not in processes
                if idle or orphaned:
                    gone.append((writer_key, record.unseen))
                    record.expired_at, record.unseen = now, None
            elif now - record.expired_at > WRITER_IDLE_SECONDS:
                del self.records[writer_key]
        return gone

    def hostnames(self, processes: Container[ProcessKey]) -> set[str]:
        """Return the host names under which ``processes`` write: those of containers here."""
        return {
            writer_key.hostname
            for writer_key, record in self.records.items()
            if record.process is not None and record.process in processes
        }
