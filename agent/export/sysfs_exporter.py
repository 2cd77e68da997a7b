"""The base of exporters that read small files at each update: sysfs, /proc, markers."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from agent.core.metrics import Metric
from agent.export.exporter import Context, ExporterConfig, NoData, Roots

C = TypeVar("C", bound=ExporterConfig)
T = TypeVar("T")


class SysfsExporter(Generic[C, T]):
    """Reads in a thread of its own and shows what it read last.

    A subclass defines what to ``read`` and how to ``render`` it. A subclass that compares with earlier values, or
    updates the agent's tables, overrides ``update`` and calls ``look`` there.
    """

    def __init__(self, config: C) -> None:
        self.config = config
        self._found: T | None = None

    @abstractmethod
    def read(self, roots: Roots) -> T:
        """Read the source (blocking, in the thread); NoData or FileNotFoundError when it is not there."""

    @abstractmethod
    def render(self, found: T) -> Iterable[Metric]:
        """Turn what ``read`` returned into metric families: pure, on the render thread."""

    async def start(self, ctx: Context) -> None:
        """Prepare; the source is not touched yet."""
        self.ctx = ctx
        self._thread = ctx.thread(type(self).__name__.removesuffix("Exporter").lower())

    async def look(self) -> T:
        """Run ``read`` in the thread; NoData when the source is not there."""
        try:
            return await self._thread.call(lambda: self.read(self.ctx.roots))
        except FileNotFoundError:
            raise NoData from None

    async def update(self) -> None:
        """Look once."""
        self._found = None
        self._found = await self.look()

    def snapshot(self) -> T | None:
        """What was read last, None when the source was not there."""
        return self._found

    def families(self, snapshot: T | None) -> Iterable[Metric]:
        """Render; pure."""
        return () if snapshot is None else self.render(snapshot)

    async def drain(self) -> None:
        """Nothing is under way; the thread ends with the lease."""
