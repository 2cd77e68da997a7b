"""AMD's GPUs: what is read of them, what is wrong with them, and who uses them."""

import asyncio
import shutil
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import failed, lent, well

from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.sdk.exporter import StateSection
from agent.sdk.hardware import fault_table
from exporters.amdgpu import AmdgpuConfig, AmdgpuExporter, tree as module
from exporters.amdgpu.baseline import Known, RasErrors, View, verdicts
from exporters.amdgpu.families import AmdgpuSnapshot, render
from exporters.amdgpu.tree import RawGpu, read_gpus, read_users, read_versions

DATA = Path(__file__).parents[1] / "data" / "amdgpu"
WELL = RawGpu("0000:c1:00.0", (), -1, "a", "", {}, {}, {})


def view(raw: RawGpu | None) -> View:
    """A GPU as it is shown."""
    return View(0, "0000:c1:00.0", Known("a", ""), raw)


def test_what_is_wrong_with_a_gpu() -> None:
    """Each check is made where its values are known."""
    limit = {"temp/junction/input": 100e3, "temp/junction/crit": 100e3}
    cases: list[tuple[dict[str, object], dict[str, bool]]] = [
        ({}, {}),
        ({"errors": {"umc": {"ue": 0, "ce": 9}}}, {"gpu_ecc_uncorrectable": True}),
        ({"errors": {"gfx": {"ue": 1}}}, {"gpu_ecc_uncorrectable": False}),
        ({"errors": {"xgmi_wafl": {"ue": 1}}}, {"gpu_ecc_uncorrectable": True, "xgmi_errors": False}),
        ({"values": {"pcie_width": 8.0, "pcie_max_width": 16.0}}, {"pcie_degraded": False}),
        ({"values": {"pcie_width": 16.0, "pcie_max_width": 16.0}}, {"pcie_degraded": True}),
        ({"values": {"pcie_width": 8.0}}, {}),
        ({"sensors": limit}, {"gpu_hot": False}),
        ({"sensors": {"temp/junction/input": 100e3}}, {}),
    ]
    for raw, expected in cases:
        assert well(verdicts(view(msgspec.structs.replace(WELL, **raw)))) == {"gpu_lost": True} | expected
    assert well(verdicts(view(None))) == {"gpu_lost": False}


def test_errors_of_the_memory_are_shown_as_on_other_gpus() -> None:
    """Corrected and uncorrected errors of the memory have the series of all makers, deferred ones have not."""
    raw = msgspec.structs.replace(WELL, errors={"umc": {"ue": 1, "ce": 2, "de": 3}})
    shown = [sample for sample in samples(render(AmdgpuSnapshot((view(raw),), {}))) if "gpu_ecc_errors" in sample.name]
    found = {(each.labels["type"], each.labels["lifetime"]): each.value for each in shown}
    assert found == {("uncorrected", "volatile"): 1, ("corrected", "volatile"): 2}


def test_an_attribute_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    """Without one attribute, or with nonsense in it, all others are as they were."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    for file in ("gpu_busy_percent", "unique_id", "ras/umc_err_count", "hwmon/hwmon4/temp2_input"):
        before, attribute = read_gpus(tmp_path / "sys")[1], tmp_path / "sys/class/drm/card1/device" / file
        for change in (partial(attribute.write_text, "nonsense, -1\n"), attribute.unlink):
            change()
            after = read_gpus(tmp_path / "sys")[1]
            assert after != before
            lacks = [set(getattr(before, part)) - set(getattr(after, part)) for part in ("values", "sensors", "errors")]
            assert sum(map(len, lacks)) == (0 if file == "unique_id" else 1)


def test_what_lies_beyond_the_limits_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU, block or process more than the limits is left out."""
    for limit in ("MAX_GPUS", "MAX_BLOCKS", "MAX_PROCESSES"):
        monkeypatch.setattr(module, limit, 1)
    (gpu,) = read_gpus(DATA / "sys")
    assert len(gpu.errors) == 1
    monkeypatch.setattr(module, "MAX_GPUS", 2)
    assert list(read_users(DATA / "sys")) == [4711]


