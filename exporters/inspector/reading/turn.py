"""The result of one turn, a bounded read of a directory: the state to render, and a section of the checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from agent.sdk.files import Position
from agent.sdk.ranks import Membership, WriterKey
from exporters.inspector.format.passes import FileContext
from exporters.inspector.format.records import Result, Total
from exporters.inspector.reading.record_files import FileKey, FileState
from exporters.inspector.totals.aggregate import Saved
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.matching import SavedPending


class Published(msgspec.Struct, frozen=True):
    """One reader's state at its last publication."""

    writers: tuple[WriterTotals, ...]
    caught_up: bool
    results: dict[Result, int]
    files: dict[FileState, int]
    skipped: dict[str, int]
    lag_bytes: int
    implausible: int = 0

    def withheld(self) -> Published:
        """Return the state of a reader that stopped: no series that includes its totals is shown."""
        writers = tuple(
            msgspec.structs.replace(writer, caught_up=False, windows={}, transfers={}, pairs={})
            for writer in self.writers
        )
        return msgspec.structs.replace(self, writers=writers, caught_up=False)


class WriterEvidence(NamedTuple):
    """New memberships, and the time of the latest record, of one writer. ``uid``: the file's owner, or None."""

    writer_key: WriterKey
    memberships: tuple[Membership, ...]
    last_progress_seconds: float | None
    uid: int | None = None


class TurnResult(NamedTuple):
    """The result of one turn. ``published`` and ``section`` (the reader's part of the checkpoint) are None if not due;
    ``section`` is also None if nothing changed.

    ``retired``: the last totals of ended writers; ``ended``: the last totals of idle communicators of living writers.
    ``section`` no longer has these totals.
    """

    available: bool
    is_refused: bool
    waiting: bool
    evidence: tuple[WriterEvidence, ...]
    published: Published | None
    section: bytes | None
    retired: tuple[WriterTotals, ...]
    ended: tuple[WriterTotals, ...] = ()


class Section(msgspec.Struct):
    """A reader's part of the checkpoint: offsets and totals of the same moment."""

    positions: list[Position]
    writers: list[Saved]
    results: dict[Result, Total]
    left: list[Position] = []
    contexts: list[tuple[FileKey, FileContext]] = []
    implausible: Total = 0
    waiting: list[SavedPending] = []
