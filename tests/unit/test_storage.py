"""Storage: probes, hanging paths, and metrics."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent, stop_all

from agent.hardware.ledger import CheckState, HealthLedger
from agent.helper.client import Helpers
from agent.sdk.exporter import NoData
from exporters.storage import StorageConfig, StorageExporter, probe as module
from exporters.storage.exporter import ABSENT_SECONDS, DUMP_SECONDS, levels
from exporters.storage.probe import Probe, ProbeRequest, probe


@pytest.fixture(autouse=True)
def _no_probers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_probers", {})


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Provide a fake file system; its paths with "slow" reply once the test sets the event."""
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
    """An existing path succeeds with the free share of its file system; a missing path fails."""
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    paths = [str(tmp_path), str(tmp_path / "file"), str(tmp_path / "fifo"), str(tmp_path / "none")]
    states = probe(ProbeRequest(paths), b"")
    assert [item.ok for item in states] == [True, True, True, False]
    assert states[0].free is not None
    assert (0.0 < states[0].free <= 1.0, states[3].free) == (True, None)
    for path in (paths[0], paths[3]):  # a path that is named twice is probed once, as a required path
        assert [item.path for item in probe(ProbeRequest([path], [path]), b"")] == [path]


def test_a_path_that_hangs_costs_no_other(tmp_path: Path, gate: threading.Event) -> None:
    """If one path hangs, the others are probed at each look, and the hanging path gets no second probe."""
    (tmp_path / "slow").mkdir()
    request = ProbeRequest([str(tmp_path / "slow"), str(tmp_path)])
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


def test_an_optional_path_that_is_missing_is_left_out(tmp_path: Path, gate: threading.Event) -> None:
    """An optional path has no result if it is missing. If it hangs, or fails with another error, it has a result."""
    path = tmp_path / "slow"

    def results() -> list[tuple[bool | None, bool]]:
        states = probe(ProbeRequest([], [str(path)]), b"")
        return [(item.ok, item.under_way_seconds > 0) for item in states]

    gate.set()
    assert results() == []
    path.mkdir()
    assert results() == [(True, False)]
    path.rmdir()
    assert results() == []
    gate.clear()
    assert results() == [(False, True)]
    gate.set()
    module._probers[str(path)].wait(time.monotonic() + 30.0)
    path.symlink_to(path)
    assert results() == [(False, False)]


def test_series_of_paths() -> None:
    """One path succeeds, another never has succeeded, and a third hangs after a success."""
    probes = (
        Probe("/a", ok=True, seconds=0.1, under_way_seconds=0.0, free=0.5),
        Probe("/b", ok=None, seconds=0.0, under_way_seconds=3.0),
        Probe("/c", ok=True, seconds=0.1, under_way_seconds=30.0, free=0.5),
    )
    shown = samples(StorageExporter(StorageConfig()).families(probes))
    success, duration = "rankwatch_storage_probe_success", "rankwatch_storage_probe_duration_seconds"
    values = {(sample.name, sample.labels["path"]): sample.value for sample in shown}
    assert values == {(success, "/a"): 1, (success, "/c"): 0, (duration, "/a"): 0.1, (duration, "/c"): 30.0}


class Node:
    """The exporter with a real helper."""

    def __init__(self, root: Path, **section: object) -> None:
        self.clock = FakeClock()
        self.ledger = HealthLedger(self.clock)
        self.exporter = StorageExporter(msgspec.convert({"dump_paths": [], **section}, StorageConfig))
        self.helpers = Helpers(self.clock)
        checks = self.ledger.of("storage")
        self.context = lent("storage", self.clock, root, checks=checks, helper=self.helpers.lend)

    @asynccontextmanager
    async def under_way(self) -> AsyncIterator[StorageExporter]:
        await self.exporter.start(self.context)
        try:
            yield self.exporter
        finally:
            await self.exporter.drain()
            await stop_all(self.helpers)

    async def look(self) -> tuple[Probe, ...]:
        async with self.under_way() as exporter:
            await exporter.update()
        return self.exporter.snapshot()

    def checks(self) -> dict[str, bool]:
        return {entry.check: entry.finding.state is CheckState.OK for entry in self.ledger.entries()}


@pytest.fixture
def lustre(tmp_path: Path) -> Path:
    """Provide a root with an unhealthy Lustre."""
    (tmp_path / "sys/fs/lustre").mkdir(parents=True)
    (tmp_path / "sys/fs/lustre/health_check").write_text("device lustre-OST0000 reported unhealthy\nNOT HEALTHY\n")
    return tmp_path


