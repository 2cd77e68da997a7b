"""How a metric family is declared: once, whole, beside its help text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

MetricKind = Literal["gauge", "counter"]
Aggregation = Literal["sum", "max", "none"]


class Rows:
    """One family under construction: ``add`` label values and a value; ``metric`` is what the client renders."""

    __slots__ = ("_add", "_labels", "metric")

    def __init__(self, metric: GaugeMetricFamily | CounterMetricFamily, labels: int) -> None:
        self.metric: Metric = metric
        self._labels = labels
        self._add = metric.add_metric

    def add(self, values: tuple[str, ...], value: float) -> None:
        """Add one series; ``values`` are the label values in the declared order."""
        if len(values) != self._labels:
            raise ValueError(f"{self.metric.name}: {len(values)} label values for {self._labels} labels")
        self._add(values, value)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family: its full name as Prometheus stores it, type, help, labels and cost.

    ``cost`` says in words how many series it makes; ``aggregate`` how to combine it over nodes that export the same
    label set (``none``: the series is one node's alone).
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    cost: str = "1 per node"
    aggregate: Aggregation = "none"

    def rows(self) -> Rows:
        """Start an empty family to fill."""
        made = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        return Rows(made(self.name, self.help, labels=self.labels), len(self.labels))

    def single(self, value: float) -> Metric:
        """Return a family without labels that holds one value."""
        rows = self.rows()
        rows.add((), value)
        return rows.metric
