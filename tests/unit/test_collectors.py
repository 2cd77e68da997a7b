"""Exporters of other packages, written as collectors for prometheus-client."""

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from client_metrics import encode
from fake_clock import FakeClock
from lent import lent
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, Summary
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, InfoMetricFamily, Sample
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.app.config import ConfigError, Loaded
from agent.app.discovery import load_spec, prepare
from agent.core.log import Logger
from agent.export import collector_exporter as module
from agent.export.collector_exporter import CollectorConfig, CollectorError, CollectorExporter, converted
from agent.sdk.exporter import ExporterConfig, NoData, Roots, SysfsExporter
from agent.sdk.metrics import Metric

ROOT = Path(__file__).parents[2]


def samples(text: str) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    """Return a page's series as prometheus-client reads them, without creation times and empty labels."""
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name not in ("waits_seconds_created", "sizes_bytes_created")
    }


def histogram() -> Histogram:
    """Return a histogram with labels and two observations."""
    made = Histogram("waits_seconds", "Waits.", ["queue"], registry=None)
    made.labels("a").observe(0.2)
    made.labels("b").observe(7.0)
    return made


def summary() -> Summary:
    """Return a summary with one observation."""
    made = Summary("sizes_bytes", "Sizes.", registry=None)
    made.observe(3.0)
    return made


def unlike_labels() -> GaugeMetricFamily:
    """Return a family with samples that differ in their label names."""
    family = GaugeMetricFamily("disk_ratio", "Disk.")
    family.samples += [Sample("disk_ratio", {"disk": "a"}, 0.5), Sample("disk_ratio", {"path": '/\n"x"'}, 1)]
    return family


class Fixed:
    """A collector that returns fixed families."""

    def __init__(self, *families: Any) -> None:
        self._families = families

    def collect(self) -> Iterable[Any]:
        """Return the families."""
        return iter(self._families)


@pytest.mark.parametrize("make", [
    lambda: PlatformCollector(registry=None),
    lambda: GCCollector(registry=CollectorRegistry()),
    histogram,
    summary,
    lambda: Fixed(InfoMetricFamily("firmware", "Firmware.", {"version": "1.2"}), unlike_labels()),
    lambda: Fixed(GaugeMetricFamily("pod_created", "A gauge that is no creation time of another family.", 17.0)),
    lambda: Fixed(GaugeHistogramMetricFamily("queue", "Queue.", buckets=[("1.0", 2), ("+Inf", 3)], gsum_value=4)),
])  # fmt: skip
def test_a_page_has_what_prometheus_client_writes(make: Callable[[], Any]) -> None:
    """The agent exports the same series, with the same names, labels and values, as prometheus-client."""
    collector, registry = make(), CollectorRegistry()
    registry.register(collector)
    gc.disable()  # the collector's counts of collections are among the series
    try:
        exported, due = encode(converted(collector.collect())), generate_latest(registry)
    finally:
        gc.enable()
    assert samples(exported.body.decode()) == samples(due.decode())


@pytest.mark.parametrize(("samples_", "why"), [
    ([Sample("rankwatch_up", {}, 1)], "not a valid metric name"),
    ([Sample("a-b", {}, 1)], "not a valid metric name"),
    ([Sample("x", {"__a": "1"}, 1)], "not a valid label name"),
    ([Sample("x", {}, 1, 17.0)], "timestamp"),
    ([Sample("x", {"a": "1"}, 1), Sample("x", {"a": "1"}, 2)], "twice"),
])  # fmt: skip
def test_what_cannot_be_exported_is_refused(samples_: list[Sample], why: str) -> None:
    """A metric name of the agent, an invalid name, a timestamp and a duplicate raise an error with the reason."""
    family = GaugeMetricFamily("x", "X.")
    family.samples += samples_
    with pytest.raises(CollectorError, match=why):
        converted([family])
    with pytest.raises(CollectorError, match="twice"):
        converted([GaugeMetricFamily("y", "Y.", 1.0)] * 2)


def test_families_and_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More families than MAX_FAMILIES, or more samples than MAX_SAMPLES, raise an error; too long texts are cut."""
    families = [GaugeMetricFamily(f"x{number}", "X.", number) for number in range(4)]
    monkeypatch.setattr(module, "MAX_FAMILIES", 4)
    monkeypatch.setattr(module, "MAX_SAMPLES", 4)
    assert len(converted(families)) == 4
    monkeypatch.setattr(module, "MAX_SAMPLES", 3)
    with pytest.raises(CollectorError, match="3 samples"):
        converted(families)
    monkeypatch.setattr(module, "MAX_FAMILIES", 3)
    monkeypatch.setattr(module, "MAX_SAMPLES", 4)
    with pytest.raises(CollectorError, match="3 metric families"):
        converted(families)
    long = GaugeMetricFamily("x", "X" * 2_000)
    long.add_sample("x", {"a": "y" * (module.MAX_TEXT_CHARACTERS + 1)}, 1.0)
    (metric,) = converted([long])
    assert (len(metric.family.help), len(metric.labels[0][0])) == (module.MAX_TEXT_CHARACTERS,) * 2


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a package with a collector `rack_made_up` and a number `no_exporter`; return the module's name."""
    (tmp_path / "rack_made_up.py").write_text(
        textwrap.dedent(
            """
            from prometheus_client.core import GaugeMetricFamily
            NUMBER = 7
            class RackCollector:
                def __init__(self, path, depth=1):
                    self.path, self.depth = path, depth
                def collect(self):
                    yield GaugeMetricFamily("rack_depth", f"Of {self.path}.", value=self.depth)
            """
        )
    )
    folder = tmp_path / "rack_made_up-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: rack-made-up\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[rankwatch.exporters]\nrack_made_up = rack_made_up:RackCollector\nno_exporter = rack_made_up:NUMBER\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "rack_made_up"


