"""RDMA devices: values, expected state and failures."""

import asyncio
import errno
import os
import shutil
import struct
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from client_metrics import samples
from fake_clock import FakeClock
from fake_kernel import FakeKernel, done, refuse, reply
from lent import failed, lent

from agent.hardware.inventory import Hardware
from agent.hardware.ledger import CheckState, HealthLedger
from agent.sdk.exporter import StateSection
from agent.system import netlink
from agent.system.netlink import attribute
from exporters.rdma import RdmaConfig, RdmaExporter, exporter as exporter_module, tree as module
from exporters.rdma.baseline import Baseline, learn, levels
from exporters.rdma.exporter import MAX_IGNORED
from exporters.rdma.families import DRIVER_FAULTS, MAX_COUNT, PORT_FAULTS, RdmaSnapshot, read_resources, render
from exporters.rdma.tree import Port, RdmaDevice, hidden_functions, read_devices

DATA = Path(__file__).parents[1] / "data" / "rdma"
EMPTY = Port(1, None, None, "", "", {}, {})

PCI = "0000:18:00.0"
MLX5_0 = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:18:00.0"
ALL = {"bnxt_re0", "mlx5_0", "mlx5_1", "rdmap160s27"}


def device(
    name: str = "mlx5_0",
    state: int | None = 4,
    rate: float | None = 5e10,
    *,
    number: int = 1,
    pci: str = "",
    physical: bool = True,
) -> RdmaDevice:
    """Return a device of one port; its address follows from its name unless given."""
    port = msgspec.structs.replace(EMPTY, number=number, state=state, rate=rate)
    return RdmaDevice(name, "", "", "", pci or f"0000:{name[-1]}8:00.0", (), -1, physical, (port,))


def failures(baseline: Baseline, *devices: RdmaDevice, hidden: Collection[str] = ()) -> set[tuple[str, str]]:
    """Learn and judge; return each device below its expectation, with the check."""
    before = {pci for pci, item in baseline.functions.items() if item.missing}
    vanished = learn(baseline, devices, hidden)
    missing = {pci for pci, item in baseline.functions.items() if item.missing}
    assert vanished == (len(missing - before) > 0)
    states = levels(baseline, devices)
    return {(subject.name, check) for (subject, check), state in states.items() if state is CheckState.FAILED}


MISSING, DEGRADED = {("mlx5_1", "rdma_device_missing")}, {("mlx5_0", "rdma_rate_degraded")}
PORT_DOWN = {("mlx5_0", "rdma_port_down")}
RENAMED = device("rocep24s0", rate=2.5e10, pci=PCI)
KNOWN, OTHER, MOVED = device("mlx5_1", pci=PCI), device(state=1, pci=PCI), device("mlx5_1", pci="0000:27:00.0")
MADE = [
    device(name, pci=pci, physical=False) for name, pci in (("mlx5_2", "0000:18:00.1"), ("rxe0", ""), ("mlx5_3", PCI))
]


DOWN = device(state=1, rate=1.25e9)


@pytest.mark.parametrize("looks", [
    pytest.param([([DOWN], set()), ([device()], set()), ([DOWN], PORT_DOWN), ([device(state=2)], PORT_DOWN),
     ([device()], set())], id="a port that was never active is no fault, one that was is down"),
    pytest.param([([device(rate=2.5e10)], set()), ([device()], set()), ([device(rate=2.5e10)], DEGRADED),
     ([device(rate=None)], set()), ([device(state=None)], set())],
     id="a port below its best rate is degraded, one that cannot be read is not"),
    pytest.param([
        ([device(), device("mlx5_1")], set()), ([device()], MISSING), ([device()], MISSING),
        ([device(), device("mlx5_1")], set()), ([device()], MISSING), ([device(number=2), device("mlx5_1")], PORT_DOWN),
    ], id="a device is missing until it is back, a port that is gone is down"),
    pytest.param([
        ([device(pci=PCI)], set()), ([RENAMED], {("rocep24s0", "rdma_rate_degraded")}),
        ([], {("rocep24s0", "rdma_device_missing")}),
    ], id="a renamed device is the same, with what its port was at its best"),
    pytest.param([([device(pci=PCI), *MADE], set()), ([device(pci=PCI, state=1)], PORT_DOWN)],
     id="what software made it may take away"),
    pytest.param([([KNOWN], set()), ([OTHER, KNOWN], set()), ([KNOWN, OTHER], set()), ([OTHER], PORT_DOWN)],
     id="of two devices of one function the first stands for it"),
    pytest.param([
        ([device(pci=PCI), MOVED], set()), ([MOVED], {("mlx5_0", "rdma_device_missing")}),
        ([device(state=1, pci=MOVED.pci)], {(PCI, "rdma_device_missing"), *PORT_DOWN}),
        ([device(pci=PCI), MOVED], set()),
    ], id="a missing device whose name another one has goes by its address"),
])  # fmt: skip
def test_what_is_expected(looks: list[tuple[list[RdmaDevice], set[tuple[str, str]]]]) -> None:
    """A device fails when it is below the best state that its PCI function has had."""
    baseline = Baseline()
    for devices, failing in looks:
        assert failures(baseline, *devices) == failing


