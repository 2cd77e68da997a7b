"""Usage and waits of rank processes in a fake /proc."""

import os
from pathlib import Path

import pytest
from scanned_node import Node

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process.observation import THREADS_SECONDS
from exporters.process.usage.reader import MAX_WAITS_READ, Usages, unavailable
from exporters.process.usage.totals import MAX_PER_RANK, RankUsage

RANK = ProcessKey(10, 5000)
UTIME, CUTIME, IO_WAIT = 14, 16, 42
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Provide a node with one rank, pid 10."""
    made = Node(tmp_path)
    add_rank(made)
    return made


def add_rank(node: Node, pid: int = 10, **how: object) -> None:
    """Write a rank, or replace it."""
    threads = {pid + 1: "NCCL RAS", pid + 2: "worker"}
    node.proc.add(pid, threads=threads, **how)  # type: ignore[arg-type]


def usages(node: Node) -> Usages:
    """Return the result of the next look at usage."""
    rank_usage = node.look(after=THREADS_SECONDS).usages
    assert rank_usage is not None
    return rank_usage


def usage(node: Node, key: ProcessKey = RANK) -> RankUsage:
    """Return the usage of one rank in the next look at usage."""
    return usages(node).ranks[key]


def test_waits_of_all_threads(node: Node) -> None:
    """Threads' waits for CPUs and disks since the first look add up in seconds."""
    for tid in (10, 11, 12):
        node.proc.note(10, tid, schedstat="1 1000000000 1\n")
    assert (usage(node).run_queue_wait_seconds, usage(node).io_wait_seconds) == (0.0, 0.0)
    add_rank(node, numbers={UTIME: 1, IO_WAIT: TICKS})
    for tid, seconds in ((10, 2), (11, 3), (12, 1)):
        node.proc.note(10, tid, schedstat=f"1 {seconds}000000000 1\n")
    rank_usage = usage(node)
    assert (rank_usage.run_queue_wait_seconds, rank_usage.io_wait_seconds) == (3.0, 3.0)


def test_waits_that_the_kernel_does_not_count(node: Node) -> None:
    """Without schedstat or delay accounting the waits are None, and the log names the missing feature."""
    (node.proc.root / "sys/kernel/task_delayacct").write_text("0\n")
    rank_usage = usage(node)
    assert (rank_usage.run_queue_wait_seconds, rank_usage.io_wait_seconds) == (None, None)
    said = unavailable(ProcFS(node.proc.root), node.roots)
    assert [text.partition(" unavailable")[0] for text in said] == [
        "CPU wait time", "disk wait time", "control group pressure", "wait channels",
    ]  # fmt: skip


def test_children_are_descendants_that_are_no_ranks(node: Node) -> None:
    """A descendant counts for the nearest rank above; other ranks and unrelated processes do not count."""
    add_rank(node, 20, parent=10)
    for pid, parent in ((30, 10), (31, 30), (40, 20), (41, 1)):
        node.proc.add(pid, parent=parent)
    assert usage(node).children_cpu_seconds == 0.0
    for pid, parent in ((30, 10), (31, 30), (40, 20), (41, 1)):
        node.proc.add(pid, parent=parent, numbers={UTIME: pid * TICKS})
    rank_usage = usages(node).ranks
    assert {key.pid: rank.children_cpu_seconds for key, rank in rank_usage.items()} == {10: 61.0, 20: 40.0}


# -- children ------------------------------------------------------------------------------------------------------


def test_reused_pids_make_no_children(node: Node) -> None:
    """A process older than its parent is no child, and neither is a process in a ring of parents."""
    for pid, parent, start in ((30, 10, 4999), (31, 32, 5000), (32, 31, 5000)):
        node.proc.add(pid, parent=parent, start=start)
    assert usage(node).children_cpu_seconds is None


