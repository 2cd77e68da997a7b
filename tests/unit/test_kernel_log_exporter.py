"""The kernel log exporter: counts, ranks of lines, and old lines."""

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest
from kernel_log_node import MLX5, XID, Node
from rank_table import KILLED, environment, facts

from agent.ranks.writer import OOM_LOG_SECONDS
from agent.sdk.evidence import Wanted
from agent.sdk.exporter import NoData
from agent.sdk.hardware import DriverReport
from agent.sdk.ranks import ExitStatus, ProcessKey
from exporters.kernel_log import exporter as module, gpu_errors as errors_module, reader as reader_module
from exporters.kernel_log.classify import MAX_LOGGED, KernelEvent, classify, fails, judged
from exporters.kernel_log.gpu_errors import MAX_PLACES, MAX_USERS, REPEAT_SECONDS, REPEAT_USERS, GpuErrors
from exporters.kernel_log.reader import EventGroup, grouped

OOM = msgspec.structs.replace(KILLED, oom=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Provide an empty log."""
    (tmp_path / "kmsg").write_text("")
    return tmp_path / "kmsg"


@pytest.fixture
def node(log: Path) -> Node:
    """Provide a node with two GPUs and a NIC."""
    return Node(log)


async def test_a_bundle_has_no_command_line_of_the_audit(node: Node, log: Path) -> None:
    """A bundle has the kernel's last lines without the audit's records."""
    proctitle = b"python --password=hunter2".hex()
    node.write(XID, f"audit: type=1327 audit(1.0:7): proctitle={proctitle}")
    node.write('audit: type=1309 audit(1.0:7): a1="hunter2"')
    await node.look()
    part = await node.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
    assert part.files == {"kernel.log": f"7039.000000 {XID}\n".encode()}


async def test_a_bundle_has_lines_of_before_a_restart(log: Path) -> None:
    """After a restart of the agent, a bundle also has lines from before the restart."""
    first = Node(log)
    first.write(XID)
    await first.look()
    again = Node(log, first)
    again.write("eth0: link down")
    await again.look()
    part = await again.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
    assert part.files["kernel.log"].decode().splitlines() == [f"7039.000000 {XID}", "7039.000000 eth0: link down"]


async def test_lines_of_nvidias_driver_are_marked_as_fragments(log: Path) -> None:
    """An Xid marked as a continuation by the driver is one event; after a restart, it and a later loss count once."""
    node = Node(log)
    async with node.running():
        node.put(log, "4,0,1,-;eth0: link up\n")
        await node.look_again()
        node.put(log, f"4,1,7039000000,c;{XID}\n5,3,7039000000,-;eth0: link up\n", "a")
        assert ("kernel_events_total", "gpu_xid", "79") not in await node.look_again()
        part = await node.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
        assert part.files["kernel.log"].decode().splitlines()[-2] == f"7039.000000 {XID}"
    again = Node(log, node)
    async with again.running():
        for _ in range(2):
            series = await again.look_again()
            assert (series["kernel_events_total", "gpu_xid", "79"], series["kernel_log_lost_total",]) == (1.0, 1.0)
    assert again.failed() == {("GPU-a", "gpu_xid")}


async def test_a_bundle_reads_the_log_first(log: Path) -> None:
    """A bundle has a line that no update has read; the next update counts it."""
    node = Node(log)
    async with node.running():
        await node.look_again()
        node.write(XID)
        await asyncio.to_thread(node.change)
        part = await node.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
        assert part.files["kernel.log"].decode().endswith(f"{XID}\n")
        assert (await node.look_again())["kernel_events_total", "gpu_xid", "79"] == 1.0


async def test_nothing_is_counted_twice_over_a_restart(log: Path) -> None:
    """A restarted agent goes on after the last record, and failed checks stay failed."""
    first = Node(log)
    first.write(XID, "nfs: server a not responding, still trying")
    before = await first.look()
    again = Node(log, first)
    assert await again.look() == before
    assert again.failed() == first.failed() == {("GPU-a", "gpu_xid"), ("", "nfs_not_responding")}
    first.section.published = b"\xc1"
    assert (await Node(log, first).look())["kernel_events_total", "gpu_xid", "79"] == 1


async def test_old_lines_of_a_first_start_are_counted_and_fail_nothing(node: Node) -> None:
    """At a first start, lines older than the limit are counted and fail no check."""
    node.write(MLX5, seconds=100.0)
    node.write(XID, seconds=100.5)
    node.write("anything", seconds=100.5 + reader_module.MAX_AGE_SECONDS)
    assert (await node.look())["kernel_events_total", "mlx5_fatal", ""] == 1
    assert node.failed() == {("GPU-a", "gpu_xid")}


async def test_the_newest_line_of_a_first_start_is_read_first(
    node: Node, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest line of a backlog decides which lines are old; lines after the backlog are new."""
    monkeypatch.setattr(reader_module, "MAX_RECORDS", 1)
    monkeypatch.setattr(reader_module, "MAX_RECORD_BYTES", 156)
    node.write(f"{MLX5:-<138}", seconds=1000.0)
    node.write(f"{XID:-<138}", seconds=1000.0)
    node.write(f"{'anything':-<138}", seconds=6000.0)
    assert [len(text) for _, text, _ in node.changes] == [156, 156, 156]
    await node.look()
    assert node.failed() == set()
    monkeypatch.setattr(reader_module, "MAX_BACKLOG_READS", 2)
    again = Node(log)
    await again.look()
    assert again.failed() == {("GPU-a", "gpu_xid"), ("mlx5_0", "nic_fatal")}


async def test_a_slow_printk_clock_hides_nothing(node: Node) -> None:
    """A new line gets the time at which it is read, even if printk's clock is months behind."""
    async with node.running():
        await node.look_again()
        node.clock.advance(90.0 * 86400.0)
        node.write(XID, seconds=7041.0)
        series = await node.look_again()
        assert series["kernel_event_last_timestamp_seconds", "gpu_xid", "79"] == node.clock.time()
        assert node.failed() == {("GPU-a", "gpu_xid")}


async def test_lines_of_an_outage_of_the_agent_count(log: Path) -> None:
    """A line from the agent's downtime fails its check with the line's own time."""
    first = Node(log)
    first.write("anything", seconds=7000.0)
    await first.look()
    first.write(XID, seconds=8000.0)
    first.write("anything", seconds=20_000.0)
    await asyncio.to_thread(first.change)
    first.clock.now = 20_001.0
    again = Node(log, first)
    series = await again.look()
    assert series["kernel_event_last_timestamp_seconds", "gpu_xid", "79"] == again.clock.time() - 12_001.0
    assert again.failed() == {("GPU-a", "gpu_xid")}


async def test_a_thread_is_its_process(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """If a line names a process or a thread of it, the agent's log names the rank; an exited thread gives no rank."""
    caplog.set_level("INFO")
    node.add_rank(4711, 3)
    node.put(node.root / "proc/4799/status", "Name:\tpython3\nState:\tD (disk sleep)\nTgid:\t4711\nPid:\t4799\n")
    node.write(*(f"INFO: task python3:{pid} blocked for more than 122 seconds." for pid in (4799, 4712)))
    node.write("python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.30.7[7f0+10000]")
    await node.look()
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    ranks = [(field["category"], field.get("rank")) for field in fields]
    assert ranks == [("hung_task", "3"), ("hung_task", None), ("nccl_segfault", "3")]


async def test_kinds_beyond_the_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of kinds, a line counts without its code."""
    monkeypatch.setattr(module, "MAX_KINDS", 2)
    for number in range(3):
        node.write(f"NVRM: Xid (PCI:0000:3b:00): {13 + number}, pid={100 + number}, name=x")
    await node.look()
    past = msgspec.msgpack.decode(node.exporter.snapshot(), type=module.Past)
    assert {code: count.lines for code, count in past.counts["gpu_xid"].items()} == {"13": 1, "14": 1, "": 1}


async def test_the_agents_log_has_each_kind_of_event_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Equal lines become one log line with their count and rank; kinds above the limit are left out."""
    caplog.set_level("INFO")
    node.add_rank(4711, 3)
    node.write(*["EXT4-fs (sda1): mounted filesystem 0f00 r/w with ordered data mode. Quota mode: none."] * 7)
    node.write("python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.30.7[7f0+10000]")
    node.write(*[f"NVRM: Xid (PCI:0000:3b:00): {13 + number}, name=x" for number in range(MAX_LOGGED)])
    await node.look()
    lines = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert len(lines) == MAX_LOGGED
    assert lines[:2] == [
        {"category": "filesystem_mount_done", "part": "sda1", "count": 7},
        {"category": "nccl_segfault", "pid": "4711", "job_id": "4711", "rank": "3", "count": 1},
    ]


OOM_LINE = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1234kB, anon-rss:1234kB"


@pytest.mark.parametrize(("known", "seconds", "status", "expected"), [
    (KILLED, 2.0, KILLED, OOM),
    (None, 2.0, KILLED, OOM),
    (ExitStatus(known=False), OOM_LOG_SECONDS, None, OOM),
    (KILLED, OOM_LOG_SECONDS + 0.1, None, KILLED),
    (ExitStatus(known=True, code=3), 2.0, None, ExitStatus(known=True, code=3)),
])  # fmt: skip
async def test_the_log_names_a_death_by_the_oom_killer(
    node: Node, known: ExitStatus | None, seconds: float, status: ExitStatus | None, expected: ExitStatus
) -> None:
    """A rank's exit is an OOM kill if a line that names it as victim is read at most OOM_LOG_SECONDS later, and its
    exit status is SIGKILL or unknown."""
    node.add_rank(4711, 3)
    node.clock.advance(1.0)
    node.ranks.tick()
    async with node.running():
        await node.look_again()
        if known is not None:
            node.ranks.observe_exit(ProcessKey(4711, 5000), known)
        node.clock.advance(seconds)
        node.write(OOM_LINE.format(4711))
        await node.look_again()
        node.ranks.observe_exit(ProcessKey(4711, 5000), status)
        node.ranks.tick()
        [view] = node.ranks.snapshot().ranks
        assert view.process.exit == expected
        assert view.process.verdict is not None
        assert (view.process.verdict.reason == "oom_killed") == (expected == OOM)


async def test_the_oom_killer_and_a_pid_that_is_used_again(node: Node) -> None:
    """If an exited rank had the pid before, the OOM kill is that of the newest rank with this pid."""
    node.add_rank(4711, 3)
    node.ranks.observe_exit(ProcessKey(4711, 5000), KILLED)
    node.clock.advance(OOM_LOG_SECONDS + 1.0)
    assert node.ranks.observe_process(msgspec.structs.replace(facts(4711, environment(4)), key=ProcessKey(4711, 6000)))
    node.ranks.tick()
    async with node.running():
        await node.look_again()
        node.write(OOM_LINE.format(4711))
        await node.look_again()
        node.ranks.observe_exit(ProcessKey(4711, 6000), KILLED)
        assert {view.label.rank: view.process.exit for view in node.ranks.snapshot().ranks} == {"3": KILLED, "4": OOM}


async def test_an_old_line_is_not_evidence_about_a_running_rank(node: Node) -> None:
    """An OOM kill from before the agent's start is not the kill of a running rank."""
    node.add_rank(4711, 3)
    node.write(OOM_LINE.format(4711))
    await node.look()
    node.ranks.observe_exit(ProcessKey(4711, 5000), KILLED)
    [view] = node.ranks.snapshot().ranks
    assert view.process.exit == KILLED


async def test_a_log_that_may_not_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission to read the log there is no source; if `enabled` is true, this is an error."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(NoData):
        await Node(log.with_name("none")).look()
    monkeypatch.setattr("exporters.kernel_log.reader.os.open", refuse)
    with pytest.raises(NoData, match="no right"):
        await Node(log).look()
    with pytest.raises(PermissionError):
        await Node(log, wanted=True).look()


async def test_faults_get_their_name_after_a_restart_and_without_a_log(log: Path) -> None:
    """A fault saved under an address gets its hardware's name after a restart, even if the log is gone."""
    first = Node(log, named=False)
    first.write(XID)
    await first.look()
    again = Node(log.with_name("none"), first)
    with pytest.raises(NoData):
        await again.look()
    assert again.failed() == {("GPU-a", "gpu_xid")}


NIC = ("mlx5_0", "nic_fatal")
OTHER_NIC, OTHER_GPU = ("0000:77:00.0", "nic_fatal"), ("0000:86:00.0", "gpu_lost")
NFS, NFS_SILENT = "nfs: server {} not responding, still trying", ("", "nfs_not_responding")
TWO_NICS = [MLX5, MLX5.replace("19:", "77:"), "amdgpu 0000:18:00.0: GPU reset begin!. Source:  4"]
RESET_DONE = "amdgpu 0000:18:00.0: GPU reset(1) succeeded!"
RECOVERY = "mlx5_core 0000:19:00.0: mlx5_health_try_recover:{}:(pid 9): health recovery {}"


@pytest.mark.parametrize("steps", [
    pytest.param([
        ([XID, "NVRM: GPU 0000:86:00.0: GPU has fallen off the bus.", MLX5], {("GPU-a", "gpu_xid"), OTHER_GPU, NIC}),
        (["nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12 Always Fatal"],
         {("GPU-a", "gpu_xid"), OTHER_GPU, NIC, ("", "nvswitch_fatal")}),
        (["NVRM: loading NVIDIA UNIX x86_64 Kernel Module"], {NIC}),
    ], id="a loaded driver ends faults of GPUs and NVSwitches, and none of a NIC"),
    pytest.param([
        ([*TWO_NICS, RECOVERY.format(338, "succeeded"), RESET_DONE], {OTHER_NIC}),
        ([RECOVERY.format(334, "failed")], {OTHER_NIC, NIC}),
    ], id="a NIC recovers alone, and fails again"),
    pytest.param([
        ([*TWO_NICS, "mlx5_core 0000:19:00.0: firmware version: 16.35.4506", RESET_DONE], {OTHER_NIC}),
    ], id="a NIC is probed anew"),
    pytest.param([
        ([NFS.format("a"), NFS.format("b"), "nfs: server c not responding, timed out", "nfs: server a OK"],
         {NFS_SILENT}),
        (["nfs: server b OK"], set()),
    ], id="an NFS server answers for itself alone"),
])  # fmt: skip
async def test_what_ends_a_fault(node: Node, steps: list[tuple[list[str], set[tuple[str, str]]]]) -> None:
    """A check fails from a fault's line to the line of its recovery."""
    async with node.running():
        for lines, failed in steps:
            node.write(*lines)
            await node.look_again()
            assert node.failed() == failed


async def test_a_file_system_is_read_only_until_it_is_not(node: Node, log: Path) -> None:
    """A read-only file system fails its check until it is writable, unmounted or mounted again."""
    mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 {}\n33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n"
    node.mount(mounts.format("ro"))
    node.write("EXT4-fs (sda1): Remounting filesystem read-only", "XFS (dm-0): Shutting down filesystem.")
    node.write("BTRFS info (device loop7): forced readonly")
    async with node.running():
        for mounted, lines, is_bad in (
            (mounts.format("ro"), [], True),
            (mounts.format("ro"), [], True),
            (mounts.format("rw"), [], True),
            ("33 22 253:0 / /x rw - xfs /dev/dm-0 rw\n", ["XFS (dm-0): Unmounting Filesystem"], False),
            ("", ["XFS (dm-0): Filesystem has been shut down due to log error (0x2)."], True),
            ("", [], False),
        ):
            node.mount(mounted)
            node.write(*lines)
            await node.look_again()
            assert node.failed() == ({("", "filesystem_read_only")} if is_bad else set())


async def test_a_silent_server_is_forgotten_with_its_last_mount(node: Node) -> None:
    """A silent server fails its check until it is unmounted; a server without a known mount, until it responds."""
    mount = "40 22 0:50 / /n rw - nfs4 a:/n ro\n"
    node.write(NFS.format("a"), NFS.format("b"))
    async with node.running():
        for mounted, line, silent in (
            (mount, "eth0: link up", "ab"), (mount, "eth0: link up", "ab"), (mount, "nfs: server b OK", "a"),
            (mount.replace("ro", "rw"), "eth0: link up", "a"), ("", NFS.format("b"), "b"), ("", "eth0: link up", "b"),
        ):  # fmt: skip
            node.mount(mounted)
            node.write(line)
            await node.look_again()
            past = msgspec.msgpack.decode(node.exporter.snapshot(), type=module.Past)
            assert "".join(past.parts["nfs_not_responding"]) == silent
            assert node.failed() == {NFS_SILENT}
        node.write("nfs: server b OK")
        await node.look_again()
        assert node.failed() == set()


async def test_file_systems_stay_failed_while_mounts_cannot_be_read(node: Node, log: Path) -> None:
    """Without mountinfo a file system stays failed, even after a restart of the agent."""
    node.write("EXT4-fs (sda1): Remounting filesystem read-only")
    await node.look()
    again = Node(log, node)
    await again.look()
    assert again.failed() == {("", "filesystem_read_only")}


async def test_parts_beyond_the_limit_are_not_followed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of an NFS server above the limit are only counted, so the check recovers; timeouts are only counted."""
    monkeypatch.setattr(module, "MAX_PARTS", 2)
    node.write(*map(NFS.format, "abc"), "nfs: server c not responding, timed out", "nfs: server a OK")
    async with node.running():
        series = await node.look_again()
        counts = [series["kernel_events_total", name, ""] for name in ("nfs_not_responding", "nfs_timed_out")]
        assert (counts, node.failed()) == ([3, 1], {NFS_SILENT})
        node.write("nfs: server b OK")
        await node.look_again()
        assert node.failed() == set()


WARP = "NVRM: Xid (PCI:0000:3b:00): 13, pid={}, name=python3, Graphics SM Warp Exception on ({}, SM 0): Out Of Range"
PCI = "0000:3b:00.0"
PLACE = DriverReport("13", place="GPC 4, TPC 2")


def shown(node: Node) -> dict[tuple[str, str], str]:
    """Return the meaning of each error, keyed by GPU and code."""
    return {(fault.gpu_uuid, fault.timed.fault.code): fault.timed.fault.meaning for fault in node.hardware.faults()}


def event_of(text: str) -> KernelEvent:
    """Return the event of a line."""
    event = classify(text)
    assert event is not None, text
    return event


def test_alike_events_are_put_together_at_their_last_line() -> None:
    """Equal events become one event with their count and last time: a recovery that came last stays the last."""
    xid, load = event_of(XID), event_of("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    events = [EventGroup(event, float(at), is_old=False, times=1) for at, event in enumerate([xid, load, xid, load])]
    groups = [(group.event, group.seconds, group.times) for group in grouped(events)]
    assert groups == [(xid, 2.0, 2), (load, 3.0, 2)]
    of_two_ages = [events[0], events[0]._replace(is_old=True)]
    assert grouped(of_two_ages) == of_two_ages


async def test_one_place_that_fails_several_users_programs(node: Node) -> None:
    """A GPU fault, however frequent, blames the program; faults of several users at one unit blame the GPU."""
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
    """Users count if they are known and their programs failed at one place of the GPU in the last REPEAT_SECONDS."""
    errors = GpuErrors()
    for user in range(REPEAT_USERS - 1):
        assert errors.repeats(PCI, PLACE, user, 0.0) is None
    assert errors.repeats(PCI, PLACE, -1, 1.0) is None
    assert errors.repeats(PCI, DriverReport("13"), 77, 1.0) is None
    assert errors.repeats(PCI, PLACE, 77, REPEAT_SECONDS + 1.0) is None
    assert errors.repeats(PCI, PLACE, 78, REPEAT_SECONDS + 1.0) is None
    assert errors.repeats(PCI, PLACE, 79, 2 * REPEAT_SECONDS + 1.0) is not None


def test_places_users_and_gpus_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, the unit that failed longest ago is dropped; users and GPUs above their limits are ignored."""
    errors = GpuErrors()
    for number in range(MAX_PLACES + 1):
        errors.repeats(PCI, DriverReport("13", place=f"GPC {number}"), 1, 0.0)
    assert (len(errors.places), (PCI, "13", "GPC 0") in errors.places) == (MAX_PLACES, False)
    for user in range(MAX_USERS + 1):
        errors.repeats(PCI, PLACE, user, 0.0)
    assert len(errors.places[PCI, "13", PLACE.place]) == MAX_USERS
    monkeypatch.setattr(errors_module, "MAX_GPUS", 1)
    error = judged(event_of(XID))
    assert error is not None
    for pci in (PCI, "0000:18:00.0", PCI):
        errors.note(pci, error.fault, 5.0)
    assert list(errors.faults) == [PCI]


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
"""A line of amdgpu; its code, unit and severity; the check that it fails."""


def test_amds_errors() -> None:
    """A line of amdgpu gives code, unit and severity, and fails the GPU's check."""
    for line in AMD.strip().splitlines():
        text, words, check = (cell.strip() for cell in line.split("|"))
        event = event_of(f"amdgpu 0000:3b:00.0: amdgpu: {text}")
        error = event.gpu_error
        assert error is not None, line
        assert [error.code, error.unit or "-", error.severity or "-"] == words.split(), line
        assert (event.pci, fails(event, 7000.0) or "-") == (PCI, check), line
