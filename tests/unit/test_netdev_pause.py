"""Pause frames: queries, replies (artificial, built from the headers), and intervals."""

import errno
import os
import struct
from functools import partial
from pathlib import Path

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from fake_kernel import FakeKernel, refuse, reply
from hypothesis import given, strategies as st
from lent import lent

from agent.sdk.exporter import Roots
from agent.system import netlink
from agent.system.netlink import Message, attribute, attributes
from exporters import netdev as exporter_module
from exporters.netdev import (
    FAILED_SECONDS,
    REFRESH_SECONDS,
    UNSUPPORTED_SECONDS,
    NetdevConfig,
    NetdevExporter,
    PauseReader,
    pause_counts,
    priority_counts,
    read_devices,
)

ETHTOOL, CONTROL, GET_DCB = 21, 0x10, 78
DATA = Path(__file__).parents[1] / "data/netdev"


def pause(sent: int, received: int, switch: bytes = b"\1") -> bytes:
    """Return ethtool's reply about a link."""
    frames = b"".join(attribute(kind, struct.pack("=Q", count)) for kind, count in ((2, sent), (3, received)))
    header = attribute(1, attribute(2, b"eth0\0"), nested=True)
    return struct.pack("=BBH", 22, 1, 0) + header + attribute(3, switch) + attribute(4, switch) + attribute(5, frames)


def priorities(enabled: int, sent: dict[int, int], received: dict[int, int]) -> bytes:
    """Return DCB's reply about a device: struct ieee_pfc of linux/dcbnl.h, among others."""
    counts = [of.get(priority, 0) for of in (sent, received) for priority in range(8)]
    pfc = struct.pack("=BBBxHxx16Q", 8, enabled, 0, 0, *counts)
    inside = attribute(1, b"\0" * 59) + attribute(2, pfc)
    return struct.pack("=BBH", 0, 21, 0) + attribute(1, b"eth0\0") + attribute(13, inside)


@given(st.binary(max_size=300))
def test_any_answer_is_read(raw: bytes) -> None:
    """Any reply of a driver is read without an error."""
    list(pause_counts(raw))
    list(priority_counts(raw))


class Network:
    """A kernel with devices and their replies: bytes, or an error."""

    def __init__(self, links: dict[str, bytes | int], priorities: dict[str, bytes | int]) -> None:
        self.links = links
        self.priorities = priorities
        self.has_ethtool = True
        self.kernel = FakeKernel(self._answer)

    def questions(self) -> list[tuple[int, str]]:
        """Return (protocol, device) of the queries since the last call."""
        answers = [(protocol, _device(entry)) for protocol, entry in self.kernel.questions if entry.kind != CONTROL]
        self.kernel.questions.clear()
        return answers

    def _answer(self, protocol: int, question: Message) -> list[bytes]:
        if question.kind == CONTROL:
            assert dict(attributes(question.payload[4:])) == {2: b"ethtool\0"}
            family = (
                struct.pack("=BBH", 1, 2, 0) + attribute(1, struct.pack("=H", ETHTOOL)) + attribute(2, b"ethtool\0")
            )
            return [reply(question, family) if self.has_ethtool else refuse(question, errno.ENOENT)]
        assert question.kind == (ETHTOOL if protocol == netlink.GENERIC else GET_DCB)
        table = self.links if protocol == netlink.GENERIC else self.priorities
        answers = table.get(_device(question), errno.ENODEV)
        if answers == errno.ETIMEDOUT:
            return []
        return [refuse(question, answers) if isinstance(answers, int) else reply(question, answers)]


def _device(question: Message) -> str:
    answers = dict(attributes(question.payload[4:]))
    name = answers[1] if question.kind == GET_DCB else dict(attributes(answers[1]))[2]
    return name.rstrip(b"\0").decode()


def test_devices_are_queried() -> None:
    """A link or priority has frames if pause is on, or above 0; a device that does not reply loses only its own."""
    network = Network(
        {"a": pause(3, 5), "b": errno.EOPNOTSUPP, "c": pause(1, 2), "d": pause(0, 6, b"\0")},
        {"a": priorities(8, {3: 7}, {}), "b": priorities(8, {}, {3: 9}), "c": errno.ETIMEDOUT, "d": errno.EOPNOTSUPP},
    )
    answers = PauseReader(network.kernel.connect).read(dict.fromkeys("abcd", "bnxt_en"), 0.0)
    assert answers == {
        "a": (("transmit", "", 3), ("receive", "", 5), ("transmit", "3", 7), ("receive", "3", 0)),
        "b": (("transmit", "3", 0), ("receive", "3", 9)),
        "c": (("transmit", "", 1), ("receive", "", 2)),
        "d": (("receive", "", 6),),
    }
    assert network.kernel.open == 0


