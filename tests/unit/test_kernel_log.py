"""The kernel's log: records, categories, and what is told of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent
from rank_table import environment, facts

from agent.api import Gpu, Nic, NoData, RankTable, StateSection
from agent.checks import HealthLedger
from agent.hardware import Hardware
from agent.health import CHECKS
from exporters.kernel_log import KernelLogConfig, KernelLogExporter
from exporters.kernel_log import exporter as exporter_module
from exporters.kernel_log import follower as follower_module
from exporters.kernel_log.classify import categories, classify, fails
from exporters.kernel_log.follower import Follower
from exporters.kernel_log.records import MAX_TEXT, Record, parse_records

KMSG = Path(__file__).parents[1] / "data/kernel_log/kmsg"
EXAMPLES = [(name, text) for name, each in categories().items() for text in each.examples]


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=lambda value: value[:40])
def test_every_example_is_of_its_category(name: str, text: str) -> None:
    """A line as the driver writes it falls into the category that gives it as an example."""
    event = classify(text)
    assert event is not None
    assert event.category == name


def test_every_category_has_examples_and_known_checks() -> None:
    """Whatever a category fails or heals is a check of the ledger."""
    for each in categories().values():
        assert each.examples
        assert {*([each.check] if each.check else ()), *each.heals} <= set(CHECKS)


@pytest.mark.parametrize(
    ("text", "code", "pci", "pid", "check"),
    [
        ("NVRM: Xid (PCI:0000:3B:00): 79, pid=17, name=x", "79", "0000:3b:00.0", 17, "gpu_xid"),
        ("NVRM: Xid (PCI:00010000:3b:00.0): 48, pid='17', name=x", "48", "10000:3b:00.0", 17, "gpu_xid"),
        ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Warp Exception", "13", "0000:3b:00.0", 0, ""),
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "", "0000:c1:00.0", 0, "gpu_reset"),
    ],
)
def test_what_a_line_names(text: str, code: str, pci: str, pid: int, check: str) -> None:
    """Code, address as sysfs writes it, pid, and the check that fails: of XIDs those that mean broken hardware."""
    event = classify(text)
    assert event is not None
    assert (event.code, event.pci, event.pid, fails(event)) == (code, pci, pid, check)


@pytest.mark.parametrize(
    "text",
    [
        "mlx5_core 0000:18:00.0 ens1: Link up",
        "amdgpu 0000:c1:00.0: amdgpu: 0 uncorrectable hardware errors detected",
        "nfs: server is fine",
        "EDAC MC0: 1 CE memory read error",
        "",
    ],
)
def test_what_is_well_is_no_event(text: str) -> None:
    """Lines with a category's word and another meaning are of none."""
    assert classify(text) is None


def test_records_and_what_are_none() -> None:
    """Number, seconds, text and origin are read; dictionary lines, torn records and odd bytes cost nothing else."""
    read = b"4,7,1500000,c;a\xff;b\n KEY=1\nnonsense\n12,8,1,-;user's\n30,99\n"
    assert parse_records(read) == [
        Record(7, 1.5, "a\ufffd;b", from_kernel=True),
        Record(8, 1e-6, "user's", from_kernel=False),
    ]
    assert len(parse_records(b"4,7,1,-;" + b"x" * (MAX_TEXT + 1))[0].text) == MAX_TEXT


def test_the_real_log_is_read_or_refused() -> None:
    """Where this machine lets us, its own log gives records in order, and nothing twice."""
    follower = Follower(Path("/dev/kmsg"), -1)
    try:
        first = follower.read()
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT)  # either is right
        return
    numbers = [record.sequence for record in first.records]
    assert numbers == sorted(set(numbers))
    assert all(record.sequence > follower.last - 1 for record in follower.read().records)
    again = Follower(Path("/dev/kmsg"), follower.last)
    assert all(record.sequence > follower.last for record in again.read().records)
    follower.close()
    again.close()


