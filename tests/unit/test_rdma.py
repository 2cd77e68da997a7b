"""RDMA devices: what is read of them, what is expected, and what is told of those that fall short."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent

from agent.api import NoData, StateSection
from agent.checks import HealthLedger
from agent.hardware import Hardware
from exporters.rdma import RdmaConfig, RdmaExporter
from exporters.rdma import tree as module
from exporters.rdma.baseline import Baseline, judge, learn
from exporters.rdma.tree import Device, Port, read_devices

DATA = Path(__file__).parents[1] / "data" / "rdma"
EMPTY = Port(1, None, None, None, "", "", {}, {}, 0)


def device(name: str = "mlx5_0", state: int | None = 4, rate: float | None = 5e10, number: int = 1) -> Device:
    """A device of one port."""
    port = msgspec.structs.replace(EMPTY, number=number, state=state, rate=rate)
    return Device(name, "", "", "", "", (), -1, (port,))


def failed(baseline: Baseline, *devices: Device) -> set[tuple[str, str]]:
    """Learn and judge: which device falls short of what."""
    learn(baseline, devices)
    return {
        (each.device, what)
        for each in judge(baseline, devices)
        for what in ("present", "up", "fast")
        if not getattr(each, what)
    }


def test_a_port_that_was_never_up_is_no_fault() -> None:
    """A port without a cable is down for ever, and nobody minds; once it was active, down is a fault."""
    baseline = Baseline()
    assert failed(baseline, device(state=1, rate=1.25e9)) == set()
    assert failed(baseline, device()) == set()
    assert failed(baseline, device(state=1, rate=1.25e9)) == {("mlx5_0", "up")}
    assert failed(baseline, device(state=2)) == {("mlx5_0", "up")}
    assert failed(baseline, device()) == set()


def test_a_port_slower_than_its_best_is_degraded() -> None:
    """The best rate since the boot is expected; a rate or state that cannot be read is held against nobody."""
    baseline = Baseline()
    assert failed(baseline, device(rate=2.5e10)) == set()
    assert failed(baseline, device(rate=5e10)) == set()
    assert failed(baseline, device(rate=2.5e10)) == {("mlx5_0", "fast")}
    assert failed(baseline, device(rate=None)) == set()
    assert failed(baseline, device(state=None)) == set()


def test_a_device_or_port_that_vanishes_is_missed() -> None:
    """A device that was there is missing, once counted, until it is back; a port that is gone is down."""
    baseline = Baseline()
    assert failed(baseline, device(), device("mlx5_1")) == set()
    for _ in range(2):
        assert failed(baseline, device()) == {("mlx5_1", "present")}
    assert baseline.vanished == 1
    assert failed(baseline, device(), device("mlx5_1")) == set()
    assert failed(baseline, device()) == {("mlx5_1", "present")}
    assert baseline.vanished == 2
    assert failed(baseline, device(number=2), device("mlx5_1")) == {("mlx5_0", "up")}


def test_a_counter_that_cannot_be_read_costs_itself_alone() -> None:
    """Of the made-up ConnectX one counter is refused: it is absent and counted, all others are there."""
    (found,) = [each for each in read_devices(DATA / "sys") if each.name == "mlx5_0"]
    folder = DATA / "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    expected = {
        name: int((folder / name).read_text())
        for name in os.listdir(folder)
        if name not in ("lifespan", "rx_dct_connect")
    }
    assert found.ports[0].hardware_counters == expected
    assert found.ports[0].unreadable == 1
    assert found.pci_path[0] == "pci0000:15"
    assert (found.pci, found.numa, found.driver) == ("0000:18:00.0", 0, "mlx5_core")


def test_what_lies_beyond_the_limits_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One device, port or counter more than the limits is left out; names that are none are too."""
    for name in ("a", "b", 'c"} 1'):
        for port in ("1", "2", "x"):
            counters = tmp_path / "class/infiniband" / name / "ports" / port / "counters"
            counters.mkdir(parents=True)
            for counter in ("one", "two", "three!"):
                (counters / counter).write_text("1\n")
    found = read_devices(tmp_path)
    assert [(each.name, [port.number for port in each.ports]) for each in found] == [("a", [1, 2]), ("b", [1, 2])]
    assert found[0].ports[0].counters == {"one": 1, "two": 1}
    for limit in ("MAX_DEVICES", "MAX_PORTS", "MAX_COUNTERS"):
        monkeypatch.setattr(module, limit, 1)
    (only,) = read_devices(tmp_path)
    assert [(port.number, port.counters) for port in only.ports] == [(1, {"one": 1})]


