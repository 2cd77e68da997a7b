"""Requirements for every exporter."""

from __future__ import annotations

import asyncio
import inspect
import threading
from importlib import import_module
from pathlib import Path

import pytest
from bench import DATA, Bench, exposition
from client_metrics import encode, reference

from agent.app.discovery import exporter_names, load_spec
from agent.app.supervisor import RANKS_BYTES
from agent.core.checkpoint import ENVELOPE_BYTES, MAX_BYTES, MAX_SECTION_BYTES
from agent.core.metrics import Metric
from agent.export.exposition import Selection
from agent.sdk.exporter import NoData

NAMES = exporter_names()
LONGEST_DRAIN_SECONDS = 45.0
"""Limit of each exporter's drain. The supervisor drains exporters in parallel; systemd waits 15 s longer."""


@pytest.fixture(params=NAMES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Provide each exporter on its own data directory."""
    return Bench(request.param, DATA / request.param)


@pytest.fixture(params=NAMES)
def empty_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Provide each exporter on an empty root."""
    return Bench(request.param, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_spec_and_docstring(name: str) -> None:
    """An exporter has a SPEC with its name and plausible times, needs no configuration, and documents its source."""
    spec = load_spec(name)
    assert spec.name == name
    assert len(inspect.getdoc(import_module(f"exporters.{name}")) or "") > 40
    assert 0 < spec.interval_seconds <= 60
    assert 0 < spec.deadline_seconds <= 60
    assert 0 < spec.drain_seconds <= LONGEST_DRAIN_SECONDS
    assert 0 < spec.series_cap <= 100_000
    spec.build(spec.config())  # does not read its source
    assert (DATA / name / "README.md").stat().st_size > 0


def test_every_section_of_the_checkpoint_has_room() -> None:
    """The checkpoint budgets of exporters, rank table and ledger together fit into the checkpoint."""
    exporters = sum(load_spec(name).checkpoint_bytes for name in NAMES)
    assert exporters + RANKS_BYTES + MAX_SECTION_BYTES <= MAX_BYTES - ENVELOPE_BYTES


async def test_empty_root_is_no_data(empty_bench: Bench) -> None:
    """Without its source an update raises NoData, and no series has a rank, a job or a device."""
    with pytest.raises(NoData):
        await empty_bench.look()
    subjects = {"job_id", "rank", "comm", "gpu", "device"}
    for family in empty_bench.families(empty_bench.exporter.snapshot()):
        assert not (subjects & set(family.family.labels) and family.labels), family.family.name
    await empty_bench.end()


def test_golden_exposition(bench: Bench, request: pytest.FixtureRequest) -> None:
    """On its data directory an exporter gives expected.prom; both text formats equal prometheus-client's output."""

    async def look() -> list[Metric]:
        families = bench.families(await bench.look())
        await bench.end()
        return families

    families, expected = asyncio.run(look()), DATA / bench.spec.name / "expected.prom"
    page = exposition(families)
    if request.config.getoption("--update-golden"):
        expected.write_text(page)
    assert page == expected.read_text()
    for openmetrics in (False, True):
        body = encode(families, Selection(openmetrics=openmetrics)).body
        assert body == reference(families, openmetrics_format=openmetrics)
    check_as_declared(bench, families)


def check_as_declared(bench: Bench, families: list[Metric]) -> None:
    """Check that every family is in SPEC.families with its labels, and that all their series stay within the limit."""
    assert len({family.family.name for family in families}) == len(families)
    for family in families:
        assert family.family in bench.spec.families
        assert len(family.labels) == len(family.values)
        for labels in family.labels:
            assert len(labels) == len(family.family.labels)
            assert all(isinstance(value, str) for value in labels)
    series = sum(len(family.labels) for family in families)
    assert series <= bench.spec.series_cap
    assert series or bench.spec.name in ("marks", "storage")  # marks need users, and storage's paths need this machine


async def test_families_are_pure_and_a_drain_is_quick(bench: Bench) -> None:
    """A snapshot gives the same text after later updates and a drain; the drain and all threads end in time."""
    before = set(threading.enumerate())
    snapshot = await bench.look()
    first = exposition(bench.families(snapshot))
    await bench.exporter.update()
    assert exposition(bench.families(snapshot)) == first
    async with asyncio.timeout(bench.spec.drain_seconds):
        await bench.end()
        while set(threading.enumerate()) - before:  # nothing signals the end of threads
            await asyncio.sleep(0.005)
    assert exposition(bench.families(snapshot)) == first
