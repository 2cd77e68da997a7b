"""What the kernel's log exporter counts, when and of whom, and what it takes for old."""

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest
from kernel_log_node import MLX5, XID, Node
from rank_table import KILLED

from agent.ranks.writer import OOM_LOG_SECONDS
from agent.sdk.evidence import Wanted
from agent.sdk.exporter import NoData
from agent.sdk.ranks import ExitStatus, ProcessKey
from exporters.kernel_log import exporter as module, follower as follower_module, reader as reader_module
from exporters.kernel_log.classify import MAX_LOGGED

OOM = msgspec.structs.replace(KILLED, oom=True)
KMSG = Path(__file__).parents[1] / "data/kernel_log/kmsg"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty log."""
    (tmp_path / "kmsg").write_text("")
    return tmp_path / "kmsg"


async def test_a_bundle_has_no_command_line_of_the_audit(log: Path) -> None:
    """The kernel's last lines are offered to bundles, without the audit's records, which hold what users called."""
    node = Node(log)
    proctitle = b"python --password=hunter2".hex()
    node.write(
        XID, f"audit: type=1327 audit(1.0:7): proctitle={proctitle}", 'audit: type=1309 audit(1.0:7): a1="hunter2"'
    )
    await node.look()
    part = await node.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
    assert part.files == {"kernel.log": f"7039.000000 {XID}\n".encode()}


async def test_a_bundle_has_lines_of_before_a_restart(log: Path) -> None:
    """An agent that was started anew offers the kernel's last lines, those included that it had counted before."""
    first = Node(log)
    first.write(XID)
    await first.look()
    again = Node(log, first)
    again.write("eth0: link down")
    await again.look()
    part = await again.context.evidence.all()["kernel_log"](Wanted("7", {}, ()))
    assert part.files["kernel.log"].decode().splitlines() == [f"7039.000000 {XID}", "7039.000000 eth0: link down"]


async def test_nothing_is_counted_twice_over_a_restart(log: Path) -> None:
    """A restarted agent goes on after the last record, and what failed still does; a damaged past is counted anew."""
    first = Node(log)
    first.write(XID, "nfs: server a not responding, still trying")
    before = await first.look()
    again = Node(log, first)
    assert await again.look() == before
    assert again.failed() == first.failed() == {("GPU-a", "gpu_xid"), ("", "nfs_not_responding")}
    first.section.published = b"\xc1"
    assert (await Node(log, first).look())["kernel_events_total", "gpu_xid", "79"] == 1


async def test_old_lines_of_a_first_start_are_counted_and_fail_nothing(log: Path) -> None:
    """Lines much older than the log's newest may tell of what is mended; the limit itself is not beyond it."""
    node = Node(log)
    node.write(MLX5, seconds=100.0)
    node.write(XID, seconds=100.5)
    node.write("anything", seconds=100.5 + reader_module.MAX_AGE_SECONDS)
    assert (await node.look())["kernel_events_total", "mlx5_fatal", ""] == 1
    assert node.failed() == {("GPU-a", "gpu_xid")}


