"""One measurement of the usage and waits of the rank processes. Blocking; a failure affects only one rank.

The kernel function in which a thread is blocked shows what the thread waits for.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from agent.sdk.exporter import FailureCounter, Roots
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS, Stat, sysfs
from exporters.process.usage.groups import GroupPaths, GroupReader, group_paths
from exporters.process.usage.totals import ChildrenCpu, GroupTotals, RankUsage, ThreadTotals, shares

MAX_CPUS = 8192  # The most that Linux can have (NR_CPUS)
_NODE = re.compile(r"node(\d{1,4})")
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")
MAX_WAITS_READ = 64  # Blocked threads of one rank whose wait channel is read; further threads count as other
UNINTERRUPTIBLE = "DI"  # State I, as in Lustre's wait for its servers, does not count as load

WHAT = "what a process uses"  # Subject of error logs

Wait = Literal["nfs", "lustre", "fuse", "disk", "gpu", "other"]

# A file system's function can stand above a wait for pages, and shows more than the wait.
_KINDS: tuple[tuple[Wait, re.Pattern[str]], ...] = (
    ("nfs", re.compile(r"nfs\d?_|rpc_|xprt_")),
    ("lustre", re.compile(r"ll_(?!back_merge)|cl_(sync|io|lock|page)_|(osc|lov|mdc|lmv|vvp|ldlm|ptlrpc|lnet)_")),
    ("fuse", re.compile(r"_*fuse_|request_wait_answer")),
    ("gpu", re.compile(r"_nv\d+rm|(nv|nvidia|nvkms|uvm|amdgpu|kfd|ttm|drm|dma_fence|dma_resv)_|os_acquire_")),
    (
        "disk",
        re.compile(
            r"(folio|filemap|iomap|swap|blk|blkdev|bio|submit_bio|jbd2|ext4|xfs|xlog|btrfs|f2fs|dm|md|nvme|scsi"
            r"|ceph|netfs|cifs|smb2|beegfs|gpfs|rq_qos|wbt)_|wait_on_(page|buffer)|__wait_on_buffer|bit_wait_io"
            r"|io_schedule|balance_dirty_pages|do_writepages|__?iomap_dio_rw|do_swap_page|__bread"
        ),
    ),
)


_FILE_SYSTEMS: dict[str, Wait] = {"nfs": "nfs", "nfs4": "nfs", "fuse": "fuse", "fuseblk": "fuse", "lustre": "lustre"}
"""Kinds of wait for a file by the type of its file system; other types: disk."""


def wait_of(frames: Sequence[str]) -> Wait:
    """Return the kind of wait; ``frames``: kernel functions, innermost first, or only the innermost."""
    for wait, names in _KINDS:
        if any(names.match(frame) for frame in frames):
            return wait
    return "other"


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs below MAX_CPUS of a list such as `0-3,8` (cpuset(7)); empty if the text is no list."""
    if _LIST.fullmatch(text) is None:
        return frozenset()
    cpus: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        cpus.update(range(int(first), min(int(last or first), MAX_CPUS - 1) + 1))
    return frozenset(cpus)


def read_nodes(sys_root: Path) -> dict[int, frozenset[int]]:
    """Return the CPUs of each NUMA node (blocking); empty if the kernel lacks that folder."""
    nodes = {}
    for name in sysfs.entries(sys_root / "devices/system/node"):
        if (match := _NODE.fullmatch(name)) is not None:
            text = sysfs.read_text(sys_root / "devices/system/node" / name / "cpulist")
            nodes[int(match[1])] = parse_cpus(text or "")
    return nodes


def nodes_of(cpus: frozenset[int], nodes: Mapping[int, frozenset[int]]) -> str:
    """Return the NUMA nodes that have any of these CPUs, separated by commas."""
    return ",".join(str(node) for node, of_node in sorted(nodes.items()) if cpus & of_node)


class RankStat(msgspec.Struct, frozen=True):
    """A rank process in this scan: its stat line and those of its threads."""

    stat: Stat
    threads: Sequence[Stat]


class Usages(msgspec.Struct, frozen=True):
    """The result of one measurement: usage by rank process, and the waits of control groups by directory."""

    ranks: dict[ProcessKey, RankUsage]
    groups: dict[str, GroupTotals]


class _RankTotals(msgspec.Struct):
    """The data about a rank process between two measurements."""

    threads: ThreadTotals
    children: ChildrenCpu


def unavailable(proc: ProcFS, roots: Roots) -> list[str]:
    """Return log lines on values that this kernel does not count, each with the remedy. Blocking."""
    pid = os.getpid()
    has_pressure = (roots.proc / "pressure").exists() and (roots.sys / "fs/cgroup/cgroup.controllers").exists()
    counted = {
        "CPU wait time unavailable: the kernel has no schedstat (CONFIG_SCHED_INFO)": proc.run_queue_wait(pid, pid),
        "disk wait time unavailable: set sysctl kernel.task_delayacct=1": proc.counts_io_wait() or None,
        "control group pressure unavailable: cgroup v2 or psi=1 missing": has_pressure or None,
        "wait channels unavailable: run rankwatch-setup --with-other-users as root": proc.environment(1),
    }
    return [text for text, value in counted.items() if value is None]


