"""AMD's GPUs: their values, their faults and their users."""

import asyncio
import shutil
import struct
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

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
from exporters.amdgpu.metrics_table import MAX_CYCLES, LoweredSeconds, Table, memory_active, read_table
from exporters.amdgpu.tree import RawGpu, read_gpus, read_users, read_versions

DATA = Path(__file__).parents[1] / "data" / "amdgpu"
WELL = RawGpu("0000:c1:00.0", (), -1, "a", "", {}, {}, {})


def view(raw: RawGpu | None) -> View:
    """Return the view of a GPU."""
    return View(0, "0000:c1:00.0", Known("a", ""), raw)


def test_what_is_wrong_with_a_gpu() -> None:
    """Each check is made only if its values are known."""
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


def test_an_attribute_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    """An attribute that is missing or invalid removes only its own value."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    for file in ("gpu_busy_percent", "unique_id", "ras/umc_err_count", "hwmon/hwmon4/temp2_input"):
        before, attribute = read_gpus(tmp_path / "sys")[1], tmp_path / "sys/class/drm/card1/device" / file
        for change in (partial(attribute.write_text, "nonsense, -1\n"), attribute.unlink):
            change()
            after = read_gpus(tmp_path / "sys")[1]
            assert after != before
            missing = [
                set(getattr(before, part)) - set(getattr(after, part)) for part in ("values", "sensors", "errors")
            ]
            assert sum(map(len, missing)) == (0 if file == "unique_id" else 1)


def test_what_lies_beyond_the_limits_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, block or process with memory of a GPU above its limit is left out."""
    for limit in ("MAX_GPUS", "MAX_BLOCKS", "MAX_PROCESSES"):
        monkeypatch.setattr(module, limit, 1)
    (gpu,) = read_gpus(DATA / "sys")
    assert len(gpu.errors) == 1
    monkeypatch.setattr(module, "MAX_GPUS", 2)
    assert list(read_users(DATA / "sys")) == [4711]
    monkeypatch.setattr(module, "MAX_PROCESSES", 2)
    processes = tmp_path / "class/kfd/kfd/proc"
    shutil.copytree(DATA / "sys/class/kfd", tmp_path / "class/kfd")
    for pid in "123":  # processes without memory of a GPU: every process that opens /dev/kfd
        shutil.copytree(processes / "4711", processes / pid)
        for file in (processes / pid).glob("vram_*"):
            file.write_text("0\n")
    assert list(read_users(tmp_path)) == list(read_users(DATA / "sys"))


