"""What the kernel's log exporter tells of GPUs' errors: storms, clean-up, places that fail again and again."""

from pathlib import Path

import pytest
from kernel_log_node import Node

from agent.sdk.hardware import Told, fault_table
from exporters.kernel_log import gpu_errors as module, reader as reader_module
from exporters.kernel_log.classify import classify, fails, judged
from exporters.kernel_log.gpu_errors import MAX_PLACES, MAX_USERS, REPEAT_SECONDS, REPEAT_USERS, GpuErrors
from exporters.kernel_log.reader import EventGroup, grouped

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault"
CLEAN_UP = "NVRM: Xid (PCI:0000:{}:00): 45, pid=4711, name=python3, Ch 00000008{}"
WARP = "NVRM: Xid (PCI:0000:3b:00): 13, pid={}, name=python3, Graphics SM Warp Exception on ({}, SM 0): Out Of Range"
PCI = "0000:3b:00.0"
PLACE = Told("13", place="GPC 4, TPC 2")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty log."""
    (tmp_path / "kmsg").write_text("")
    return tmp_path / "kmsg"


def shown(node: Node) -> dict[tuple[str, str], str]:
    """By GPU and code: what it means."""
    return {(fault.gpu_uuid, fault.seen.fault.code): fault.seen.fault.meaning for fault in node.hardware.faults()}


async def test_a_jobs_crash_is_nothing_of_the_hardware(log: Path) -> None:
    """Clean-up on all GPUs of a job, after an error of one or for no reason told, fails nothing."""
    node = Node(log)
    node.write(CLEAN_UP.format("3b", ""), CLEAN_UP.format("18", " caused by previous Xid 31"), XID_31)
    found = await node.look()
    assert (found["kernel_events_total", "gpu_xid", "45"], node.failed()) == (2, set())
    assert shown(node) == {
        ("GPU-a", "45"): "clean-up after another error",
        ("GPU-a", "31"): "GPU memory page fault",
        ("GPU-b", "45"): "clean-up after Xid 31",
    }


async def test_the_errors_of_gpus_outlive_the_agent_and_age(log: Path) -> None:
    """A restarted agent shows them with their times, for a day after the last."""
    first = Node(log)
    first.write(XID_79)
    await first.look()
    again = Node(log, first)
    await again.look()
    assert again.hardware.faults() == first.hardware.faults()
    assert shown(again) == {("GPU-a", "79"): "GPU has fallen off the bus"}
    again.clock.advance(fault_table.MAX_AGE_SECONDS + 10.0)
    await again.look()
    assert shown(again) == {}


async def test_a_storm_is_one_counter(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Many alike lines are one event to count, one line of the agent's log, and hide no other line."""
    caplog.set_level("INFO")
    node = Node(log)
    node.write(*[XID_31] * 60, XID_79, *[XID_31] * 30)
    found = await node.look()
    assert found["kernel_events_total", "gpu_xid", "31"] == 90
    assert node.failed() == {("GPU-a", "gpu_xid")}
    counts = [record.fields["count"] for record in caplog.records]  # type: ignore[attr-defined]
    assert counts == [90, 1]


