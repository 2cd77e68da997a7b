"""Run a collector of prometheus-client as an exporter: in a thread, at an interval, and with a limit of series.

A collector is an object with ``collect()``, which yields metric families as in prometheus_client.core: ``name``,
``documentation``, ``type`` and ``samples`` (https://prometheus.github.io/client_python/collector/custom/).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from agent.core.metrics import COUNT, SUM, Family, Metric, MetricKind
from agent.export.bases import SysfsExporter
from agent.export.exporter import ExporterConfig, Roots, Spec

COLLECT_SECONDS = 15.0
DEADLINE_SECONDS = 10.0
MAX_FAMILIES = 1_000
MAX_SAMPLES = 20_000
MAX_TEXT_CHARACTERS = 1_024
"""Limit of a help text or a label's value; longer text is cut."""
OWN_PREFIX = "rankwatch_"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,127}")


class Collector(Protocol):
    """A collector, as the registry of prometheus-client accepts it."""

    def collect(self) -> Iterable[Any]:
        """Yield metric families."""
        ...


class CollectorConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``arguments``: keyword arguments of the collector's class."""

    arguments: dict[str, str | int | float | bool | list[str]] = msgspec.field(default_factory=dict)


class CollectorError(ValueError):
    """The collector returned something that cannot be exported."""


class CollectorExporter(SysfsExporter[CollectorConfig, tuple[Metric, ...]]):
    """Calls ``collect()`` at each update, never at a scrape; calls do not overlap."""

    def __init__(self, make: Callable[..., Collector], config: CollectorConfig) -> None:
        super().__init__(config)
        self._make = make
        self._collector: Collector | None = None

    def read(self, _roots: Roots) -> tuple[Metric, ...]:
        """Collect once; an error affects only this collector's series."""
        try:
            if self._collector is None:
                self._collector = self._make(**self.config.arguments)
            return converted(self._collector.collect())
        except FileNotFoundError as error:  # of the collector: an error, and not an absent source
            raise CollectorError(str(error)) from error

    def render(self, metrics: tuple[Metric, ...]) -> Iterable[Metric]:
        """Return the metrics of the last call unchanged."""
        return metrics


def collector_spec(name: str, make: Callable[..., Collector]) -> Spec:
    """Return the Spec for a collector class, or for a function that returns a collector."""
    return Spec(
        name=name,
        config=CollectorConfig,
        build=lambda config: CollectorExporter(make, config),
        interval_seconds=COLLECT_SECONDS,
        deadline_seconds=DEADLINE_SECONDS,
        families=(),
        series_cap=MAX_SAMPLES,
    )


def converted(collected: Iterable[Any]) -> tuple[Metric, ...]:
    """Return the converted metric families.

    Raises CollectorError for rankwatch's prefix, an invalid name, a timestamp, duplicate series or too many series.
    """
    metrics: dict[str, Metric] = {}
    samples = 0
    for number, family in enumerate(collected):
        if number >= MAX_FAMILIES:
            raise CollectorError(f"more than {MAX_FAMILIES} metric families")
        by_name: dict[str, list[Any]] = {}
        for sample in family.samples:
            samples += 1
            if samples > MAX_SAMPLES:
                raise CollectorError(f"more than {MAX_SAMPLES} samples")
            if sample.timestamp is not None:
                raise CollectorError(f"{sample.name} has a timestamp")
            if sample.name != f"{family.name}_created":  # Prometheus' text format has no such sample
                name = family.name if family.type == "histogram" else sample.name
                by_name.setdefault(str(name), []).append(sample)
        for name, members in by_name.items():
            if name in metrics:
                raise CollectorError(f"{name} comes twice")
            metrics[name] = _metric(family, name, members)
    return tuple(metrics.values())


def _metric(family: Any, name: str, samples: list[Any]) -> Metric:
    if name.startswith(OWN_PREFIX) or not _NAME.fullmatch(name):
        raise CollectorError(f"{name[:200]!r} is not a valid metric name for a collector")
    kind: MetricKind = family.type if family.type in ("counter", "histogram") else "gauge"
    buckets = {"le"} if kind == "histogram" else set()
    labels = tuple(sorted({label for sample in samples for label in sample.labels} - buckets))
    if bad := [label for label in labels if not _LABEL.fullmatch(label)]:
        raise CollectorError(f"{name}: {bad[0][:200]!r} is not a valid label name")
    names = (*labels, "le") if kind == "histogram" else labels
    rows = Family(name, kind, _text(family.documentation) or name, names, "its own").rows()
    series: set[tuple[str, ...]] = set()
    for sample in samples:
        values = tuple(_text(sample.labels.get(label, "")) for label in labels)
        if kind == "histogram":
            values = (*values, _le(sample.name, sample.labels))
        if values in series:
            raise CollectorError(f"{name} has one series twice")
        series.add(values)
        rows.add(values, float(sample.value))
    return rows.metric


def _le(sample_name: str, labels: Mapping[str, str]) -> str:
    if sample_name.endswith("_bucket"):
        return _text(labels.get("le", ""))
    return COUNT if sample_name.endswith("_count") else SUM


def _text(text: object) -> str:
    return str(text)[:MAX_TEXT_CHARACTERS]
