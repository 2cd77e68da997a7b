"""What one turn of a reader gives, and what of it goes into the checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from agent.sdk.files import Position, Share
from agent.sdk.ranks import Membership, WriterKey
from exporters.inspector.format.records import Result
from exporters.inspector.format.series import Total
from exporters.inspector.lateness.matching import SavedBoard
from exporters.inspector.reading.published import Published
from exporters.inspector.reading.record_files import FileKey
from exporters.inspector.totals.aggregate import Saved
from exporters.inspector.totals.frozen import WriterTotals


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
    """A reader's part of the checkpoint: offsets and integers of the same moment.

    ``contexts``: a FileContext each, encoded by itself, so that one which cannot be saved or read costs no other.
    """

    positions: list[Position]
    writers: list[Saved]
    results: dict[Result, Total]
    hole_bytes: Total
    left: list[Position] = []
    contexts: list[tuple[FileKey, msgspec.Raw]] = []
    implausible: Total = 0
    waiting: list[SavedBoard] = []

    def shares(self) -> dict[tuple[int, int], Share]:
        """Whose the files are, by device and inode."""
        return {(one.device, one.inode): one.share for one in (*self.positions, *self.left)}
