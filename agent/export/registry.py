"""Render snapshots into one exposition on the render thread, with limits and without duplicates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.core.log import Logger
from agent.core.metrics import Metric
from agent.core.threads import OwnThread
from agent.export.exposition import Body, Rendered, Selection
from agent.export.lines import KeptHeads


@dataclass(frozen=True, slots=True)
class Source:
    """A source of series: a running exporter, or a part of the agent.

    ``name``: its name in `collect[]` and in label `exporter`. ``series_cap``: limit of its series. ``snapshot`` copies
    the source's state on the event loop; ``families`` renders it on the render thread. ``shown``: returns False for
    stale data.
    """

    name: str
    series_cap: int
    snapshot: Callable[[], Any]
    families: Callable[[Any], Iterable[Metric]]
    shown: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class SourceCounts:
    """Counts of a source's series: in the last render, and dropped or failed since the start.

    ``is_failing``: the last render failed.
    """

    series: int = 0
    dropped: int = 0
    failures: int = 0
    is_failing: bool = False


@dataclass(slots=True)
class _Outcome:
    labels_of: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    series: int = 0
    dropped: int = 0
    doubles: int = 0
    error: Exception | None = None


class Registry:
    """Renders the current ``sources`` at each request. An error affects only one source's series.

    ``installed``: names of sources that can be disabled; a scrape that selects a disabled source must not fail.
    """

    def __init__(
        self,
        sources: Callable[[], Sequence[Source]],
        log: Logger,
        thread: OwnThread,
        installed: frozenset[str] = frozenset(),
    ) -> None:
        self._sources = sources
        self._installed = installed
        self._log = log
        self._thread = thread
        self.heads = KeptHeads()
        self.counts: dict[str, SourceCounts] = {}

    def names(self) -> frozenset[str]:
        """Return the names that `collect[]` accepts."""
        return self._installed | frozenset(source.name for source in self._sources())

    async def render(self, selection: Selection) -> Rendered:
        """Take snapshots on the loop and render them on the render thread."""
        shown = [source for source in self._sources() if source.shown()]
        names = frozenset(source.name for source in shown)
        for name in self.counts.keys() - names:
            self.counts[name].series, self.counts[name].is_failing = 0, False
        snapshots: list[tuple[Source, object]] = []
        for source in shown:
            if not selection.takes(source.name):
                continue
            try:
                snapshots.append((source, source.snapshot()))
            except Exception as error:  # noqa: BLE001  # an exporter's error must not affect other exporters' series
                self._account(source.name, _Outcome(error=error))
        rendered, outcomes = await self._thread.call(lambda: self._render(snapshots, names, selection))
        for (source, _), outcome in zip(snapshots, outcomes, strict=True):
            self._account(source.name, outcome)
        return rendered

    def _account(self, name: str, outcome: _Outcome) -> None:
        counts = self.counts.setdefault(name, SourceCounts())
        counts.series = outcome.series
        counts.is_failing = outcome.error is not None
        counts.dropped += outcome.dropped + outcome.doubles
        if outcome.dropped or outcome.doubles:
            self._log.warning(
                "exporter {exporter}: {dropped} series over its limit and {doubles} duplicates are left out",
                exporter=name,
                dropped=outcome.dropped,
                doubles=outcome.doubles,
            )
        if outcome.error is not None:
            counts.failures += 1
            what = "the metrics of exporter {exporter} could not be rendered"
            self._log.error(what, exporter=name, error=outcome.error)

    # -- on the render thread --------------------------------------------------------------------------------------

    def _render(
        self, snapshots: Sequence[tuple[Source, object]], shown: frozenset[str], selection: Selection
    ) -> tuple[Rendered, list[_Outcome]]:
        self.heads.keep_sources(shown)
        body = Body(selection)
        owners: dict[str, str] = {}
        outcomes = [self._gather(source, snapshot, selection, body, owners) for source, snapshot in snapshots]
        return body.rendered(), outcomes

    def _gather(
        self, source: Source, snapshot: object, selection: Selection, body: Body, owners: dict[str, str]
    ) -> _Outcome:
        """Add a source's families up to its limit, without duplicates. ``owners``: the source of each family so far.

        After an error the source's remaining families are missing. The first source of a family owns it.
        """
        outcome = _Outcome()
        try:
            for metric in source.families(snapshot):
                exported = _limited(metric, source.series_cap, outcome)
                if exported.labels and owners.setdefault(metric.family.name, source.name) != source.name:
                    outcome.doubles += len(exported.labels)
                    outcome.series -= len(exported.labels)
                elif exported.labels:
                    for piece in self.heads.text(source.name, exported, openmetrics=selection.openmetrics):
                        body.add(piece)
        except Exception as error:  # noqa: BLE001  # an exporter's error must not affect other exporters' series
            outcome.error = error
        self.heads.keep_families(source.name, outcome.labels_of)
        return outcome


def _limited(metric: Metric, cap: int, outcome: _Outcome) -> Metric:
    """Return the series of ``metric`` that are no duplicates and within the limit, and count the other series."""
    seen = outcome.labels_of.setdefault(metric.family.name, set())
    exported = metric
    labels_here = set(metric.labels)
    if seen or len(labels_here) < len(metric.labels) or outcome.series + len(metric.labels) > cap:
        exported = Metric(metric.family)
        for labels, value in zip(metric.labels, metric.values, strict=True):
            if labels in seen:
                outcome.doubles += 1
            elif outcome.series + len(exported.labels) >= cap:
                outcome.dropped += 1
            else:
                seen.add(labels)
                exported.labels.append(labels)
                exported.values.append(value)
    else:
        seen |= labels_here
    outcome.series += len(exported.labels)
    return exported