def test_a_device_in_another_network_namespace_is_not_missed() -> None:
    """A device hidden by a network namespace is not judged; without its function, or in another mode, it is missing."""
    baseline, pci = Baseline(), device().pci
    assert failures(baseline, device()) == failures(baseline, hidden=[pci]) == set()
    assert [(function.missing, function.hidden) for function in baseline.functions.values()] == [(False, True)]
    assert levels(baseline, []) == {}
    assert failures(baseline) == {("mlx5_0", "rdma_device_missing")}
    assert failures(baseline, device(rate=2.5e10), hidden=[pci]) == DEGRADED


def test_what_sysfs_may_hide(tmp_path: Path) -> None:
    """A device can be hidden only in the exclusive mode, and only while its function has a driver."""
    cases = (("exclusive", "N", True), ("shared", "Y", True), ("an old kernel", None, True), ("no driver", "N", False))
    for name, mode, driver in cases:
        function, parameters = tmp_path / name / f"bus/pci/devices/{PCI}", tmp_path / name / "module/ib_core/parameters"
        function.mkdir(parents=True)
        if driver:
            (function / "driver").symlink_to("../../drivers/mlx5_core")
        if mode:
            parameters.mkdir(parents=True)
            (parameters / "netns_mode").write_text(f"{mode}\n")
        values = hidden_functions(tmp_path / name, [PCI, "0000:19:00.0"])
        assert values == ({PCI} if name == "exclusive" else set()), name


def test_which_devices_are_physical(tmp_path: Path) -> None:
    """A device of a PCI function is physical; one of a virtual function, a subfunction or no function is not."""
    functions = tmp_path / "devices/pci0000:15/0000:15:01.0"
    parents = {"pf": "0000:18:00.0", "sf": "0000:18:00.0/mlx5_core.sf.2", "soft": "", "vf": "0000:18:00.1"}
    for name, parent in parents.items():
        (tmp_path / "class/infiniband" / name).mkdir(parents=True)
        if parent:
            (functions / parent).mkdir(parents=True, exist_ok=True)
            (tmp_path / "class/infiniband" / name / "device").symlink_to(functions / parent)
    (functions / "0000:18:00.1/physfn").symlink_to("../0000:18:00.0")
    devices = [(device.name, device.pci, device.physical) for device in read_devices(tmp_path)]
    assert devices == [(name, parent[:12], name == "pf") for name, parent in parents.items()]


def test_virtual_devices_push_no_physical_one_out(tmp_path: Path) -> None:
    """Above the limit of devices, physical ones are read first."""
    function = tmp_path / "devices/pci0000:15/0000:18:00.0"
    function.mkdir(parents=True)
    for number in range(module.MAX_DEVICES + 1):
        (tmp_path / f"class/infiniband/mlx5_{number}").mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_99/device").symlink_to(function)
    values = read_devices(tmp_path)
    assert (len(values), values[0].name) == (module.MAX_DEVICES, "mlx5_99")


