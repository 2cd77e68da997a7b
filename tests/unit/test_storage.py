"""Storage: what a probe does, what a hanging one costs, and what is told of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent

from agent.api import NoData
from agent.checks import HealthLedger
from exporters.storage import StorageConfig, StorageExporter
from exporters.storage import probe as module
from exporters.storage.exporter import MAX_PATHS
from exporters.storage.families import Snapshot, render
from exporters.storage.probe import Probe, Request, Room, probe

ROOM = Room(1000, 500, 100, 50)


@pytest.fixture(autouse=True)
def _no_probers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_probers", {})


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A file system (made up: none that hangs is to be had) whose paths with "slow" answer when the gate opens."""
    event, touch = threading.Event(), module.touch

    def slow(path: str) -> None:
        if "slow" in path:
            event.wait()
        touch(path)

    monkeypatch.setattr(module, "touch", slow)
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)
    yield event
    event.set()


def test_directories_files_and_what_is_neither(tmp_path: Path) -> None:
    """A directory and a file answer, with the room of their file system; what is missing or forbidden says why."""
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path), str(tmp_path / "file"), str(tmp_path / "fifo"), str(tmp_path / "none")]
    found = probe(Request(paths), b"")
    assert [(each.ok, each.error) for each in found] == [
        (True, ""),
        (True, ""),
        (True, ""),
        (False, "No such file or directory"),
    ]
    room, expected = found[0].room, os.statvfs(tmp_path)
    assert room is not None
    assert (room.size_bytes, room.inodes) == (expected.f_blocks * expected.f_frsize, expected.f_files)
    assert 0 < room.available_bytes <= room.size_bytes
    assert found[3].room is None


def test_a_path_that_hangs_costs_no_other(tmp_path: Path, gate: threading.Event) -> None:
    """While one path does not answer the others do, look after look; no second probe of it is begun."""
    (tmp_path / "slow").mkdir()
    request = Request([str(tmp_path / "slow"), str(tmp_path)])
    threads = threading.active_count()
    for _ in range(3):
        slow, quick = probe(request, b"")
        assert (slow.ok, slow.under_way_seconds > 0, quick.ok) == (None, True, True)
    assert threading.active_count() == threads + 1
    gate.set()
    module._probers[request.paths[0]].wait(time.monotonic() + 30.0)
    slow, _ = probe(request, b"")
    assert slow.ok is True
    assert slow.seconds > 0


def series(
    *probes: Probe, hung: frozenset[str] = frozenset(), lustre: bool | None = None
) -> dict[tuple[str, ...], float]:
    """The series of these, by family (without its prefix) and labels."""
    return {
        (sample.name.removeprefix("rankwatch_"), *sample.labels.values()): sample.value
        for family in render(Snapshot(probes, hung, lustre))
        for sample in family.samples
    }


def test_series_of_paths() -> None:
    """One that answers, one that never did, one that hangs after it had answered."""
    found = series(
        Probe("/a", ok=True, seconds=0.1, under_way_seconds=0.0, room=ROOM),
        Probe("/b", ok=None, seconds=0.0, under_way_seconds=3.0),
        Probe("/c", ok=True, seconds=0.1, under_way_seconds=30.0, room=ROOM),
        hung=frozenset({"/c"}),
        lustre=False,
    )
    assert {key[1]: value for key, value in found.items() if key[0] == "storage_probe_success"} == {"/a": 1, "/c": 0}
    assert {key[1]: value for key, value in found.items() if key[0] == "storage_probe_hung"} == {
        "/a": 0,
        "/b": 0,
        "/c": 1,
    }
    assert found["storage_probe_duration_seconds", "/c"] == 30.0
    assert found["storage_available_bytes", "/a"] == 500
    assert found["lustre_healthy",] == 0


class Node:
    """The exporter with a real helper."""

    def __init__(self, root: Path, **section: object) -> None:
        clock = FakeClock()
        self.ledger = HealthLedger(clock)
        self.exporter = StorageExporter(msgspec.convert({"dump_paths": [], **section}, StorageConfig))
        self.context = lent("storage", clock, root, checks=self.ledger.of("storage"))

    async def look(self) -> Snapshot:
        """Start, look once and end."""
        await self.exporter.start(self.context)
        try:
            await self.exporter.update()
        finally:
            await self.exporter.drain()
        return self.exporter.snapshot()

    def checks(self) -> dict[str, bool]:
        """What was told."""
        return {each.check: each.finding.ok for each in self.ledger.entries()}


@pytest.fixture
def lustre(tmp_path: Path) -> Path:
    """A root whose Lustre is not well."""
    (tmp_path / "sys/fs/lustre").mkdir(parents=True)
    (tmp_path / "sys/fs/lustre/health_check").write_text("device lustre-OST0000 reported unhealthy\nNOT HEALTHY\n")
    return tmp_path


async def test_a_real_helper_probes(lustre: Path) -> None:
    """Paths that answer are well, one that is missing fails; a dump directory nobody made is no fault."""
    node = Node(lustre, paths=[str(lustre)], dump_paths=[str(lustre), str(lustre / "none")])
    found = await node.look()
    assert [(each.path, each.ok) for each in found.probes] == [(str(lustre), True)]
    assert node.checks() == {"storage_failed": True, "dump_disk_full": True, "lustre_unhealthy": False}
    missing = Node(lustre, paths=[str(lustre / "none")], full_ratio=1.0, dump_paths=[str(lustre)])
    await missing.look()
    assert missing.checks() == {"storage_failed": False, "dump_disk_full": False, "lustre_unhealthy": False}


async def test_nothing_to_look_at_is_no_data(tmp_path: Path) -> None:
    """Without Lustre, and with no path or none that is there, there is no data."""
    for section in ({}, {"dump_paths": [str(tmp_path / "none")]}):
        with pytest.raises(NoData):
            await Node(tmp_path, **section).look()


@pytest.mark.parametrize(
    "section",
    [
        {"paths": ["relative"]},
        {"paths": [f"/{number}" for number in range(MAX_PATHS + 1)]},
        {"paths": ["/" + "a" * 255]},
        {"deadline_seconds": 0},
        {"full_ratio": 1.1},
    ],
)
def test_a_configuration_that_is_none_is_refused(section: dict[str, object]) -> None:
    """Paths are absolute, few and short; times and ratios are in range."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, StorageConfig)
