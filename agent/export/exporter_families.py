"""Metric families about exporters: their updates and their series."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agent.core.metrics import Family, Metric
from agent.export.registry import SourceCounts

# fmt: off
EXPORTER_UP = Family("rankwatch_exporter_up", "gauge",
    "1 if the exporter's last update succeeded (or, in mode auto, found no source), 0 if it failed or is late.",
    ("exporter",), "1 per exporter")
EXPORTER_PRESENT = Family("rankwatch_exporter_source_present", "gauge",
    "0 while the exporter's source does not exist on this node; absent while it does.",
    ("exporter",), "1 per exporter without a source")
EXPORTER_DURATION = Family("rankwatch_exporter_update_duration_seconds", "gauge",
    "How long the exporter's last update took; absent without a source.",
    ("exporter",), "1 per exporter with a source")
EXPORTER_LATE = Family("rankwatch_exporter_updates_late_total", "counter",
    "Updates that passed their deadline; they are never cancelled, and no second one starts meanwhile. "
    "Absent if the exporter has no source and was never late.",
    ("exporter",), "1 per exporter with a source")
EXPORTER_FAILED = Family("rankwatch_exporter_updates_failed_total", "counter",
    "Updates that ended in an error, and scrapes that could not render all of the exporter's state; absent before the "
    "first.",
    ("exporter",), "1 per exporter that failed")
EXPORTER_SKIPPED = Family("rankwatch_exporter_skipped_total", "counter",
    "Pieces of a source (a record, a process) left out because of an error, which the log names. "
    "Absent before the first.",
    ("exporter",), "1 per exporter that left something out")
EXPORTER_SERIES = Family("rankwatch_exporter_series", "gauge",
    "Series of the exporter in the last scrape that included it.",
    ("exporter",), "1 per exporter with series")
EXPORTER_DROPPED = Family("rankwatch_exporter_series_dropped_total", "counter",
    "Series left out because the exporter was over its limit or had the same series twice (the log says which), "
    "counted at each scrape.",
    ("exporter",), "1 per exporter with series")
# fmt: on

FAMILIES: tuple[Family, ...] = (
    EXPORTER_UP, EXPORTER_PRESENT, EXPORTER_DURATION, EXPORTER_LATE, EXPORTER_FAILED,
    EXPORTER_SKIPPED, EXPORTER_SERIES, EXPORTER_DROPPED,
)  # fmt: skip


class ExporterStatus(msgspec.Struct, frozen=True):
    """State of one exporter."""

    name: str
    up: bool
    present: bool
    duration_seconds: float = 0.0
    late: int = 0
    failures: int = 0
    skipped: int = 0


_UPDATES: tuple[tuple[Family, Callable[[ExporterStatus], float | None]], ...] = (
    (EXPORTER_UP, lambda exporter: float(exporter.up)),
    (EXPORTER_PRESENT, lambda exporter: None if exporter.present else 0.0),
    (EXPORTER_DURATION, lambda exporter: exporter.duration_seconds if exporter.present or not exporter.up else None),
    (EXPORTER_LATE, lambda exporter: exporter.late if exporter.present or not exporter.up or exporter.late else None),
    (EXPORTER_SKIPPED, lambda exporter: exporter.skipped or None),
)
"""Functions that return each family's value for an exporter; None for no series."""


def render(exporters: Sequence[ExporterStatus], counts: Mapping[str, SourceCounts]) -> Iterable[Metric]:
    """Render the state of the exporters; ``counts``: by source, including the agent's own tables."""
    for family, value_of in _UPDATES:
        yield family.by_label(
            {exporter.name: value for exporter in exporters if (value := value_of(exporter)) is not None}
        )
    failures = Counter({exporter.name: exporter.failures for exporter in exporters})
    failures.update({name: source.failures for name, source in counts.items()})
    yield EXPORTER_FAILED.by_label({name: count for name, count in sorted(failures.items()) if count})
    yield EXPORTER_SERIES.by_label({name: source.series for name, source in sorted(counts.items())})
    yield EXPORTER_DROPPED.by_label({name: source.dropped for name, source in sorted(counts.items())})