@pytest.mark.parametrize(
    ("state", "rate", "expected"),
    [
        ("4: ACTIVE", "400 Gb/sec (4X NDR)", (4, 5e10)),
        ("1: DOWN", "2.5 Gb/sec (1X SDR)", (1, 3.125e8)),
        ("", "", (None, None)),
        ("ACTIVE", "fast", (None, None)),
        ("999: X", "99999999 Gb/sec", (None, None)),
    ],
)
def test_states_and_rates(tmp_path: Path, state: str, rate: str, expected: tuple[object, ...]) -> None:
    """Texts as the kernel writes them give the number and bytes per second; others give nothing."""
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(state)
    (port / "rate").write_text(rate)
    found = read_devices(tmp_path)[0].ports[0]
    assert (found.state, found.rate) == expected


class Node:
    """The exporter over a copy of the made-up tree, with its ledger."""

    def __init__(self, root: Path, state: StateSection) -> None:
        clock = FakeClock()
        self.ledger, self.hardware = HealthLedger(clock), Hardware()
        self.exporter = RdmaExporter(RdmaConfig())
        self.context = lent("rdma", clock, root, state=state, checks=self.ledger.of("rdma"), hardware=self.hardware)

    def failed(self) -> set[tuple[str, str]]:
        """The checks that have failed."""
        return {(each.subject.name, each.check) for each in self.ledger.entries() if not each.finding.ok}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the made-up node."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    return tmp_path


async def test_a_device_that_vanished_is_told_of_over_a_restart(root: Path) -> None:
    """What was there stays expected of the node until it boots; the NIC stays near its GPU."""
    section = StateSection("rdma", None)
    first = Node(root, section)
    await first.exporter.start(first.context)
    await first.exporter.update()
    assert first.failed() == set()
    assert [nic.device for nic in first.hardware.nics()] == ["bnxt_re0", "mlx5_0", "mlx5_1", "rdmap160s27"]
    await first.exporter.drain()
    again = Node(root / "elsewhere", StateSection("rdma", section.published))
    await again.exporter.start(again.context)
    await again.exporter.update()
    assert again.failed() == {(name, "rdma_device_missing") for name in ("bnxt_re0", "mlx5_0", "mlx5_1", "rdmap160s27")}
    present = {
        sample.labels["device"]: sample.value
        for family in again.exporter.families(again.exporter.snapshot())
        for sample in family.samples
        if sample.name == "rankwatch_rdma_device_present"
    }
    assert present == dict.fromkeys(("bnxt_re0", "mlx5_0", "mlx5_1", "rdmap160s27"), 0)
    await again.exporter.drain()


async def test_a_damaged_past_is_learnt_anew(root: Path) -> None:
    """What cannot be read of the checkpoint costs no device its series; a node without devices is no data."""
    node = Node(root, StateSection("rdma", b"\xc1"))
    await node.exporter.start(node.context)
    await node.exporter.update()
    assert node.failed() == set()
    await node.exporter.drain()
    bare = Node(root / "elsewhere", StateSection("rdma", None))
    await bare.exporter.start(bare.context)
    with pytest.raises(NoData):
        await bare.exporter.update()
    await bare.exporter.drain()