def test_what_was_overwritten_is_counted(tmp_path: Path) -> None:
    """Numbers that are left out were lost; before the first record nothing was."""
    log = tmp_path / "kmsg"
    log.write_text("4,5,1,-;a\n4,9,1,-;b\n")
    assert Follower(log, -1).read().lost == 3
    assert Follower(log, 3).read().lost == 4
    assert Follower(log, 9).read() == ([], 0)


def test_an_overrun_and_other_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwritten under the reader, the log goes on with its oldest record; any other error is told."""
    answers: list[bytes | int] = [b"4,5,1,-;a\n", errno.EPIPE, b"4,8,1,-;b\n", errno.EAGAIN, errno.EIO]

    def read(_fd: int, _count: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    (tmp_path / "kmsg").write_text("")
    follower = Follower(tmp_path / "kmsg", -1)
    monkeypatch.setattr(os, "read", read)
    batch = follower.read()
    assert ([record.sequence for record in batch.records], batch.lost) == ([5, 8], 2)
    with pytest.raises(OSError, match="Input/output error"):
        follower.read()


def test_a_flood_is_read_over_several_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one look no more reads are made than the limit."""
    monkeypatch.setattr(follower_module, "MAX_RECORDS", 1)
    monkeypatch.setattr(follower_module, "MAX_RECORD_BYTES", 10)
    (tmp_path / "kmsg").write_text("4,5,1,-;a\n4,6,1,-;b\n")
    follower = Follower(tmp_path / "kmsg", -1)
    assert [record.sequence for record in follower.read().records] == [5]
    assert [record.sequence for record in follower.read().records] == [6]
    follower.close()