class UsageReader:
    """Measures all ranks once every few seconds; used from one thread.

    Cost at 8 ranks: a schedstat line for each thread that runs, a stat line for each child, six files for each rank.
    """

    def __init__(self, proc: ProcFS, sys_root: Path, failures: FailureCounter) -> None:
        self._proc = proc
        self._sys = sys_root
        self._failures = failures
        self._groups = GroupReader()
        self._totals: dict[ProcessKey, _RankTotals] = {}
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._numa_nodes = read_nodes(sys_root)

    def look(self, ranks: Mapping[ProcessKey, RankStat], children: Mapping[ProcessKey, Iterable[ProcessKey]]) -> Usages:
        """Measure all running ranks; ``children``: their descendants."""
        self._totals = {key: self._totals.get(key) or _RankTotals(ThreadTotals(), ChildrenCpu()) for key in ranks}
        chosen = shares(children)
        paths = {}
        for key in ranks:
            work = partial(self._paths, key)
            if (rank_paths := self._failures.attempt(WHAT, work, pid=key.pid)) is not None:
                paths[key] = rank_paths
        groups = self._groups.read(paths.values())
        counts_io_wait = self._proc.counts_io_wait()
        usages = {}
        for key, rank in ranks.items():
            rank_paths = paths.get(key, GroupPaths())
            measure = partial(self._usage, rank, chosen.get(key, ()), rank_paths, counts_io_wait=counts_io_wait)
            if (usage := self._failures.attempt(WHAT, measure, pid=key.pid)) is not None:
                usages[key] = usage
        return Usages(usages, groups)

    def _paths(self, key: ProcessKey) -> GroupPaths:
        return group_paths(self._proc.cgroup(key.pid), self._sys)

    def _usage(
        self, rank: RankStat, chosen: Sequence[ProcessKey], paths: GroupPaths, *, counts_io_wait: bool
    ) -> RankUsage:
        stat, pid, totals = rank.stat, rank.stat.pid, self._totals[rank.stat.key]
        totals.threads.note(rank.threads, pid, partial(self._proc.run_queue_wait, pid))
        children = [child for key in chosen if (child := self._proc.stat(key.pid)) is not None and child.key == key]
        if len(children) == len(chosen):  # otherwise a child ended just now: its time is in no line, or in two
            totals.children.note(stat, children)
        status = self._proc.status(pid)
        ticks, children_ticks = self._ticks_per_second, totals.children.ticks
        return RankUsage(
            cpu_seconds=stat.cpu_ticks / ticks,
            resident_bytes=stat.resident_pages * self._page_bytes,
            swap_bytes=0 if status is None else status.swap_bytes,
            major_faults=stat.major_faults,
            run_queue_wait_seconds=totals.threads.run_queue_ns / 1e9 if totals.threads.counts_run_queue else None,
            io_wait_seconds=totals.threads.io_wait_ticks / ticks if counts_io_wait else None,
            children_cpu_seconds=None if children_ticks is None else children_ticks / ticks,
            children_stopped=sum(child.state == "T" for child in children),
            blocked=self._blocked(pid, rank.threads, children),
            groups=paths.throttling,
            cpus="" if status is None else status.cpus,
            numa_nodes="" if status is None else nodes_of(parse_cpus(status.cpus), self._numa_nodes),
        )

    def _blocked(self, pid: int, threads: Sequence[Stat], children: Sequence[Stat]) -> tuple[tuple[str, int], ...]:
        """Return the number of threads in uninterruptible sleep by kind of wait."""
        waiting = [(pid, thread) for thread in threads] + [(child.pid, child) for child in children]
        waiting = [(owner, thread) for owner, thread in waiting if thread.state in UNINTERRUPTIBLE]
        waits: Counter[str] = Counter(other=max(len(waiting) - MAX_WAITS_READ, 0))
        mounts: dict[int, str] | None = None  # the rank's mounts, used for its children, too
        for owner, thread in waiting[:MAX_WAITS_READ]:
            frames = self._proc.kernel_frames(owner, thread.pid)
            if not frames:
                stat = self._proc.thread_stat(owner, thread.pid)
                if stat is None or stat.state not in UNINTERRUPTIBLE:
                    continue  # its wait is over
            wait = wait_of(frames)
            if wait == "disk" and (mount := self._proc.blocked_on_mount(owner, thread.pid)) is not None:
                mounts = mounts if mounts is not None else self._proc.mounts(pid)
                wait = _FILE_SYSTEMS.get(mounts.get(mount, "").partition(".")[0], "disk")
            waits[wait] += 1
        return tuple(sorted((wait, number) for wait, number in waits.items() if number))