async def test_checks_of_missing_paths_end(lustre: Path) -> None:
    """If Lustre is unloaded and a full directory is deleted, their checks end; then there is no data."""
    dumps = lustre / "dumps"
    await asyncio.to_thread(dumps.mkdir)
    node = Node(lustre, dump_paths=[str(dumps)], full_ratio=1.0)
    async with node.under_way() as exporter:
        await exporter.update()
        assert node.checks() == {"dump_disk_full": False, "lustre_unhealthy": False}
        await asyncio.to_thread((lustre / "sys/fs/lustre/health_check").unlink)
        await exporter.update()
        assert node.checks() == {"dump_disk_full": False}
        await asyncio.to_thread(dumps.rmdir)
        node.clock.advance(DUMP_SECONDS)
        with pytest.raises(NoData):
            await exporter.update()
        assert node.checks() == {}
        await asyncio.to_thread(dumps.mkdir)
        node.clock.advance(DUMP_SECONDS)
        await exporter.update()
        assert node.checks() == {"dump_disk_full": False}


async def test_a_node_without_dump_paths_is_looked_at_seldom(tmp_path: Path) -> None:
    """Without paths there is no data; a missing dump directory is probed only every ABSENT_SECONDS."""
    with pytest.raises(NoData):
        await Node(tmp_path).look()
    node = Node(tmp_path, dump_paths=[str(tmp_path / "dumps")])
    async with node.under_way() as exporter:
        for _ in range(3):
            with pytest.raises(NoData):
                await exporter.update()
        await asyncio.to_thread((tmp_path / "dumps").mkdir)
        node.clock.advance(ABSENT_SECONDS - 1.0)
        with pytest.raises(NoData):
            await exporter.update()
        node.clock.advance(1.0)
        (helper,) = node.helpers.all()
        for _ in range(2):  # in the meantime the helper ends, and its results stay
            await exporter.update()
            assert (helper.calls["ok"], [item.path for item in exporter.snapshot()]) == (2, [str(tmp_path / "dumps")])
            assert node.checks() == {"dump_disk_full": True}
        async with asyncio.timeout(10.0):
            while helper._process is not None and not helper._process.is_gone:
                await asyncio.sleep(0.01)
        node.clock.advance(DUMP_SECONDS)
        await exporter.update()
        assert helper.calls["ok"] == 3


async def test_the_agent_itself_touches_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the helper touches the paths."""
    path = str(tmp_path / "dumps")
    await asyncio.to_thread(os.mkdir, path)
    touched = []

    def watched(call: Callable[..., object]) -> Callable[..., object]:
        def watch(*args: object, **named: object) -> object:
            touched.extend(name for arg in args if (name := str(arg)).startswith(path))
            return call(*args, **named)

        return watch

    for name in ("stat", "lstat", "open", "scandir", "listdir", "statvfs", "access"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    states = await Node(tmp_path, paths=[path + "/none"], dump_paths=[path]).look()
    assert ([(item.path, item.ok) for item in states], touched) == ([(path + "/none", False), (path, True)], [])


def probed(path: str, ok: bool | None, under_way_seconds: float = 0.0, free: float | None = None) -> Probe:
    """Return the result of a probe."""
    return Probe(path, ok, 0.1, under_way_seconds, free=free)


def test_one_check_covers_several_paths() -> None:
    """A path that fails or hangs fails its check, and so does a full directory; without a result there is no check."""
    config = StorageConfig(paths=["/a", "/b"], dump_paths=["/d", "/e"])
    well = [probed("/a", ok=True, free=0.5), probed("/d", ok=True, free=0.5)]

    def judged(*probes: Probe) -> dict[str, bool]:
        return {check: state is CheckState.OK for (_, check), state in levels(config, probes, None).items()}

    assert judged(*well) == {"storage_failed": True, "dump_disk_full": True}
    late = Probe("/b", ok=True, seconds=10.1, under_way_seconds=0.0)  # ended between two polls
    for bad in (probed("/b", ok=False), probed("/b", ok=True, under_way_seconds=10.1), probed("/b", None, 10.1), late):
        assert judged(*well, bad) == judged(bad, *well) == {"storage_failed": False, "dump_disk_full": True}
    for free, is_full in ((0.049, True), (0.05, False)):
        full = probed("/e", ok=True, free=free)
        assert judged(*well, full) == judged(full, *well) == {"storage_failed": True, "dump_disk_full": not is_full}
    assert judged(probed("/b", None, 9.9), probed("/e", ok=False)) == {}


@pytest.mark.parametrize(("blocks", "inodes", "share"), [
    ((49, 1000), (50, 100), 0.049), ((500, 1000), (4, 100), 0.04), ((0, 0), (0, 0), 1.0),
])  # fmt: skip
def test_free_share(
    blocks: tuple[int, int], inodes: tuple[int, int], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free share is the smaller one of bytes and inodes; without a total number it is 1."""
    info = SimpleNamespace(f_bavail=blocks[0], f_blocks=blocks[1], f_favail=inodes[0], f_files=inodes[1])
    monkeypatch.setattr(os, "statvfs", lambda _: info)
    assert module.free_share("/x") == share