def test_how_often_a_device_is_queried() -> None:
    """A device without the feature is queried once an hour, a failed one once a minute, a new one at once."""
    network = Network({"a": errno.EOPNOTSUPP, "b": errno.EBUSY}, {"a": priorities(8, {}, {}), "b": errno.EOPNOTSUPP})
    reader = PauseReader(network.kernel.connect)
    reader.read(dict.fromkeys("ab", ""), 0.0)
    assert len(network.questions()) == 4
    reader.read(dict.fromkeys("ab", ""), FAILED_SECONDS - 1)
    assert network.questions() == [(netlink.ROUTE, "a")]
    reader.read(dict.fromkeys("ab", ""), FAILED_SECONDS)
    assert network.questions() == [(netlink.GENERIC, "b"), (netlink.ROUTE, "a")]
    reader.read({"b": ""}, FAILED_SECONDS + 1)
    network.questions()
    reader.read(dict.fromkeys("ab", ""), FAILED_SECONDS + 2)
    assert network.questions() == [(netlink.GENERIC, "a"), (netlink.ROUTE, "a")]
    reader.read(dict.fromkeys("ab", ""), FAILED_SECONDS + 2 + UNSUPPORTED_SECONDS)
    assert len(network.questions()) == 4


def test_a_kernel_without_ethtool_reports_priorities() -> None:
    """Without ethtool's netlink family the priorities are still read, and the family is not looked up at each read."""
    network = Network({"a": pause(3, 5)}, {"a": priorities(8, {}, {})})
    network.has_ethtool = False
    reader = PauseReader(network.kernel.connect)
    for _ in range(2):
        assert len(reader.read({"a": ""}, 0.0)["a"]) == 2
    assert len([entry for _, entry in network.kernel.questions if entry.kind == CONTROL]) == 1


def test_a_driver_that_answers_from_a_cache() -> None:
    """If a driver caches its statistics, they are refreshed once a minute before a query."""
    network = Network({}, {"a": priorities(8, {}, {}), "b": priorities(8, {}, {})})
    refreshed: list[str] = []
    reader = PauseReader(network.kernel.connect, refreshed.append)
    for now in (0.0, REFRESH_SECONDS - 1, REFRESH_SECONDS):
        assert reader.read({"a": "mlx5_core", "b": "bnxt_en"}, now).keys() == {"a", "b"}
    assert refreshed == ["a", "a"]

    def fail(_: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    network.questions()
    reader = PauseReader(network.kernel.connect, fail)
    for now, questions in ((0.0, ["b"]), (FAILED_SECONDS - 1, ["b"]), (FAILED_SECONDS, ["b"])):
        answers = reader.read({"a": "mlx5_core", "b": "bnxt_en"}, now)
        assert (answers["b"] != (), answers.get("a", ())) == (True, ())
        assert [name for protocol, name in network.questions() if protocol == netlink.ROUTE] == questions


async def test_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have series by device; a recorded tree has none; without the right to netlink one attempt is made."""
    network = Network({"ens1f0np0": pause(3, 5)}, {"ens1f0np0": errno.EOPNOTSUPP})
    monkeypatch.setattr(
        exporter_module, "read_devices", lambda _, read=exporter_module.read_devices: read(DATA / "sys")
    )
    monkeypatch.setattr(exporter_module, "PauseReader", lambda: PauseReader(network.kernel.connect))
    expected = {("ens1f0np0", "transmit", ""): 3.0, ("ens1f0np0", "receive", ""): 5.0}
    assert await shown(Roots()) == expected
    assert await shown(Roots(sys=DATA / "sys")) == {}

    questions: list[int] = []

    def fail(protocol: int, *, number: int) -> netlink.Netlink:
        questions.append(protocol)
        raise OSError(number, os.strerror(number))

    for number, attempts in ((errno.EAFNOSUPPORT, 1), (errno.EMFILE, 3)):  # two updates each
        monkeypatch.setattr(exporter_module, "PauseReader", partial(PauseReader, partial(fail, number=number)))
        assert (await shown(Roots()), len(questions)) == ({}, attempts)


async def shown(roots: Roots) -> dict[tuple[str, ...], float]:
    """Return the series of pause frames after two looks."""
    exporter = NetdevExporter(NetdevConfig())
    await exporter.start(lent("netdev", FakeClock(), roots=roots))
    for _ in range(2):
        await exporter.update()
    answers = samples(exporter.families(exporter.snapshot()))
    return {
        tuple(entry.labels.values()): entry.value
        for entry in answers
        if entry.name.startswith("rankwatch_netdev_pause_frames")
    }


def test_the_driver_of_a_device(tmp_path: Path) -> None:
    """A device's driver is the name of the directory that the link `driver` leads to, or empty."""
    for name, driver in (("a", "mlx5_core"), ("b", "")):
        device = tmp_path / "class/net" / name / "device"
        device.mkdir(parents=True)
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    assert [device.driver for device in read_devices(tmp_path)] == ["mlx5_core", ""]


def test_what_is_odd_or_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with invalid names, invalid values, and devices above the limit are left out."""
    for name in ("a", "b", 'c"} 1'):
        (tmp_path / "class/net" / name / "device").mkdir(parents=True)
        (tmp_path / "class/net" / name / "carrier_changes").write_text("many\n")
    assert [(device.name, device.values) for device in read_devices(tmp_path)] == [("a", {}), ("b", {})]
    (tmp_path / "class/net/a/device/physfn").mkdir()  # hundreds of virtual functions displace no physical one
    monkeypatch.setattr(exporter_module, "MAX_DEVICES", 1)
    assert [device.name for device in read_devices(tmp_path)] == ["b"]
