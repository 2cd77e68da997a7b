"""Base classes of exporters that export their last result, follow jobs' text files, or read small files whole."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from agent.core.metrics import Metric
from agent.export.exporter import Context, ExporterConfig, NoData, Roots
from agent.export.job_texts import JobLines, JobTexts, SavedPositions
from agent.ranks.snapshot import RankSnapshot
from agent.tail.shares import in_turns

FORGET_SECONDS = 900.0
"""For this long after a start, a job's results from the checkpoint stay even if no rank of the job is known yet."""
C = TypeVar("C", bound=ExporterConfig)
T = TypeVar("T")


class ShownExporter(Generic[T]):
    """Exports ``shown``, the result of its last update; ``render`` is pure.

    A subclass defines ``start`` and ``update``.
    """

    def __init__(self, shown: T, render: Callable[[T], Iterable[Metric]]) -> None:
        self.shown = shown
        self._render = render

    def snapshot(self) -> T:
        """Return the result of the last update."""
        return self.shown

    def families(self, snapshot: T) -> Iterable[Metric]:
        """Return the metric families of a snapshot; pure."""
        return self._render(snapshot)

    async def drain(self) -> None:
        """Do nothing: no work is running, and threads and helpers end with the lease."""


class SavedTexts(msgspec.Struct):
    """An exporter's section of the checkpoint: read positions. A subclass declares a field with the results by job."""

    positions: SavedPositions = []


S = TypeVar("S", bound=SavedTexts)


def jobs_in_turns(ranks: RankSnapshot, most: int) -> frozenset[str]:
    """Return the ids of up to ``most`` jobs on this node, owners in turn; jobs whose user is unknown are left out."""
    owners = {view.label.job_id: view.process.facts.owner.key for view in ranks.ranks if view.uid is not None}
    return frozenset(in_turns(owners, owners.__getitem__, most))


class TextExporter(ShownExporter[T], Generic[S, T]):
    """Follows the files of ``paths`` in a thread, which runs ``turn``, ``take`` and ``forget``.

    ``saved``: results from the lines, of at most ``max_jobs`` jobs. ``section``: the encoded section of the checkpoint.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        saved: type[S],
        shown: T,
        render: Callable[[T], Iterable[Metric]],
        max_jobs: int,
    ) -> None:
        super().__init__(shown, render)
        self._name = name
        self._paths = paths
        self.saved = saved()
        self.section = msgspec.msgpack.encode(self.saved)
        self._max_jobs = max_jobs
        self.texts: JobTexts | None = None

    async def start(self, ctx: Context) -> None:
        """Restore the saved results; open no file yet."""
        self.ctx = ctx
        self.thread = ctx.thread(self._name)
        self._forget_at = ctx.clock.monotonic() + FORGET_SECONDS
        if self._paths:
            self.saved = ctx.state.restore(type(self.saved), ctx.log) or self.saved
            self.texts = await self.thread.call(partial(JobTexts, ctx, self._paths, self.saved.positions))

    async def follow(self, ranks: RankSnapshot) -> bool:
        """Read new lines; return True if a file exists, or a directory in which a file may appear."""
        if self.texts is None:
            return False
        await self.thread.call(partial(self._turn, self.texts, ranks))
        self.ctx.state.publish(self.section)
        return self.texts.available

    async def drain(self) -> None:
        """Close the files after the running update, without a wait: the update may hang."""
        if self.texts is not None:
            self.thread.submit(self.texts.close)

    def turn(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        """Process the next lines."""
        self.keep(texts.turn(ranks), ranks)

    def keep(self, jobs: Iterable[JobLines], ranks: RankSnapshot) -> None:
        """Process the lines of jobs with ranks on this node, and forget all other jobs.

        An error loses only the lines of one file.
        """
        followed = jobs_in_turns(ranks, self._max_jobs)
        if not self.ctx.once:
            room = self._max_jobs - len(followed) if self.ctx.clock.monotonic() < self._forget_at else 0
            self.forget(followed.union(sorted(self.known_jobs() - followed)[:room]))
        for lines in jobs:
            if self.ctx.once or lines.job_id in followed:
                self.ctx.failures.attempt(f"lines of {self._name}", partial(self.take, lines), path=lines.path)

    @abstractmethod
    def take(self, lines: JobLines) -> None:
        """Process lines of one file."""

    @abstractmethod
    def known_jobs(self) -> frozenset[str]:
        """Return the ids of jobs with results."""

    @abstractmethod
    def forget(self, here: frozenset[str]) -> None:
        """Forget all jobs except those in ``here``."""

    def _turn(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        self.turn(texts, ranks)
        self.saved.positions = texts.positions()
        self.section = msgspec.msgpack.encode(self.saved)


class SysfsExporter(ShownExporter[T | None], Generic[C, T]):
    """Reads a source in its own thread and exports the last result, if the source exists.

    A subclass defines what to ``read`` and how to ``render`` it. A subclass that compares with earlier values, or
    writes to the agent's tables, overrides ``update`` with a method that calls ``look``.
    """

    def __init__(self, config: C) -> None:
        super().__init__(None, lambda result: () if result is None else self.render(result))
        self.config = config

    @abstractmethod
    def read(self, roots: Roots) -> T:
        """Read the source (blocking, in the thread); raises NoData or FileNotFoundError if it is absent."""

    @abstractmethod
    def render(self, snapshot: T) -> Iterable[Metric]:
        """Return the metric families of a result of ``read``: pure, on the render thread."""

    async def start(self, ctx: Context) -> None:
        """Prepare without touching the source."""
        self.ctx = ctx
        self._thread = ctx.thread(type(self).__name__.removesuffix("Exporter").lower())

    async def look(self) -> T:
        """Run ``read`` in the thread; raises NoData if the source is absent."""
        try:
            return await self._thread.call(lambda: self.read(self.ctx.roots))
        except FileNotFoundError as error:
            raise NoData(f"{error.filename} does not exist") from None

    async def update(self) -> None:
        """Read once. Until the read ends, scrapes get the last result; without a source they get no series."""
        try:
            self.shown = await self.look()
        except NoData:
            self.shown = None
            raise