class Node:
    """The exporter with a copy of the tree, and its tables."""

    def __init__(self, root: Path, past: bytes | None = None) -> None:
        clock = FakeClock()
        self.ledger, self.hardware = HealthLedger(clock), Hardware()
        self.exporter = AmdgpuExporter(AmdgpuConfig())
        state = StateSection("amdgpu", past)
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

    def series(self, part: str) -> dict[tuple[str, ...], float]:
        """Return the series of families with ``part`` in their name, keyed by name, GPU and UUID."""
        shown = samples(self.exporter.families(self.exporter.snapshot()))
        keys = ("gpu", "gpu_uuid")
        return {
            (entry.name, *(entry.labels[key] for key in keys)): entry.value for entry in shown if part in entry.name
        }

    def failed(self) -> set[tuple[str, str]]:
        return {(entry.subject.name, entry.check) for entry in failed(self.ledger)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Provide a copy of the recorded node."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    return tmp_path


async def test_a_gpu_that_is_lost(root: Path) -> None:
    """A lost GPU keeps its number after a restart of the agent; a damaged checkpoint is ignored."""
    first = Node(root)
    await first.look()
    assert first.failed() == {("90a1b2c3d4e5f607", check) for check in ("gpu_ecc_uncorrectable", "pcie_degraded")}
    assert [gpu.uuid for gpu in first.hardware.gpus_of(4711)] == ["1a2b3c4d5e6f7081"]
    await first.look(partial(shutil.rmtree, root / "sys/class/drm/card1"))
    assert len(first.hardware.gpus()) == 2
    again = Node(root, first.context.state.published)
    await again.look()
    assert ("1a2b3c4d5e6f7081", "gpu_lost") in again.failed()
    present = {key[1:]: value for key, value in again.series("gpu_present").items()}
    assert present == {("0", "90a1b2c3d4e5f607"): 1, ("1", "1a2b3c4d5e6f7081"): 0}
    damaged = Node(root, b"\xc1")
    await damaged.look()
    assert ("1a2b3c4d5e6f7081", "gpu_lost") not in damaged.failed()


async def test_a_gpu_keeps_its_uuid(root: Path) -> None:
    """A GPU whose driver refuses the id (as during a reset) keeps its UUID; the checks of a replaced GPU end."""
    node, path = Node(root), root / "sys/class/drm/card1/device/unique_id"
    for change, uuid in ((path.unlink, "1a2b3c4d5e6f7081"), (partial(path.write_text, "ab\n"), "ab")):
        await node.look(change)
        assert {key[2] for key in node.series("gpu_present")} == {"90a1b2c3d4e5f607", uuid}
        assert {entry.subject.name for entry in node.ledger.entries()} == {"90a1b2c3d4e5f607", uuid}


NO_LINKS = (0xFFFF,) * 5


def write_table(root: Path, links: Iterable[int], cycles: int = 0, memory: int = 0) -> None:
    """Write the second GPU's metrics table (v1.7) with these values."""
    raw = bytearray(b"\xff" * 2208)
    struct.pack_into("<HBB", raw, 0, len(raw), 1, 7)
    struct.pack_into("<I", raw, 40, cycles)
    struct.pack_into("<I", raw, 80, memory)
    struct.pack_into("<8H", raw, 264, *links)
    (root / "sys/class/drm/card1/device/gpu_metrics").write_bytes(raw)


async def test_xgmi_links(root: Path) -> None:
    """A link that was up is reported as down when it fails, even after a restart; a link that was never up is not."""
    node = Node(root)
    for links, restarts, down in (((1, 1, 0), False, False), ((1, 0, 0), True, True), ((1, 1, 0), False, False)):
        await asyncio.to_thread(write_table, root, (*links, *NO_LINKS))
        node = Node(root, node.context.state.published) if restarts else node
        await node.look()
        assert (("1a2b3c4d5e6f7081", "xgmi_down") in node.failed()) == down


async def test_the_memorys_share_between_looks(root: Path) -> None:
    """The used share of memory bandwidth has a series from the second look on, and none without file gpu_metrics."""
    node = Node(root)
    for cycles, memory, share in ((1000, 0, []), (2000, 30_000, [0.3]), (3000, 90_000, [0.6]), (4000, None, [])):
        if memory is None:
            await asyncio.to_thread((root / "sys/class/drm/card1/device/gpu_metrics").unlink)
        else:
            await asyncio.to_thread(write_table, root, (0xFFFF,) * 8, cycles, memory)
        await node.look()
        assert [*node.series("gpu_active_ratio").values()] == share


def test_rising_uncorrectable_errors_are_exported() -> None:
    """A rise of uncorrectable errors since the last look is reported by block; the first look reports none."""
    seen = RasErrors()
    for seconds, umc, links in ((1.0, 5, 0), (2.0, 5, 0), (3.0, 6, 1), (4.0, 0, 1)):
        errors = {"umc": {"ue": umc, "ce": int(seconds)}, "xgmi_wafl": {"ue": links}, "gfx": {"ue": 9}}
        seen.look([msgspec.structs.replace(WELL, errors=errors)], seconds)
    meanings = [(entry.fault.meaning, entry.last_seconds) for entry in seen.faults[WELL.pci]]
    assert sorted(meanings) == [("uncorrectable errors (umc)", 3.0), ("uncorrectable errors on XGMI", 3.0)]
    seen.look([], 4.0 + fault_table.MAX_AGE_SECONDS)
    assert seen.faults[WELL.pci] == []


def test_versions(tmp_path: Path) -> None:
    """A driver that is part of the kernel has no version; ROCm's version is in one of two files."""
    assert read_versions(DATA / "sys", DATA / "opt/rocm") == ("6.10.5", "6.4.1-83")
    assert read_versions(tmp_path, tmp_path) == ("", "")
    for number, location in enumerate(("module/amdgpu/version", "core/.info/version", ".info/version")):
        (tmp_path / location).parent.mkdir(parents=True)
        for text in ("6 (odd)", "6" * 65, f"{number}" * 64):
            (tmp_path / location).write_text(f"{text}\n")
            numbers = read_versions(tmp_path, tmp_path)[min(number, 1)]
            assert numbers == (text if len(text) == 64 else ""), (location, text)
        (tmp_path / location).write_text("")


ALL = ("hw_slowdown", "sw_power_cap", "hw_thermal_slowdown", "hw_thermal_slowdown_vr", "hw_thermal_slowdown_hbm")


def table(content: int, values: dict[int, bytes], *, form: int = 1, size: int = 400) -> bytes:
    """Return a table with ``values`` at their offsets; every other field is empty."""
    raw = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", raw, 0, size, form, content)
    for offset, value in values.items():
        raw[offset : offset + len(value)] = value
    return bytes(raw)


CYCLES = struct.pack("<6I", 1000, 1, 2, 3, 4, 5)
LOWERED = dict(zip(ALL, range(1, 6), strict=True))
MEMORY = struct.pack("<I", 6000)
LINKS = struct.pack("<8H", 1, 0, 1, 1, 1, 2, 0xFFFF, 0xFFFF)
STATES = {0: True, 1: False, 2: True, 3: True, 4: True}


def test_tables() -> None:
    """Each layout is read at its own offsets; an empty field is absent; an unknown layout or a short table is None."""
    whole = {40: CYCLES, 80: MEMORY, 264: LINKS}
    tables: list[tuple[bytes, Table | None]] = [
        (table(6, {32: CYCLES, 72: MEMORY}), Table(1000, LOWERED, 6000)),
        (table(7, whole), Table(1000, LOWERED, 6000, STATES)),
        (table(8, whole), Table(1000, LOWERED, 6000, STATES)),
        (table(6, {32: CYCLES[:8]}), Table(1000, {"hw_slowdown": 1})),
        (table(6, {}), Table()),
        (table(5, whole), None),
        (table(9, whole), None),
        (table(7, whole, form=2), None),
        (table(7, whole)[:-1], None),
        (table(6, {}, size=40), None),
        (b"", None),
        (b"text", None),
    ]
    for raw, expected in tables:
        assert read_table(raw) == expected


def at(cycles: int | None, slowdown: int | None = None) -> Table:
    """Return a table with these counts of cycles and of cycles with lowered clocks."""
    return Table(cycles, {} if slowdown is None else {"hw_slowdown": slowdown})


def test_how_long_the_clocks_were_lowered() -> None:
    """A reason's time grows by its share of the cycles, even if counters wrap; if counters restart, the time stays."""
    cases: list[tuple[list[Table], float | None]] = [
        ([at(100, 7)], 0.0),
        ([at(100, 7), at(1100, 257)], 2.5),
        ([at(2**32 - 500, 2**32 - 2), at(500, 498)], 5.0),
        ([at(9000, 9000), at(100, 100)], 0.0),
        ([at(0, 0), at(MAX_CYCLES, MAX_CYCLES)], 0.0),
        ([at(0, 0), at(MAX_CYCLES - 1, MAX_CYCLES - 1)], 10.0),
        ([at(100, 7), at(100, 7)], 0.0),
        ([at(100, 7), at(200, 300)], 0.0),
        ([at(None), at(100, 7), at(200, 57)], 5.0),
        ([at(100, 7), at(None)], 0.0),
        ([at(None)], None),
    ]
    for tables, seconds in cases:
        lowered = LoweredSeconds()
        for number, entry in enumerate(tables):
            lowered.add(entry, 1000.0 + 10.0 * number)
        assert lowered.seconds.get("hw_slowdown") == (seconds if seconds is None else pytest.approx(seconds))


def test_the_memorys_share() -> None:
    """The memory's share is its percentages per cycle, or None if a value is missing, has decreased or is too large."""
    cases: list[Any] = [
        ((1000, 6000), (2000, 48_000), 0.42),
        ((2**32 - 500, 2**32 - 10), (500, 24_990), 0.25),
        ((1000, 6000), (2000, 106_000), 1.0),
        ((1000, 6000), (2000, 106_001), None),  # above 100 %
        ((1000, 6000), (1000, 6000), None),
        ((9000, 6000), (100, 10), None),
        ((0, 0), (MAX_CYCLES, 0), None),
        ((None, 6000), (2000, 48_000), None),
        ((1000, None), (2000, 48_000), None),
        ((1000, 6000), (2000, None), None),
        (None, (2000, 48_000), None),
        ((1000, 6000), None, None),
    ]
    for before, now, share in cases:
        earlier, later = (entry and Table(entry[0], memory_percents=entry[1]) for entry in (before, now))
        assert memory_active(earlier, later) == share
