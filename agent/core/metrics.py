"""How a metric family is declared: once, whole, beside its help text; and its series at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricKind = Literal["gauge", "counter", "histogram"]
Aggregation = Literal["sum", "max", "none"]
COUNT, SUM = "count", "sum"
"""What stands for `le` in the two series of a histogram that are no buckets."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family: its full name as Prometheus stores it, type, help, labels and cost.

    ``cost`` says in words how many series it makes; ``aggregate`` how to combine it over nodes that export the same
    label set (``none``: the series is one node's alone). The last label of a histogram is `le`.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    cost: str = "1 per node"
    aggregate: Aggregation = "none"

    def rows(self) -> Rows:
        """Start an empty family to fill."""
        return Rows(Metric(self))

    def single(self, value: float) -> Metric:
        """Return a family without labels that holds one value."""
        rows = self.rows()
        rows.add((), value)
        return rows.metric

    def by_label(self, values: Mapping[str, float]) -> Metric:
        """Return a family with one label that has these values."""
        return Metric(self, [(str(label),) for label in values], list(values.values()))

    def suffix(self, values: tuple[str, ...]) -> str:
        """Return what follows the family's name in the name of a series with these label values."""
        if self.kind != "histogram":
            return ""
        return f"_{values[-1]}" if values[-1] in (COUNT, SUM) else "_bucket"


@dataclass(slots=True)
class Metric:
    """A family's series at one moment: ``labels`` has each one's label values, ``values`` its number, in step."""

    family: Family
    labels: list[tuple[str, ...]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Rows:
    """One family under construction: ``add`` label values and a value; ``metric`` is what is rendered."""

    __slots__ = ("_add_labels", "_add_value", "_width", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._width = len(metric.family.labels)
        self._add_labels = metric.labels.append
        self._add_value = metric.values.append

    def add(self, values: tuple[str, ...], value: float) -> None:
        """Add one series; ``values`` are the label values in the declared order."""
        if len(values) != self._width:
            raise ValueError(f"{self.metric.family.name}: {len(values)} label values for {self._width} labels")
        self._add_labels(values)
        self._add_value(value)