def test_alike_events_are_put_together_up_to_a_recovery() -> None:
    """Counts add up, the last stamp stays, and what stands on both sides of a recovery stays apart."""
    xid, load = classify(XID_79), classify("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    assert xid is not None
    assert load is not None
    told = [EventGroup(each, float(at), False, 1) for at, each in enumerate([xid, xid, load, load, xid])]  # noqa: FBT003
    assert [(each.event, each.seconds, each.times) for each in grouped(told)] == [
        (xid, 1.0, 2),
        (load, 3.0, 2),
        (xid, 4.0, 1),
    ]
    assert grouped([told[0], told[1]._replace(is_old=True)]) == [told[0], told[1]._replace(is_old=True)]


async def test_one_place_that_fails_several_users_programs(log: Path) -> None:
    """A kernel's fault is its program's, also often; at one place under several users it is the GPU's: a warning."""
    node = Node(log)
    async with node.running():
        for number, user in enumerate([1000] * REPEAT_USERS + list(range(1001, 1000 + REPEAT_USERS))):
            assert node.failed() == set()
            pid = 4711 + number
            node.put(node.root / f"proc/{pid}/status", f"Name:\ta\nTgid:\t{pid}\nUid:\t{user}\t0\t0\t0\n")
            node.write(WARP.format(pid, "GPC 4, TPC 2"), WARP.format(pid, f"GPC {number}, TPC 0"))
            await node.look_again()
        assert node.failed() == {("GPU-a", "gpu_xid_warning")}
        assert shown(node)["GPU-a", "13"] in {"kernels of several users fail at GPC 4, TPC 2"}


def test_users_of_long_ago_and_unknown_ones_do_not_count() -> None:
    """Only users whose programs failed there within the time, and who are known, are users of the place."""
    errors = GpuErrors()
    for user in range(REPEAT_USERS - 1):
        assert errors.repeats(PCI, PLACE, user, 0.0) is None
    assert errors.repeats(PCI, PLACE, -1, 1.0) is None
    assert errors.repeats(PCI, Told("13"), 77, 1.0) is None
    assert errors.repeats(PCI, PLACE, 77, REPEAT_SECONDS + 1.0) is None
    assert errors.repeats(PCI, PLACE, 78, REPEAT_SECONDS + 1.0) is None
    assert errors.repeats(PCI, PLACE, 79, 2 * REPEAT_SECONDS + 1.0) is not None


def test_places_users_and_gpus_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place more drops the one that failed longest ago; one user or GPU more is not kept."""
    errors = GpuErrors()
    for number in range(MAX_PLACES + 1):
        errors.repeats(PCI, Told("13", place=f"GPC {number}"), 1, 0.0)
    assert (len(errors.places), (PCI, "13", "GPC 0") in errors.places) == (MAX_PLACES, False)
    for user in range(MAX_USERS + 1):
        errors.repeats(PCI, PLACE, user, 0.0)
    assert len(errors.places[PCI, "13", PLACE.place]) == MAX_USERS
    monkeypatch.setattr(module, "MAX_GPUS", 1)
    event = classify(XID_79)
    assert event is not None
    error = judged(event)
    assert error is not None
    for pci in (PCI, "0000:18:00.0", PCI):
        errors.note(pci, error.fault, 5.0)
    assert list(errors.faults) == [PCI]


def test_no_more_texts_are_remembered_than_the_bound() -> None:
    """Lines that are all different do not fill the memory."""
    for number in range(reader_module.MAX_ALIKE + 1):
        reader_module.remembered(f"{XID_31} {number}")
    assert reader_module.remembered.cache_info().currsize == reader_module.MAX_ALIKE


AMD = """
GPU reset begin!. Source:  4                                     | reset - - | gpu_reset
GPU reset(3) failed                                              | reset - failed | gpu_reset
ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3            | ring_timeout gfx_0.0.0 - | -
MES might be in unrecoverable state, issue a GPU reset           | hang - - | -
Failed to evict process queues                                   | eviction - - | -
socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block|uncorrectable umc - | gpu_ecc_uncorrectable
2 uncorrectable hardware errors detected in xgmi_wafl block      | uncorrectable xgmi_wafl - | -
RAS poison consumption, unmap queue flow succeeded: client id 27 | poison - - | -
RAS poison consumption, fall back to gpu reset flow: client id 10 | poison - fatal | gpu_reset
GPU reset for vcn RAS poison consumption is issued!              | poison vcn fatal | gpu_reset
"""
"""A line of amdgpu; code, unit and severity; the check that it fails."""


def test_amds_errors() -> None:
    """A line of amdgpu gives code, unit and severity, and fails the GPU's check."""
    for line in AMD.strip().splitlines():
        text, words, check = (cell.strip() for cell in line.split("|"))
        event = classify(f"amdgpu 0000:3b:00.0: amdgpu: {text}")
        assert event is not None, line
        assert event.gpu_error is not None, line
        error = event.gpu_error
        assert [error.code, error.unit or "-", error.severity or "-"] == words.split(), line
        assert (event.pci, fails(event, 7000.0) or "-") == (PCI, check), line