def test_what_lies_beyond_the_limits_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, port or counter above its limit is left out, and so are invalid names."""
    for name in ("a", "b", 'c"} 1'):
        for port in ("1", "2", "x"):
            counters = tmp_path / "class/infiniband" / name / "ports" / port / "counters"
            counters.mkdir(parents=True)
            for counter in ("one", "two", "three!"):
                (counters / counter).write_text("1\n")
    values = read_devices(tmp_path)
    assert [(item.name, [port.number for port in item.ports]) for item in values] == [("a", [1, 2]), ("b", [1, 2])]
    assert values[0].ports[0].counters == {"one": 1, "two": 1}
    for limit in ("MAX_DEVICES", "MAX_PORTS", "MAX_COUNTERS"):
        monkeypatch.setattr(module, limit, 1)
    (only,) = read_devices(tmp_path)
    assert [(port.number, port.counters) for port in only.ports] == [(1, {"one": 1})]


def test_states_and_rates(tmp_path: Path) -> None:
    """The kernel's texts give the state's number and the rate in bytes per second; other texts give None."""
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for state, rate, expected in (
        ("4: ACTIVE", "400 Gb/sec (4X NDR)", (4, 5e10)),
        ("1: DOWN", "2.5 Gb/sec (1X SDR)", (1, 3.125e8)),
        ("", "", (None, None)),
        ("ACTIVE", "fast", (None, None)),
        ("999: X", "99999999 Gb/sec", (None, None)),
    ):
        (port / "state").write_text(state)
        (port / "rate").write_text(rate)
        values = read_devices(tmp_path)[0].ports[0]
        assert (values.state, values.rate) == expected


class Node:
    """The exporter on a copy of the fake tree, with its ledger; ``past``: an earlier checkpoint."""

    def __init__(
        self, root: Path, past: bytes | None = None, ignored: Iterable[str] = (), all_counters: bool = False
    ) -> None:
        clock = FakeClock()
        self.ledger, self.hardware = HealthLedger(clock), Hardware()
        self.exporter = RdmaExporter(RdmaConfig(ignore_devices=list(ignored), all_counters=all_counters))
        self.state = StateSection("rdma", past)
        checks = self.ledger.of("rdma")
        self.context = lent("rdma", clock, root, state=self.state, checks=checks, hardware=self.hardware)

    @asynccontextmanager
    async def under_way(self) -> AsyncIterator[RdmaExporter]:
        await self.exporter.start(self.context)
        try:
            await self.exporter.update()
            yield self.exporter
        finally:
            await self.exporter.drain()

    def failed(self) -> set[tuple[str, str]]:
        return {(item.subject.name, item.check) for item in failed(self.ledger)}

    def judged(self) -> set[str]:
        """Return the devices with any check."""
        return {entry.subject.name for entry in self.ledger.entries()}

    def nics(self) -> list[str]:
        return [nic.device for nic in self.hardware.nics()]

    def series(self, family: str) -> dict[str, float]:
        rendered = self.exporter.families(self.exporter.snapshot())
        return {
            sample.labels["device"]: sample.value
            for sample in samples(rendered)
            if sample.name == f"rankwatch_rdma_{family}"
        }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Provide a copy of the fake node."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    return tmp_path


async def test_a_missing_device_is_reported_after_a_restart(root: Path) -> None:
    """After a restart of the agent a lost device is reported as missing, and stays its GPU's NIC."""
    first = Node(root)
    async with first.under_way():
        assert first.failed() == set()
        assert set(first.nics()) == ALL
    again = Node(root / "elsewhere", first.state.published)
    async with again.under_way():
        assert again.failed() == {(name, "rdma_device_missing") for name in ALL}
        (nic,) = [nic for nic in again.hardware.nics() if nic.device == "mlx5_0"]
        assert (nic.pci, nic.pci_path, nic.numa) == ("0000:18:00.0", tuple(MLX5_0.split("/")), 0)


async def test_no_device_is_missing_if_the_agent_has_no_descriptor_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the directory of devices cannot be opened without a free descriptor, the poll fails, and no check fails."""
    node = Node(root)
    async with node.under_way():
        monkeypatch.setattr(os, "listdir", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many"):
            await node.exporter.update()
        assert node.failed() == set()


async def test_ignored_devices(root: Path) -> None:
    """An ignored device has no series and is no GPU's NIC; a missing device that is ignored is forgotten."""
    first = Node(root)
    async with first.under_way():
        pass
    await asyncio.to_thread((root / "sys/class/infiniband/mlx5_0").unlink)
    node = Node(root, first.state.published, ["mlx5_0", "rdmap160s27"])
    async with node.under_way():
        others = {"bnxt_re0", "mlx5_1"}
        assert set(node.series("device_info")) == others
        assert (node.judged(), set(node.nics()), node.failed()) == (others, others, set())


async def test_which_counters_are_shown(root: Path) -> None:
    """Without all_counters only fault counters have series; EFA's rx_bytes and tx_bytes are data bytes."""
    for all_counters in (False, True):
        node = Node(root, all_counters=all_counters)
        async with node.under_way():
            shown = samples(node.exporter.families(node.exporter.snapshot()))
        port, of_driver = (
            {(item.labels["device"], item.labels["counter"]) for item in shown if item.name == f"rankwatch_rdma_{kind}"}
            for kind in ("port_counter_total", "hardware_counter_total")
        )
        ports, drivers = ({counter for _, counter in values} for values in (port, of_driver))
        assert ports >= PORT_FAULTS
        assert {"packet_seq_err", "to_retransmits", "tx_pkts"} <= drivers
        assert (ports == PORT_FAULTS, drivers <= DRIVER_FAULTS) == (not all_counters,) * 2
        assert ("unicast_rcv_packets" in ports, ("rdmap160s27", "rx_pkts") in of_driver) == (all_counters,) * 2
        assert "active_qps" not in drivers  # a gauge
        bytes_of = {device for device, counter in of_driver if counter in ("rx_bytes", "tx_bytes")}
        assert bytes_of == ({"bnxt_re0"} if all_counters else set())
    efa = {
        item.labels["direction"]: item.value
        for item in shown
        if item.name == "rankwatch_rdma_data_bytes_total" and item.labels["device"] == "rdmap160s27"
    }
    counters = root / "sys/class/infiniband/rdmap160s27/ports/1/hw_counters"
    for direction, counter in (("receive", "rx_bytes"), ("transmit", "tx_bytes")):
        assert efa[direction] == float(await asyncio.to_thread((counters / counter).read_text))