class Node:
    """The exporter over a tree, with its tables."""

    def __init__(self, root: Path, state: StateSection) -> None:
        clock = FakeClock()
        self.ledger, self.hardware = HealthLedger(clock), Hardware()
        self.exporter = AmdgpuExporter(AmdgpuConfig())
        self.context = lent("amdgpu", clock, root, state=state, checks=self.ledger.of("amdgpu"), hardware=self.hardware)

    async def look(self, *changes: Callable[[], object]) -> None:
        await self.exporter.start(self.context)
        try:
            await self.exporter.update()
            for change in changes:
                await asyncio.to_thread(change)
                await self.exporter.update()
        finally:
            await self.exporter.drain()

    def series(self, part: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for each in samples(self.exporter.families(self.exporter.snapshot())):
            if part in each.name:
                found.setdefault(each.name, []).append(each.value)
        return found

    def failed(self) -> set[tuple[str, str]]:
        return {(each.subject.name, each.check) for each in failed(self.ledger)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the made-up node."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    return tmp_path


async def test_a_gpu_that_is_lost(root: Path) -> None:
    """It stays known over a restart of the agent, and its number with it; damaged, the past is learnt anew."""
    first = Node(root, StateSection("amdgpu", None))
    await first.look()
    assert first.failed() == {("90a1b2c3d4e5f607", check) for check in ("gpu_ecc_uncorrectable", "pcie_degraded")}
    assert [gpu.uuid for gpu in first.hardware.gpus_of(4711)] == ["1a2b3c4d5e6f7081"]
    await first.look(partial(shutil.rmtree, root / "sys/class/drm/card1"))
    assert len(first.hardware.gpus()) == 2
    again = Node(root, StateSection("amdgpu", first.context.state.published))
    await again.look()
    assert ("1a2b3c4d5e6f7081", "gpu_lost") in again.failed()
    present = {
        (sample.labels["gpu"], sample.labels["gpu_uuid"]): sample.value
        for sample in samples(again.exporter.families(again.exporter.snapshot()))
        if sample.name == "rankwatch_gpu_present"
    }
    assert present == {("0", "90a1b2c3d4e5f607"): 1, ("1", "1a2b3c4d5e6f7081"): 0}
    damaged = Node(root, StateSection("amdgpu", b"\xc1"))
    await damaged.look()
    assert ("1a2b3c4d5e6f7081", "gpu_lost") not in damaged.failed()


NO_LINKS = (0xFFFF,) * 5
LINKS_DOWN = {("1a2b3c4d5e6f7081", "xgmi_down")}


def write_table(root: Path, links: Iterable[int], cycles: int = 0, memory: int = 0) -> None:
    """Have the second GPU's table (v1.7) say this."""
    raw = bytearray(b"\xff" * 2208)
    struct.pack_into("<HBB", raw, 0, len(raw), 1, 7)
    struct.pack_into("<I", raw, 40, cycles)
    struct.pack_into("<I", raw, 80, memory)
    struct.pack_into("<8H", raw, 264, *links)
    (root / "sys/class/drm/card1/device/gpu_metrics").write_bytes(raw)


async def test_xgmi_links(root: Path) -> None:
    """A link is down that was up at some time, also before a restart; one that never was is not connected."""
    await asyncio.to_thread(write_table, root, (1, 1, 0, *NO_LINKS))
    first = Node(root, StateSection("amdgpu", None))
    await first.look()
    assert first.failed() & LINKS_DOWN == set()
    await asyncio.to_thread(write_table, root, (1, 0, 0, *NO_LINKS))
    again = Node(root, StateSection("amdgpu", first.context.state.published))
    await again.look()
    assert again.failed() & LINKS_DOWN == LINKS_DOWN
    await asyncio.to_thread(write_table, root, (1, 1, 0, *NO_LINKS))
    await again.look()
    assert again.failed() & LINKS_DOWN == set()


async def test_the_memorys_share_between_looks(root: Path) -> None:
    """From the second look on the share of its bandwidth is shown, and not while the GPU's table cannot be read."""
    node = Node(root, StateSection("amdgpu", None))
    shown = []
    for cycles, memory in ((1000, 0), (2000, 30_000), (3000, 90_000)):
        await asyncio.to_thread(write_table, root, (0xFFFF,) * 8, cycles, memory)
        await node.look()
        shown.append(node.series("dram_active"))
    await asyncio.to_thread((root / "sys/class/drm/card1/device/gpu_metrics").unlink)
    await node.look()
    family = "rankwatch_gpu_dram_active_ratio"
    assert [*shown, node.series("dram_active")] == [{}, {family: [0.3]}, {family: [0.6]}, {}]


def test_uncorrectable_errors_that_rise_are_told() -> None:
    """By block, when there are more than at the look before; what a first look finds is of any time."""
    seen = RasErrors()
    for seconds, umc, links in ((1.0, 5, 0), (2.0, 5, 0), (3.0, 6, 1), (4.0, 0, 1)):
        errors = {"umc": {"ue": umc, "ce": int(seconds)}, "xgmi_wafl": {"ue": links}, "gfx": {"ue": 9}}
        seen.look([msgspec.structs.replace(WELL, errors=errors)], seconds)
    told = [(each.fault.meaning, each.last_seconds) for each in seen.faults[WELL.pci]]
    assert sorted(told) == [("uncorrectable errors (umc)", 3.0), ("uncorrectable errors on XGMI", 3.0)]
    seen.look([], 4.0 + fault_table.MAX_AGE_SECONDS)
    assert seen.faults[WELL.pci] == []


def test_versions(tmp_path: Path) -> None:
    """The driver has a version unless it is the kernel's own; ROCm has one in either place; other text is none."""
    assert read_versions(DATA / "sys", DATA / "opt/rocm") == ("6.10.5", "6.4.1-83")
    assert read_versions(tmp_path, tmp_path) == ("", "")
    for number, place in enumerate(("module/amdgpu/version", "core/.info/version", ".info/version")):
        (tmp_path / place).parent.mkdir(parents=True)
        for text in ("6 (odd)", "6" * 65, f"{number}" * 64):
            (tmp_path / place).write_text(f"{text}\n")
            found = read_versions(tmp_path, tmp_path)[min(number, 1)]
            assert found == (text if len(text) == 64 else ""), (place, text)
        (tmp_path / place).write_text("")