async def test_a_collector_of_a_package_is_an_exporter(package: str, tmp_path: Path) -> None:
    """A collector runs with its configured arguments; without a required argument it fails and has no series."""
    loaded = Loaded(f"exporters: {{{package}: {{arguments: {{path: /x, depth: 3}}}}}}", "f.yml")
    prepared = (await asyncio.to_thread(prepare, loaded, Logger("test"))).enabled[package]
    exporter, context = prepared.spec.build(prepared.config), lent(package, FakeClock(), tmp_path)
    await exporter.start(context)
    await exporter.update()
    assert "rack_depth 3" in encode(exporter.families(exporter.snapshot())).body.decode()
    await exporter.drain()
    loaded = Loaded(f"exporters: {{{package}: {{}}}}", "f.yml")
    without = (await asyncio.to_thread(prepare, loaded, Logger("test"))).enabled[package]
    exporter = without.spec.build(without.config)
    await exporter.start(context)
    with pytest.raises(TypeError, match="path"):
        await exporter.update()
    assert list(exporter.families(exporter.snapshot())) == []


async def test_a_missing_file_is_an_error_of_a_collector(tmp_path: Path) -> None:
    """A missing file is an error of a collector, and an absent source of other exporters; both name the file."""
    missing = tmp_path / "missing"

    class Reader(SysfsExporter[ExporterConfig, str]):
        def read(self, roots: Roots) -> str:
            return missing.read_text()

        def render(self, snapshot: str) -> Iterable[Metric]:
            return ()

    for exporter, error in (
        (CollectorExporter(missing.read_text, CollectorConfig()), CollectorError),
        (Reader(ExporterConfig()), NoData),
    ):
        await exporter.start(lent("a", FakeClock(), tmp_path))
        with pytest.raises(error, match=str(missing)):
            await exporter.update()


def test_the_program_loads_a_collector_that_needs_openssl(package: str, tmp_path: Path) -> None:
    """The daemon runs without OpenSSL, but imports a collector that needs prometheus-client and Python's HTTPS."""
    with (tmp_path / "rack_made_up.py").open("a") as module_file:
        module_file.write("import ssl\nfrom http.client import HTTPSConnection\n")
    (tmp_path / "f.yml").write_text(f"exporters: {{{package}: {{}}}}")
    argv = [sys.executable, "-m", "agent", "--check-config", "--config.file", str(tmp_path / "f.yml")]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert package in done.stdout, done.stderr


def test_only_what_the_configuration_names_is_loaded(package: str) -> None:
    """An installed package is loaded only if the configuration names it; an unknown name is refused with its line."""
    assert package not in prepare(Loaded("", "f.yml"), Logger("test")).enabled
    with pytest.raises(ConfigError, match=r"f.yml:1: .*rack_made: no such exporter; did you mean rack_made_up"):
        prepare(Loaded("exporters: {rack_made: {}}", "f.yml"), Logger("test"))
    assert prepare(Loaded("exporters: {no_exporter: {}}", "f.yml"), Logger("test")).broken == ("no_exporter",)
    with pytest.raises(TypeError, match="neither a Spec nor"):
        load_spec("no_exporter")


async def test_a_scrape_during_an_update_gets_the_last_result() -> None:
    """During an update a scrape gets the previous result; after an update without data it gets no result."""
    reads, go = iter((1, 2)), asyncio.Event()

    class Slow(SysfsExporter[ExporterConfig, int]):
        async def look(self) -> int:
            await go.wait()
            if (number := next(reads, 0)) == 0:
                raise NoData
            return number

        def read(self, roots: Roots) -> int:
            raise NotImplementedError

        def render(self, snapshot: int) -> Iterable[Metric]:
            return ()

    exporter = Slow(ExporterConfig())
    go.set()
    await exporter.update()
    go.clear()
    update = asyncio.ensure_future(exporter.update())
    await asyncio.sleep(0)
    assert exporter.snapshot() == 1
    go.set()
    await update
    assert exporter.snapshot() == 2
    with pytest.raises(NoData):
        await exporter.update()
    assert exporter.snapshot() is None