def test_bytes_of_ionic() -> None:
    """The unicast byte counters of ionic's driver count as the port's data bytes; other counters stay the driver's."""
    read = {"rx_rdma_ucast_bytes": 7, "tx_rdma_ucast_bytes": 8, "tx_rdma_ack_timeout": 9}
    port = msgspec.structs.replace(EMPTY, hardware_counters=read)
    ionic = RdmaDevice("ionic_0", "ionic", "", "", "", (), -1, physical=True, ports=(port,))
    shown = {sample.value: (sample.name, *sample.labels.values()) for sample in samples(render(RdmaSnapshot((ionic,))))}
    assert {value: (shown[value][0], shown[value][-1]) for value in (7, 8, 9)} == {
        7: ("rankwatch_rdma_data_bytes_total", "receive"),
        8: ("rankwatch_rdma_data_bytes_total", "transmit"),
        9: ("rankwatch_rdma_hardware_counter_total", "tx_rdma_ack_timeout"),
    }


def test_an_invalid_list_of_devices_is_refused() -> None:
    """A name in ignore_devices has 1 to 64 characters; the number of names is limited."""
    for names in [[""], ["x" * 65], ["mlx5_0"] * (MAX_IGNORED + 1)]:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"ignore_devices": names}, RdmaConfig)


async def test_resources_are_shown_where_they_are_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option, present devices show their RDMA objects in use; a kernel that refuses is not queried again."""
    use = {"mlx5_0": {"qp": 3}, "elsewhere": {"qp": 4}}
    errors = [OSError(errno.EMFILE, "Too many open files"), TimeoutError("timed out"), PermissionError(errno.EPERM, "")]
    read = Mock(side_effect=[*errors[:2], use, errors[2], AssertionError])
    monkeypatch.setattr(exporter_module, "read_resources", read)
    monkeypatch.setattr(exporter_module, "Path", lambda _: root / "sys")
    node = Node(root, all_counters=True)
    async with node.under_way() as exporter:
        for expected in ({}, {}, {"mlx5_0": 3.0}, {}, {}):
            assert node.series("resources") == expected
            await exporter.update()


def test_version_of_a_driver(tmp_path: Path) -> None:
    """A driver has a version if its module is not part of the kernel; an invalid version is empty."""
    shutil.copytree(DATA / "sys", tmp_path / "sys", symlinks=True)
    path = tmp_path / "sys/module/mlx5_core/version"
    for text, expected in (("24.04-0.6.6", "24.04-0.6.6"), ("2" * 64, "2" * 64), ("2" * 65, ""), ("a b", "")):
        path.write_text(f"{text}\n")
        values = [device for device in read_devices(tmp_path / "sys") if device.driver == "mlx5_core"]
        assert {item.driver_version for item in values} == {expected}
    path.unlink()
    assert {device.driver_version for device in read_devices(tmp_path / "sys")} == {""}


RES_GET = 5 << 10 | 9


def entry(kind: bytes, count: int) -> bytes:
    """Return an entry of the summary."""
    judged = attribute(17, kind + b"\0") + attribute(18, struct.pack("=Q", count))
    return attribute(16, judged, nested=True)


def summary_of(name: str, *entries: bytes) -> bytes:
    """Return the kernel's reply about a device."""
    inside = attribute(15, b"".join(entries), nested=True)
    return attribute(1, struct.pack("=I", 3)) + attribute(2, name.encode() + b"\0") + inside


MLX5 = summary_of("mlx5_0", entry(b"qp", 42), entry(b"mr", 7), entry(b"unheard_of", 1), entry(b"cq", MAX_COUNT + 1))
BNXT = summary_of("bnxt_re0", entry(b"pd", MAX_COUNT))


def test_what_is_asked_and_understood() -> None:
    """One dump of summaries gives the known kinds by device; a refusal is raised; the socket is closed."""
    kernel = FakeKernel(lambda _, question: [reply(question, MLX5, BNXT), done(question)])
    assert read_resources(kernel.connect) == {"mlx5_0": {"qp": 42, "mr": 7}, "bnxt_re0": {"pd": MAX_COUNT}}
    ((protocol, question),) = kernel.questions
    assert (protocol, question.kind, question.flags & netlink.DUMP) == (netlink.RDMA, RES_GET, netlink.DUMP)
    refusing = FakeKernel(lambda _, question: [refuse(question, errno.EPERM)])
    with pytest.raises(PermissionError):
        read_resources(refusing.connect)
    assert kernel.open == refusing.open == 0
