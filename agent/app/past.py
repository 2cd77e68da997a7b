"""Keep the last five minutes of the series of exporters with ``keeps_past`` (hardware), for evidence bundles."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from agent.core.clock import Clock
from agent.core.log import Logger
from agent.core.metrics import Metric
from agent.core.threads import OwnThread
from agent.evidence.registry import Offered, Wanted
from agent.export.registry import Source

STEP_SECONDS = 30.0
STEPS = 10
"""Number of snapshots kept per source: five minutes."""
MAX_ROWS = 5000
"""Limit of series per source in a bundle."""


class _Moment(NamedTuple):
    at: float
    snapshots: tuple[tuple[Source, object], ...]


class ShownPast:
    """Keeps the frozen snapshots of ``sources``, and renders them when a bundle is taken."""

    def __init__(self, clock: Clock, sources: Callable[[], Iterable[Source]]) -> None:
        self._clock = clock
        self._sources = sources
        self._log = Logger("past")
        self._moments: deque[_Moment] = deque(maxlen=STEPS)
        self._snapshot_at = float("-inf")
        self._thread = OwnThread("past")

    def tick(self) -> None:
        """Keep the current snapshots if STEP_SECONDS have passed."""
        now = self._clock.monotonic()
        if now - self._snapshot_at < STEP_SECONDS:
            return
        self._snapshot_at = now
        snapshots = []
        for source in self._sources():
            try:
                if source.shown():
                    snapshots.append((source, source.snapshot()))
            except Exception as error:  # noqa: BLE001  # an error affects only this exporter's past series
                self._log.error("the past of exporter {exporter} is not kept", exporter=source.name, error=error)
        self._moments.append(_Moment(self._clock.time(), tuple(snapshots)))

    async def part(self, _wanted: Wanted) -> Offered:
        """Return the part of a bundle: per source a table with a row per series and a column per time."""
        moments = tuple(self._moments)
        return Offered(await self._thread.call(lambda: tables(moments, self._log)))

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()


def tables(moments: Sequence[_Moment], log: Logger) -> dict[str, bytes]:
    """Return the tables by file name, with times in UTC. Slow: to render each snapshot takes as long as a scrape."""
    columns = [time.strftime("%H:%M:%S", time.gmtime(moment.at)) for moment in moments]
    rows: dict[str, dict[str, list[str]]] = {}
    for number, moment in enumerate(moments):
        for source, snapshot in moment.snapshots:
            known = rows.setdefault(source.name, {})
            try:
                for series, value in _series(source.families(snapshot)):
                    if series in known or len(known) < MAX_ROWS:
                        known.setdefault(series, [""] * len(moments))[number] = value
            except Exception as error:  # noqa: BLE001  # an error affects only this exporter's past series
                log.error("past values of exporter {exporter} are not available", exporter=source.name, error=error)
    return {f"{name}.tsv": _text(columns, known) for name, known in rows.items()}


def _series(families: Iterable[Metric]) -> Iterable[tuple[str, str]]:
    for metric in families:
        names = metric.family.labels
        for labels, value in zip(metric.labels, metric.values, strict=True):
            pairs = ",".join(f"{name}={label}" for name, label in zip(names, labels, strict=True))
            yield f"{metric.family.name}{{{pairs}}}", f"{value:.15g}"


def _text(columns: Sequence[str], rows: dict[str, list[str]]) -> bytes:
    lines = ["\t".join(("series", *columns))]
    for series, values in sorted(rows.items()):
        one_line = "".join(letter if letter.isprintable() else "?" for letter in series)
        lines.append("\t".join((one_line, *values)))
    return "\n".join((*lines, "")).encode(errors="replace")