def test_child_that_ends_between_the_reads(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a child exits between two reads, its time counts once, in the next look."""
    node.proc.add(30, parent=10, numbers={UTIME: 100 * TICKS})
    usage(node)
    add_rank(node, numbers={CUTIME: 101 * TICKS})  # the child used one more second, exited and was reaped
    stat = node.scanner._proc.stat

    with monkeypatch.context() as patched:
        seen: list[int] = []

        def leave(pid: int) -> object:
            seen.append(pid)
            return None if pid == 30 and seen.count(30) > 1 else stat(pid)

        patched.setattr(node.scanner._proc, "stat", leave)
        assert usage(node).children_cpu_seconds == 0.0
    node.proc.remove(30)
    assert usage(node).children_cpu_seconds == 1.0


def test_stopped_children(node: Node) -> None:
    """Stopped children count; the rank itself and zombies do not."""
    add_rank(node, state="T")
    for pid, state in ((30, "T"), (31, "S"), (32, "Z"), (33, "T")):
        node.proc.add(pid, parent=10, state=state)
    assert usage(node).children_stopped == 2


def test_children_of_a_rank_are_bounded(node: Node) -> None:
    """At most MAX_PER_RANK children of a rank are read, the oldest first, whatever their names are."""
    for number in range(MAX_PER_RANK + 1):
        node.proc.add(1000 + number, parent=10, name="a) R 1\n(", start=6000 + number, state="T")
    node.look(after=0.0)
    assert usage(node).children_stopped == MAX_PER_RANK


# -- blocked threads -----------------------------------------------------------------------------------------------


def blocked(node: Node, **states: str) -> RankUsage:
    """Make these threads (``t11``: thread 11) sleep in state D, each in the given function; return the rank's usage."""
    tids = {int(name[1:]): function for name, function in states.items()}
    add_rank(node, state="S", thread_states=dict.fromkeys(tids, ("D", 7)))
    for tid, function in tids.items():
        node.proc.note(10, tid, wchan=function)
    return usage(node)


def test_blocked_threads(node: Node) -> None:
    """Threads in uninterruptible sleep are counted by the cause of their wait, even threads of children."""
    node.proc.add(30, parent=10, state="D")
    node.proc.note(30, 30, wchan="rpc_wait_bit_killable")
    node.look(after=0.0)
    rank_usage = blocked(node, t10="folio_wait_bit_common", t12="nfs_wait_on_request")
    assert rank_usage.blocked == (("disk", 1), ("nfs", 2))


@pytest.mark.parametrize(("state", "text", "stack", "wait"), [
    ("I", "cl_sync_io_wait", "", "lustre"),  # the kernel does not count it as load
    ("S", "cl_sync_io_wait", "", None),  # a signal can end the wait
    ("D", "rpc_wait_bit_killable", "", "nfs"),
    ("D", "jbd2_log_wait_commit", "", "disk"),
    ("D", "_nv042871rm", "", "gpu"),
    ("D", "dma_fence_default_wait", "", "gpu"),
    ("D", "folio_wait_bit_common", "[<0>] folio_wait_bit_common+0x1/0x2\n[<0>] nfs4_read+0x1/0x2 [nfsv4]\n", "nfs"),
    *(("D", odd, "", "other") for odd in ("0", "", "x y", "x\ny", "1abc", "a" * 200)),
])  # fmt: skip
def test_wait_of_a_thread(node: Node, state: str, text: str, stack: str, wait: str | None) -> None:
    """A readable stack decides a wait's cause, otherwise the innermost function; an unknown function gives "other"."""
    add_rank(node, thread_states={12: (state, 7)})
    node.proc.note(10, 12, wchan=text, **({"stack": stack} if stack else {}))
    assert usage(node).blocked == (((wait, 1),) if wait else ())


def wait_for_pages(node: Node, call: str, *, mount_id: str = "47", file_system: str = "nfs4") -> RankUsage:
    """Make a thread wait for pages in a system call on a file of this file system; return the rank's usage."""
    add_rank(node, thread_states={12: ("D", 7)})
    node.proc.note(10, 12, wchan="folio_wait_bit_common", syscall=call)
    folder = node.proc.root / "10"
    (folder / "fdinfo").mkdir()
    (folder / "fdinfo/5").write_text(f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount_id}\nino:\t9\n")
    root = "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
    (folder / "mountinfo").write_text(f"{root}47 21 0:40 / /my\\040data rw,noatime - {file_system} server:/x - y rw\n")
    return usage(node)


READ, SLEEP = {"x86_64": (0, 35), "aarch64": (63, 101)}.get(os.uname().machine, (-1, -1))


@pytest.mark.skipif(READ < 0, reason="the numbers of this machine's system calls are not known")
@pytest.mark.parametrize(
    ("file_system", "wait"),
    [("nfs4", "nfs"), ("nfs", "nfs"), ("lustre", "lustre"), ("fuse.s3fs", "fuse"), ("fuse", "fuse"), ("xfs", "disk")],
)
def test_wait_for_pages_is_of_the_file_that_is_read(node: Node, file_system: str, wait: str) -> None:
    """If a thread waits for pages, the system call's descriptor gives the file system."""
    rank_usage = wait_for_pages(node, f"{READ} 0x5 0x7f00 0x1000 0x0 0x0 0x0 0x7ffe 0x7f01\n", file_system=file_system)
    assert rank_usage.blocked == ((wait, 1),)


@pytest.mark.parametrize(("call", "mount_id"), [
    (f"{SLEEP} 0x5 0x0\n", "47"),  # no descriptor
    (f"{READ} 0x6 0x0\n", "47"),  # an unreadable descriptor
    (f"{READ} 0xffffff9c 0x0\n", "47"),
    (f"{READ} 0x5 0x0\n", "99"),  # unmounted in the meantime
    (f"{READ} 0x5 0x0\n", "x"),
    ("running\n", "47"),
    ("-1 0x7ffe 0x7f01\n", "47"),  # a page fault
    ("", "47"),
])  # fmt: skip
def test_wait_for_pages_of_an_unknown_file(node: Node, call: str, mount_id: str) -> None:
    """If the system call, its descriptor or the mount is unreadable, the wait counts as a wait for a disk."""
    assert wait_for_pages(node, call, mount_id=mount_id).blocked == (("disk", 1),)


def test_wait_that_is_over(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that runs again before its wait is read does not count."""
    thread_stat = node.scanner._proc.thread_stat
    reads: list[int] = []

    def go_on(pid: int, tid: int) -> object:
        reads.append(tid)
        return None if reads.count(12) > 1 else thread_stat(pid, tid)

    node.look()
    monkeypatch.setattr(node.scanner._proc, "thread_stat", go_on)
    assert blocked(node, t12="0").blocked == ()


def test_waits_that_are_read_are_bounded(node: Node) -> None:
    """Blocked threads above MAX_WAITS_READ count as other."""
    threads = {100 + number: "w" for number in range(MAX_WAITS_READ + 1)}
    node.proc.add(10, threads={11: "NCCL RAS", **threads}, thread_states=dict.fromkeys(threads, ("D", 7)))
    for tid in threads:
        node.proc.note(10, tid, wchan="request_wait_answer")
    assert usage(node).blocked == (("fuse", MAX_WAITS_READ), ("other", 1))


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_failure_costs_one_rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that cannot be read loses its usage in this look; its state and other ranks stay."""
    add_rank(node, 20)
    node.look()

    def fail(pid: int, tid: int) -> int:
        if pid == 10:
            raise OSError(24, "too many open files")
        return 0

    monkeypatch.setattr(node.scanner._proc, "run_queue_wait", fail)
    rank_usage = node.look(after=THREADS_SECONDS)
    assert rank_usage.usages is not None
    assert (set(rank_usage.usages.ranks), set(rank_usage.observed)) == (
        {ProcessKey(20, 5000)},
        {RANK, ProcessKey(20, 5000)},
    )
    assert node.failures.skipped == 1
