"""What one turn of a reader gives: what is rendered in another thread, and what goes into the checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from agent.sdk.files import Position, Share
from agent.sdk.ranks import Membership, WriterKey
from exporters.inspector.format.passes import FileContext
from exporters.inspector.format.records import Result, Total
from exporters.inspector.reading.record_files import FileKey, FileState
from exporters.inspector.totals.aggregate import Saved
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.matching import SavedBoard


class Published(msgspec.Struct, frozen=True):
    """One reader's state at the time of publication."""

    writers: tuple[WriterTotals, ...]
    caught_up: bool
    results: dict[Result, int]
    files: dict[FileState, int]
    skipped: dict[str, int]
    lag_bytes: int
    implausible: int = 0

    def withheld(self) -> Published:
        """Return the same as of a reader whose totals stand still: no series with a part in them is to be shown."""
        writers = tuple(
            msgspec.structs.replace(writer, caught_up=False, windows={}, transfers={}, pairs={})
            for writer in self.writers
        )
        return msgspec.structs.replace(self, writers=writers, caught_up=False)


class WriterEvidence(NamedTuple):
    """What one writer's records say of its ranks since the last turn. ``uid``: whose its file is, None if not known."""

    writer_key: WriterKey
    memberships: tuple[Membership, ...]
    last_progress_seconds: float | None
    uid: int | None = None


class Turn(NamedTuple):
    """What one turn gave. ``published`` and ``section`` (the reader's part of the checkpoint) are None when not due,
    and ``section`` also while nothing changes.

    ``retired``: the last totals of writers that were let go, ``ended``: of idle communicators of others; they are not
    in ``section`` any more.
    """

    available: bool
    waiting: bool
    evidence: tuple[WriterEvidence, ...]
    published: Published | None
    section: bytes | None
    retired: tuple[WriterTotals, ...]
    ended: tuple[WriterTotals, ...] = ()


class Section(msgspec.Struct):
    """A reader's part of the checkpoint: offsets and integers of the same moment."""

    positions: list[Position]
    writers: list[Saved]
    results: dict[Result, Total]
    left: list[Position] = []
    contexts: list[tuple[FileKey, FileContext]] = []
    implausible: Total = 0
    waiting: list[SavedBoard] = []

    def shares(self) -> dict[tuple[int, int], Share]:
        """Whose the files are, by device and inode."""
        return {(position.device, position.inode): position.share for position in (*self.positions, *self.left)}
