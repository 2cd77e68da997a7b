"""One configured directory: its reader in a thread of its own, and the turn under way. Owned by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from agent.sdk.exporter import Context
from agent.sdk.ranks import WriterKey
from agent.sdk.system import ProcFS
from exporters.inspector.format.passes import RingSizes, ring_sizes
from exporters.inspector.reading.last_lines import RankFile, ends
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.reclaim import Reclaim, Reclaimer
from exporters.inspector.reading.record_files import FileState, Ownership
from exporters.inspector.reading.turn import Published, TurnResult
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.shared import Shared

WAIT_SECONDS = 1.0  # An update waits this long for a turn; a slower turn continues in its thread
ONCE_WAIT_SECONDS = 60.0  # A single pass waits this long: it has no later update
ENDS_SECONDS = 5.0  # How long a bundle of evidence waits for the ends of files; its other parts have 20 s by default
STALE_SECONDS = 10.0  # If a turn takes longer, its reader's series are withheld: they would be out of date


class WatchedDirectory:
    """A directory's reader. ``section``: the newest version of this directory's part of the checkpoint. ``failed``: the
    last turn raised an error."""

    def __init__(self, ctx: Context, path: str, number: int, reclaim: Reclaim) -> None:
        self.path = path
        self.thread = ctx.thread(f"inspector-{number}")
        self.reclaimer = Reclaimer(path, reclaim, ctx.clock, ProcFS(ctx.roots.proc), ctx.log)
        self.running: asyncio.Task[TurnResult] | None = None
        self.available = self.is_refused = self.waiting = self.failed = False
        self.published: Published | None = None
        self.section: bytes | None = None
        self._ctx = ctx
        self._started_at = 0.0
        self._writer_keys: set[WriterKey] = set()
        self._rings: dict[WriterKey, RingSizes] = {}

    async def open(self, restored: bytes | None, shared: Callable[[], Shared]) -> tuple[WriterTotals, ...]:
        """Make the reader and return the totals of the writers that it knows from ``restored``, the checkpoint."""
        ctx, self.section = self._ctx, restored

        make = partial(
            DirectoryReader, Path(self.path), ctx.clock, ctx.admit.admit, from_beginning=ctx.once, log=ctx.log
        )

        def begin() -> tuple[DirectoryReader, tuple[WriterTotals, ...]]:
            try:
                reader = make(restored=restored, shared=shared())
            except Exception as error:  # noqa: BLE001  # whatever a damaged section leads to
                ctx.log.warning(
                    "inspector checkpoint not readable, starting at the files' ends", path=self.path, error=error
                )
                reader = make(shared=shared())
            return reader, reader.totals()

        self.reader, writers = await self.thread.call(begin)
        self._writer_keys.update(writer.writer_key for writer in writers)
        return writers

    async def close(self) -> None:
        """Close the reader's files, unless a turn is running, and end the thread."""
        try:
            if self.running is None:
                await self.thread.call(self.reader.close)
        finally:
            self.thread.stop()

    def writers(self) -> tuple[WriterTotals, ...]:
        """Return the totals that were published last."""
        return () if self.published is None else self.published.writers

    def begin(self, ownership: Ownership, *, last: bool) -> asyncio.Task[TurnResult]:
        """Start a turn; the reader must be idle."""
        ranks, durable = self._ctx.ranks, self._ctx.state.durable
        self._started_at = self._ctx.clock.monotonic()
        for writer_key in self._writer_keys - self._rings.keys():
            if (settings := ranks.recording_settings(writer_key)) is not None:
                self._rings[writer_key] = ring_sizes(settings)
        expired = [writer.writer_key for writer in self.writers() if ranks.is_expired(writer.writer_key)]
        rings = dict(self._rings)

        def turn() -> TurnResult:
            result = self.reader.turn(ownership, expired, rings, last=last)
            self.reclaimer.run(durable, self.reader.owned())
            return result

        self.running = asyncio.ensure_future(self.thread.call(turn))
        return self.running

    async def last_lines(self, files: Mapping[str, RankFile]) -> dict[str, bytes]:
        """Return the ends of files by rank."""
        return await self.thread.call(lambda: ends(self.reader.owned(), files))

    def note(self, turn: TurnResult) -> None:
        """Store the reader's state after a turn."""
        self.available, self.is_refused, self.waiting = turn.available, turn.is_refused, turn.waiting
        self._writer_keys.update(writer.writer_key for writer in turn.evidence)
        for writer in turn.retired:
            self._writer_keys.discard(writer.writer_key)
            self._rings.pop(writer.writer_key, None)
        self.published = turn.published or self.published

    def is_idle(self) -> bool:
        """Return True when the directory held no file to read at the last publication."""
        return self.published is not None and not self.published.files.get(FileState.FOLLOWED)

    def shown(self) -> Published | None:
        """Return the published state; withhold its series if the reader hangs or failed."""
        hangs = self.running is not None and self._ctx.clock.monotonic() - self._started_at > STALE_SECONDS
        return self.published.withheld() if self.published is not None and (self.failed or hangs) else self.published


async def last_lines(
    directories: Sequence[WatchedDirectory], files: Mapping[str, RankFile]
) -> tuple[dict[str, bytes], list[str]]:
    """Return by rank the ends of ``files``, and the directories that do not answer."""
    calls = (asyncio.wait_for(directory.last_lines(files), ENDS_SECONDS) for directory in directories)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    ends_of_all = {rank: end for answer in answers if isinstance(answer, dict) for rank, end in answer.items()}
    return ends_of_all, [
        directory.path for directory, answer in zip(directories, answers, strict=True) if not isinstance(answer, dict)
    ]
