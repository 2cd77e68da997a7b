"""From snapshots to one exposition: each source by itself, capped, without doubles, rendered off the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric

from agent.core.log import Logger
from agent.core.threads import OwnThread
from agent.export.exposition import Rendered, Selection, encode


class Source(Protocol):
    """Something with series: an exporter under way, or a part of the agent."""

    @property
    def name(self) -> str:
        """What `collect[]` and the `exporter` label call it."""
        ...

    @property
    def series_cap(self) -> int:
        """The most series it may give."""
        ...

    def shown(self) -> bool:
        """False while it has nothing recent to tell."""
        ...

    def snapshot(self) -> object:
        """A frozen copy of its state, taken on the loop."""
        ...

    def families(self, snapshot: Any) -> Iterable[Metric]:
        """Its families; on the render thread."""
        ...


@dataclass(slots=True)
class SourceCounts:
    """What became of a source's series: in the last whole render, and dropped or failed since the start."""

    series: int = 0
    dropped: int = 0
    doubles: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Outcome:
    families: list[Metric] = field(default_factory=list)
    series: int = 0
    dropped: int = 0
    doubles: int = 0
    error: Exception | None = None


class Registry:
    """Renders what ``sources`` returns at the time of each request; one that fails costs only its own series."""

    def __init__(self, sources: Callable[[], Sequence[Source]], log: Logger, thread: OwnThread) -> None:
        self._sources = sources
        self._log = log
        self._thread = thread
        self.counts: dict[str, SourceCounts] = {}
        self.renders = 0

    def names(self) -> frozenset[str]:
        """What `collect[]` may name."""
        return frozenset(source.name for source in self._sources())

    async def render(self, selection: Selection) -> Rendered:
        """Take snapshots on the loop, render them on the render thread."""
        taken: list[tuple[Source, object]] = []
        for source in self._sources():
            if not selection.takes(source.name) or not source.shown():
                continue
            try:
                taken.append((source, source.snapshot()))
            except Exception as error:  # noqa: BLE001  # one exporter's mistake must not cost the others their scrape
                self._fail(source.name, error)
        rendered, outcomes = await self._thread.call(lambda: _render(taken, selection))
        self.renders += 1
        for (source, _), outcome in zip(taken, outcomes, strict=True):
            self._account(source.name, outcome)
        return rendered

    def _account(self, name: str, outcome: _Outcome) -> None:
        counts = self.counts.setdefault(name, SourceCounts())
        counts.series = outcome.series
        counts.dropped += outcome.dropped
        counts.doubles += outcome.doubles
        if outcome.dropped:
            self._log.warning(
                "{dropped} series of exporter {exporter} are left out", exporter=name, dropped=outcome.dropped
            )
        if outcome.error is not None:
            self._fail(name, outcome.error)

    def _fail(self, name: str, error: Exception) -> None:
        self.counts.setdefault(name, SourceCounts()).failures += 1
        self._log.error("the metrics of exporter {exporter} could not be rendered", exporter=name, error=error)


def _render(taken: Sequence[tuple[Source, object]], selection: Selection) -> tuple[Rendered, list[_Outcome]]:
    outcomes = [gather(source, snapshot) for source, snapshot in taken]
    families = [family for outcome in outcomes for family in outcome.families]
    return encode(families, selection), outcomes


def gather(source: Source, snapshot: object) -> _Outcome:
    """Collect a source's families up to its cap, each series once. What it raises costs its remaining families."""
    outcome = _Outcome()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    try:
        for family in source.families(snapshot):
            outcome.families.append(_limited(family, source.series_cap, seen, outcome))
    except Exception as error:  # noqa: BLE001  # one exporter's mistake must not cost the others their scrape
        outcome.error = error
    return outcome


def _limited(family: Metric, cap: int, seen: set[tuple[str, tuple[str, ...]]], outcome: _Outcome) -> Metric:
    kept = []
    for sample in family.samples:
        series = (sample.name, tuple(sample.labels.values()))
        if series in seen:
            outcome.doubles += 1
        elif outcome.series >= cap:
            outcome.dropped += 1
        else:
            seen.add(series)
            kept.append(sample)
            outcome.series += 1
    family.samples = kept
    return family
