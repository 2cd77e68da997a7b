"""The agent's metric families as prometheus-client would encode them (the reference), and as the agent encodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import exposition as text
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric as ClientMetric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from agent.core.metrics import COUNT, SUM, Metric
from agent.export.exposition import Body, Rendered, Selection
from agent.export.lines import KeptHeads


def client_metric(metric: Metric) -> ClientMetric:
    """Return the prometheus-client family with the same series."""
    family = metric.family
    if family.kind == "histogram":
        return _client_histogram(metric)
    made = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    client = made(family.name, family.help, labels=family.labels)
    for labels, value in zip(metric.labels, metric.values, strict=True):
        assert len(labels) == len(family.labels)
        client.add_metric(labels, value)
    return client


def _client_histogram(metric: Metric) -> ClientMetric:
    """Build the histogram series by series, because the test's series can come in any order."""
    family = metric.family
    client = ClientMetric(family.name, family.help, family.kind)
    for labels, value in zip(metric.labels, metric.values, strict=True):
        suffix = {COUNT: "_count", SUM: "_sum"}.get(labels[-1], "_bucket")
        shown = dict(zip(family.labels, labels, strict=True))
        if suffix != "_bucket":
            del shown["le"]
        client.add_sample(f"{family.name}{suffix}", shown, value)
    return client


def samples(families: Iterable[Metric]) -> list[Sample]:
    """Return every series of these families as a prometheus-client sample."""
    return [sample for family in families for sample in client_metric(family).samples]


def reference(families: Iterable[Metric], *, openmetrics_format: bool = False) -> bytes:
    """Return the text that prometheus-client writes for these families; families without series are left out."""
    given = [client_metric(family) for family in families if family.labels]
    return reference_of(given, openmetrics_format=openmetrics_format)


def reference_of(families: Iterable[ClientMetric], *, openmetrics_format: bool = False) -> bytes:
    """Return the text that prometheus-client writes for prometheus-client's own families."""
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return (openmetrics if openmetrics_format else text).generate_latest(registry)


class _Collected:
    def __init__(self, families: Iterable[ClientMetric]) -> None:
        self._families = list(families)

    def describe(self) -> list[ClientMetric]:
        return []

    def collect(self) -> Iterator[ClientMetric]:
        return iter(self._families)


def encode(families: Iterable[Metric], selection: Selection | None = None) -> Rendered:
    """Encode these families as the agent encodes those of one source."""
    chosen = selection or Selection()
    body, heads = Body(chosen), KeptHeads()
    for family in families:
        if family.labels:
            for piece in heads.text("test", family, openmetrics=chosen.openmetrics):
                body.add(piece)
    return body.rendered()
