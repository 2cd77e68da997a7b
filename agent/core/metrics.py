"""Declarations of metric families with their help texts, and the series of a family at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]
Aggregation = Literal["sum", "min", "max", "none"]
COUNT, SUM = "count", "sum"
"""Values in the place of `le`: they mark the series `_count` and `_sum` of a histogram, which are exported without
`le`."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family: full name as stored by Prometheus, type, help, labels and cost.

    ``cost``: number of series, as text. ``aggregate``: how to combine series of several nodes with equal labels
    (``none``: only one node exports a series). The last label of a histogram is `le`.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    cost: str = "1 per node"
    aggregate: Aggregation = "none"

    def rows(self) -> Rows:
        """Return an empty ``Rows``, to which the caller adds series."""
        return Rows(Metric(self))

    def single(self, value: float) -> Metric:
        """Return the metric of a family without labels."""
        rows = self.rows()
        rows.add((), value)
        return rows.metric

    def by_label(self, values: Mapping[str, float]) -> Metric:
        """Return the metric of a family with one label. ``values``: the sample of each label value."""
        return Metric(self, [(str(label),) for label in values], list(values.values()))

    def suffix(self, values: tuple[str, ...]) -> str:
        """Return the suffix of the series with these label values, such as ``_bucket``; empty for gauges, counters."""
        if self.kind != "histogram":
            return ""
        return f"_{values[-1]}" if values[-1] in (COUNT, SUM) else "_bucket"


def declared(module: Mapping[str, object]) -> tuple[Family, ...]:
    """Return the families in a module's ``globals()``, in the order of their declaration."""
    return tuple(value for value in module.values() if isinstance(value, Family))


@dataclass(slots=True)
class Metric:
    """A family's series at one moment: ``labels`` and ``values`` have one entry per series, in the same order."""

    family: Family
    labels: list[tuple[str, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Rows:
    """A metric under construction: ``add`` series; ``metric`` is the result."""

    __slots__ = ("_add_labels", "_add_value", "_width", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._width = len(metric.family.labels)
        self._add_labels = metric.labels.append
        self._add_value = metric.values.append

    def add(self, label_values: tuple[str, ...], value: float) -> None:
        """Add one series; ``label_values`` are in the declared order."""
        if len(label_values) != self._width:
            raise ValueError(f"{self.metric.family.name}: {len(label_values)} label values for {self._width} labels")
        self._add_labels(label_values)
        self._add_value(value)