class Node:
    """The exporter over a log, with two GPUs and a NIC."""

    def __init__(self, log: Path, section: StateSection | None = None, *, wanted: bool | None = None) -> None:
        self.clock = FakeClock()
        self.clock.now = 7040.0
        self.ledger, self.hardware = HealthLedger(self.clock), Hardware()
        self.hardware.observe_gpus("nvml", [Gpu(0, "GPU-a", "0000:3b:00.0"), Gpu(1, "GPU-b", "0000:18:00.0")])
        self.hardware.observe_nics("rdma", [Nic("mlx5_0", "0000:19:00.0")])
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        self.section = section or StateSection("kernel_log", None)
        config = KernelLogConfig(path=str(log), enabled="auto" if wanted is None else wanted)
        self.exporter = KernelLogExporter(config)
        self.context = lent(
            "kernel_log",
            self.clock,
            ranks=self.ranks,
            state=self.section,
            checks=self.ledger.of("kernel_log"),
            hardware=self.hardware,
        )

    async def look(self) -> dict[tuple[str, ...], float]:
        """Start, look once and end; return the series by family (without its prefix) and labels."""
        await self.exporter.start(self.context)
        try:
            await self.exporter.update()
            found = list(self.exporter.families(self.exporter.snapshot()))
        finally:
            await self.exporter.drain()
        return {
            (sample.name.removeprefix("rankwatch_"), *sample.labels.values()): sample.value
            for family in found
            for sample in family.samples
        }

    def failed(self) -> set[tuple[str, str]]:
        """The checks that have failed."""
        return {(each.subject.name, each.check) for each in self.ledger.entries() if not each.finding.ok}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty log."""
    (tmp_path / "kmsg").write_text("")
    return tmp_path / "kmsg"


@pytest.fixture
def healed(log: Path) -> Path:
    """A log in which what had failed recovers."""
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "nfs: server a not responding, still trying",
        "amdgpu 0000:18:00.0: amdgpu: GPU reset begin!",
        "mlx5_core 0000:19:00.0: poll_health:955:(pid 0): device's health compromised",
        "mlx5_core 0000:77:00.0: poll_health:955:(pid 0): device's health compromised",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "nfs: server a OK",
        "amdgpu 0000:18:00.0: amdgpu: GPU reset(2) succeeded!",
    ]
    log.write_text("".join(f"4,{number},7039000000,-;{text}\n" for number, text in enumerate(lines)))
    return log


async def test_the_made_up_log() -> None:
    """Events are counted by category and code, with their time; a rank's process is known; a user's word is none."""
    node = Node(KMSG)
    assert node.ranks.observe_process(facts(4711, environment(3)))
    node.ranks.tick()
    found = await node.look()
    counted = {key[1:]: value for key, value in found.items() if key[0] == "kernel_events_total" and value}
    assert counted == {
        ("gpu_xid", "79"): 1,
        ("gpu_xid", "31"): 1,
        ("oom_kill", ""): 1,
        ("nfs_not_responding", ""): 1,
        ("pcie_aer_corrected", ""): 1,
    }
    assert found["kernel_event_last_timestamp_seconds", "gpu_xid", "79"] == pytest.approx(node.clock.time() - 5.0)
    assert found["rank_kernel_events_total", "4711", "3", "oom_kill"] == 1
    assert found["kernel_log_lost_total",] == 2
    assert node.failed() == {("GPU-a", "gpu_xid"), ("", "nfs_not_responding")}


async def test_nothing_is_counted_twice_over_a_restart(log: Path) -> None:
    """A restarted agent goes on after the last record; what cannot be read of its past is counted anew."""
    first = Node(KMSG)
    before = await first.look()
    again = Node(KMSG, StateSection("kernel_log", first.section.published))
    assert await again.look() == before
    assert first.failed() != set()
    assert again.failed() == set()
    damaged = Node(log, StateSection("kernel_log", b"\xc1"))
    assert (await damaged.look())["kernel_log_lost_total",] == 0


async def test_what_is_mended_is_well_again(healed: Path) -> None:
    """A loaded driver, a reset that succeeded and a server that answers end what they mend; a NIC stays failed."""
    node = Node(healed)
    await node.look()
    assert node.failed() == {("mlx5_0", "nic_fatal"), ("0000:77:00.0", "nic_fatal")}


async def test_old_lines_are_counted_and_fail_nothing() -> None:
    """What a first start finds of longer ago may be mended since."""
    node = Node(KMSG)
    node.clock.now = 7040.0 + exporter_module.MAX_AGE_SECONDS
    assert (await node.look())["kernel_events_total", "gpu_xid", "79"] == 1
    assert node.failed() == set()


async def test_kinds_and_ranks_beyond_the_limits(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code more than the limit is counted under none, one rank more in the node's count alone."""
    monkeypatch.setattr(exporter_module, "MAX_KINDS", 2)
    monkeypatch.setattr(exporter_module, "MAX_RANK_EVENTS", 1)
    monkeypatch.setattr(exporter_module, "MAX_LOGGED", 1)
    node = Node(log)
    for number, event in enumerate([*range(3)]):
        record = Record(number, 7039.0, "", from_kernel=True)
        await node.exporter.start(node.context) if not number else None
        node.ranks.observe_process(facts(100 + number, environment(number)))
        node.ranks.tick()
        text = f"NVRM: Xid (PCI:0000:3b:00): {13 + event}, pid={100 + number}, name=x"
        found = classify(text)
        assert found is not None
        node.exporter._take(record, found, is_logged=False)
    codes = node.exporter.snapshot().past.seen["gpu_xid"]
    assert {code: seen.count for code, seen in codes.items()} == {"13": 1, "14": 1, "": 1}
    assert node.exporter.snapshot().past.ranks == {("4711", "0", "gpu_xid"): 1}
    await node.exporter.drain()


async def test_a_log_that_may_not_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right it is no data, and an error where it was asked for; without a log it is no data."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(NoData):
        await Node(log.with_name("none")).look()
    monkeypatch.setattr(follower_module.os, "open", refuse)
    with pytest.raises(NoData):
        await Node(log).look()
    with pytest.raises(PermissionError):
        await Node(log, wanted=True).look()


def test_the_checkpoint_is_what_it_was() -> None:
    """What is published is read back whole."""
    past = exporter_module.Past(7, 1, {"gpu_xid": {"79": exporter_module.Seen(2, 5.0)}}, {("4711", "0", "oom_kill"): 1})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(past), type=exporter_module.Past) == past