async def test_the_newest_line_of_a_first_start_is_read_first(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that takes several reads is one backlog, up to the limit; what is left is taken for new."""
    monkeypatch.setattr(follower_module, "MAX_RECORDS", 1)
    monkeypatch.setattr(follower_module, "MAX_RECORD_BYTES", 156)
    node = Node(log)
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


async def test_a_slow_printk_clock_hides_nothing(log: Path) -> None:
    """A line that is followed fails its check, as of when it was read, however far printk's clock is behind."""
    node = Node(log)
    async with node.running():
        await node.look_again()
        node.clock.advance(90.0 * 86400.0)
        node.write(XID, seconds=7041.0)
        found = await node.look_again()
        assert found["kernel_event_last_timestamp_seconds", "gpu_xid", "79"] == node.clock.time()
        assert node.failed() == {("GPU-a", "gpu_xid")}


async def test_lines_of_an_outage_of_the_agent_are_told(log: Path) -> None:
    """What was written while no agent ran, however long ago, fails its check, and shows with its own time."""
    first = Node(log)
    first.write("anything", seconds=7000.0)
    await first.look()
    first.write(XID, seconds=8000.0)
    first.write("anything", seconds=20_000.0)
    await asyncio.to_thread(first.change)
    first.clock.now = 20_001.0
    again = Node(log, first)
    found = await again.look()
    assert found["kernel_event_last_timestamp_seconds", "gpu_xid", "79"] == again.clock.time() - 12_001.0
    assert again.failed() == {("GPU-a", "gpu_xid")}


async def test_a_thread_is_its_process(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the rank of a line that names a thread of it, or the process; a thread that is gone has no rank."""
    caplog.set_level("INFO")
    node = Node(log)
    node.add_rank(4711, 3)
    node.put(
        node.root / "proc/4799/status",
        "Name:\tpython3\nUmask:\t0022\nState:\tD (disk sleep)\nTgid:\t4711\nNgid:\t0\nPid:\t4799\n",
    )
    node.write(
        "INFO: task python3:4799 blocked for more than 122 seconds.",
        "INFO: task python3:4712 blocked for more than 122 seconds.",
        "python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.30.7[7f0+10000]",
    )
    await node.look()
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(field["category"], field.get("rank")) for field in fields] == [
        ("hung_task", "3"), ("hung_task", None), ("nccl_segfault", "3"),
    ]  # fmt: skip


async def test_kinds_beyond_the_limit(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code more than the limit is counted under none."""
    monkeypatch.setattr(module, "MAX_KINDS", 2)
    node = Node(log)
    for number in range(3):
        node.write(f"NVRM: Xid (PCI:0000:3b:00): {13 + number}, pid={100 + number}, name=x")
    await node.look()
    past = node.exporter.snapshot()
    assert {code: seen.count for code, seen in past.seen["gpu_xid"].items()} == {"13": 1, "14": 1, "": 1}


async def test_the_agents_log_has_each_kind_of_event_once(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Seven alike are one line with their count, a rank is named, and one kind more than the bound is left out."""
    caplog.set_level("INFO")
    node = Node(log)
    node.add_rank(4711, 3)
    node.write(*["EXT4-fs (sda1): mounted filesystem 0f00 r/w with ordered data mode. Quota mode: none."] * 7)
    node.write("python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.30.7[7f0+10000]")
    node.write(*[f"NVRM: Xid (PCI:0000:3b:00): {13 + number}, name=x" for number in range(MAX_LOGGED)])
    await node.look()
    lines = [(record.getMessage(), record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    assert len(lines) == MAX_LOGGED
    assert lines[0] == (
        "the kernel's log reports a recovery: {category}",
        {"category": "filesystem_mount_done", "part": "sda1", "count": 7},
    )
    assert lines[1] == (
        "the kernel's log reports {category} for rank {rank} of job {job_id}, pid {pid}",
        {"category": "nccl_segfault", "pid": "4711", "job_id": "4711", "rank": "3", "count": 1},
    )


OOM_LINE = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1234kB, anon-rss:1234kB"


@pytest.mark.parametrize(
    ("seen", "seconds", "status", "told"),
    [
        (KILLED, 2.0, KILLED, OOM),
        (None, 2.0, KILLED, OOM),
        (ExitStatus(known=False), OOM_LOG_SECONDS, None, OOM),
        (KILLED, OOM_LOG_SECONDS + 0.1, None, KILLED),
        (ExitStatus(known=True, code=3), 2.0, None, ExitStatus(known=True, code=3)),
    ],
)
async def test_the_log_tells_of_a_death_for_want_of_memory(
    log: Path, seen: ExitStatus | None, seconds: float, status: ExitStatus | None, told: ExitStatus
) -> None:
    """A rank that the log names as the OOM killer's victim, so long after it left at most, is that."""
    node = Node(log)
    node.add_rank(4711, 3)
    node.clock.advance(1.0)
    node.ranks.tick()
    async with node.running():
        await node.look_again()
        if seen is not None:
            node.ranks.observe_exit(ProcessKey(4711, 5000), seen)
        node.clock.advance(seconds)
        node.write(OOM_LINE.format(4711))
        await node.look_again()
        node.ranks.observe_exit(ProcessKey(4711, 5000), status)
        node.ranks.tick()
        [view] = node.ranks.snapshot().ranks
        assert view.process.exit == told
        assert view.process.verdict is not None
        assert (view.process.verdict.reason == "oom_killed") == (told == OOM)


async def test_an_old_line_tells_nothing_of_a_rank_that_runs(log: Path) -> None:
    """What a first look at the log finds may be of a process that had the number before: its kill is no rank's."""
    node = Node(log)
    node.add_rank(4711, 3)
    node.write(OOM_LINE.format(4711))
    await node.look()
    node.ranks.observe_exit(ProcessKey(4711, 5000), KILLED)
    [view] = node.ranks.snapshot().ranks
    assert view.process.exit == KILLED


async def test_a_log_that_may_not_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right it is no data, and an error where it was asked for; without a log it is no data."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(NoData):
        await Node(log.with_name("none")).look()
    monkeypatch.setattr("exporters.kernel_log.follower.os.open", refuse)
    with pytest.raises(NoData):
        await Node(log).look()
    with pytest.raises(PermissionError):
        await Node(log, wanted=True).look()
