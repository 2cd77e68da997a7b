"""One configured directory: its reader in a thread of its own, and the turn under way. Owned by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from agent.sdk.exporter import Context
from agent.sdk.ranks import WriterKey
from agent.sdk.system import ProcFS
from exporters.inspector.format.plausibility import Plausibility
from exporters.inspector.format.ring_sizes import RingSizes, ring_sizes
from exporters.inspector.reading.last_lines import ends
from exporters.inspector.reading.ownership import FileState, Ownership
from exporters.inspector.reading.published import Published
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.reclaim import Reclaim, Reclaimer
from exporters.inspector.reading.turn import Turn
from exporters.inspector.totals.frozen import WriterTotals

WAIT_SECONDS = 1.0
"""How long an update waits for a turn; a reader that takes longer is left to itself until it comes back."""
ENDS_SECONDS = 5.0
"""How long a bundle's part waits for the ends of files; other parts have 20 s by default."""
STALE_SECONDS = 10.0
"""A reader that does not return for this long exports no series: they would be out of date."""


class Slot:
    """``section``: the reader's newest part of the checkpoint. ``failed``: the last turn, or taking it in, raised."""

    def __init__(self, ctx: Context, path: str, number: int, reclaim: Reclaim) -> None:
        self.path = path
        self.thread = ctx.thread(f"inspector-{number}")
        self.reclaimer = Reclaimer(path, reclaim, ctx.clock, ProcFS(ctx.roots.proc), ctx.log)
        self.running: asyncio.Task[Turn] | None = None
        self.available = False
        self.waiting = self.failed = False
        self.published: Published | None = None
        self.section: bytes | None = None
        self.expired: list[WriterKey] = []
        self.left: frozenset[WriterKey] = frozenset()
        self._ctx = ctx
        self._started_at = 0.0
        self._writer_keys: set[WriterKey] = set()
        self._rings: dict[WriterKey, RingSizes] = {}

    async def open(
        self, restored: bytes | None, gigabytes_per_second: float, *, histograms: bool = False
    ) -> tuple[WriterTotals, ...]:
        """Make the reader; ``restored`` is its part of the checkpoint, ``gigabytes_per_second`` what is plausible.

        Returns the totals of the writers that it knows from before.
        """
        self.section = restored
        make = partial(self._make, restored, gigabytes_per_second, histograms=histograms)
        self.reader, writers = await self.thread.call(make)
        self._writer_keys.update(one.writer_key for one in writers)
        return writers

    async def close(self) -> None:
        """Close the reader's files, unless it is under way, and end the thread."""
        try:
            if self.running is None:
                await self.thread.call(self.reader.close)
        finally:
            self.thread.stop()

    def begin(self, ownership: Ownership, *, last: bool) -> asyncio.Task[Turn]:
        """Begin a turn; the reader must be free."""
        self._started_at = self._ctx.clock.monotonic()
        self._learn_ring_sizes()
        rings, durable = dict(self._rings), self._ctx.state.durable
        turn = partial(self._turn, ownership, self.expired, rings, durable, left=self.left, last=last)
        self.running = asyncio.ensure_future(self.thread.call(turn))
        return self.running

    def note(self, turn: Turn) -> None:
        """Take in what a turn says of the reader itself."""
        self.available, self.waiting = turn.available, turn.waiting
        self._writer_keys.update(one.writer_key for one in turn.evidence)
        for writer in turn.retired:
            self._writer_keys.discard(writer.writer_key)
            self._rings.pop(writer.writer_key, None)
        self.published = turn.published or self.published

    def is_idle(self) -> bool:
        """Return whether the directory, as it was published last, holds no file to read."""
        return self.published is not None and not self.published.files.get(FileState.FOLLOWED)

    def is_busy(self, seconds: float) -> bool:
        """Return whether a turn has been under way for longer than ``seconds``."""
        return self.running is not None and self._ctx.clock.monotonic() - self._started_at > seconds

    def shown(self) -> Published | None:
        """What is published; behind a reader that hangs or fails it stands still, and its sums are withheld."""
        withheld = self.published is not None and (self.failed or self.is_busy(STALE_SECONDS))
        return self.published.withheld() if withheld and self.published is not None else self.published

    def _learn_ring_sizes(self) -> None:
        """Look up the ring sizes that the writers' processes are configured with, until all are known."""
        for writer_key in self._writer_keys - self._rings.keys():
            settings = self._ctx.ranks.recording_settings(writer_key)
            if settings is not None:
                self._rings[writer_key] = ring_sizes(settings)

    # In the reader's thread.

    def last_lines(self, ranks: Mapping[tuple[int, int], str]) -> dict[str, bytes]:
        """Return the ends of the files of these ranks."""
        return ends(self.reader.owned(), ranks)

    def _make(
        self, restored: bytes | None, gigabytes_per_second: float, *, histograms: bool
    ) -> tuple[DirectoryReader, tuple[WriterTotals, ...]]:
        """Return the reader, and the totals that it knows from before."""
        ctx = self._ctx
        bound = Plausibility(gigabytes_per_second)
        make = partial(
            DirectoryReader,
            Path(self.path),
            ctx.clock,
            ctx.admit.admit,
            plausibility=bound,
            histograms=histograms,
            log=ctx.log,
        )
        try:
            reader = make(restored=restored, from_beginning=ctx.once)
        except Exception as error:  # noqa: BLE001  # whatever a damaged section leads to
            ctx.log.warning(
                "inspector checkpoint not readable, starting at the files' ends", path=self.path, error=error
            )
            reader = make()
        return reader, reader.totals()

    def _turn(
        self,
        ownership: Ownership,
        expired: list[WriterKey],
        rings: dict[WriterKey, RingSizes],
        durable: bytes | None,
        *,
        left: frozenset[WriterKey],
        last: bool,
    ) -> Turn:
        made = self.reader.turn(ownership, expired, rings, left=left, last=last)
        self.reclaimer.run(durable, self.reader.owned())
        return made


async def last_lines(
    slots: Sequence[Slot], ranks: Mapping[tuple[int, int], str]
) -> tuple[list[dict[str, bytes]], list[str]]:
    """Return the ends of the files of these ranks, by directory, and the directories that do not answer.

    ``ranks``: by device and inode of their files.
    """
    if not slots:
        return [], []
    asked = {slot.path: asyncio.ensure_future(slot.thread.call(partial(slot.last_lines, ranks))) for slot in slots}
    _, late = await asyncio.wait(asked.values(), timeout=ENDS_SECONDS)
    for task in late:
        task.cancel()
    found = [task.result() for task in asked.values() if task not in late and task.exception() is None]
    return found, [path for path, task in asked.items() if task in late or task.exception() is not None]
