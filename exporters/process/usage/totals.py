"""Sums of usage and waits of a rank process and its descendants since the first scan, and their families. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

import msgspec

from agent.sdk.metrics import Family, Metric, Rows, declared
from agent.sdk.ranks import ProcessKey, RankLabel
from agent.sdk.system import Stat

MAX_PER_RANK = 128  # Measured descendants of one rank, the oldest first: a rank has about 4 to 32 data loaders
MAX_IN_ALL = 2048  # Measured descendants of all ranks, in equal shares


class RankUsage(msgspec.Struct, frozen=True):
    """Usage and waits of a rank process; totals are since its start or since the agent first saw it.

    ``children_cpu_seconds`` None: the process had no child. ``blocked``: threads in uninterruptible sleep by kind of
    wait. ``groups``: directories of its control groups. ``cpus``: list of the CPUs that its main thread may run on,
    ``numa_nodes``: their NUMA nodes.
    """

    cpu_seconds: float
    resident_bytes: int
    swap_bytes: int
    major_faults: int
    run_queue_wait_seconds: float | None = None
    io_wait_seconds: float | None = None
    children_cpu_seconds: float | None = None
    children_stopped: int = 0
    blocked: tuple[tuple[str, int], ...] = ()
    groups: tuple[str, ...] = ()
    cpus: str = ""
    numa_nodes: str = ""


class GroupTotals(NamedTuple):
    """Waits of a control group's processes until now, in microseconds; 0 for a value that it lacks."""

    cpu: int = 0
    memory: int = 0
    io: int = 0
    throttled: int = 0


class _Waits(NamedTuple):
    """A thread at the last scan: CPU time and disk wait in ticks, wait for a CPU in nanoseconds if known."""

    cpu_ticks: int
    io_wait_ticks: int
    run_queue_ns: int | None


class ThreadTotals:
    """Adds up the waits of each thread between two scans, so that no thread's end lowers the sum.

    ``run_queue_ns`` and ``io_wait_ticks`` begin at 0 with the first scan: the kernel has no sum over a process's
    threads that would outlive a restart of the agent. ``counts_run_queue``: the kernel reports the main thread's wait.
    """

    def __init__(self) -> None:
        self._threads: dict[ProcessKey, _Waits] | None = None
        self.run_queue_ns = 0
        self.io_wait_ticks = 0
        self.counts_run_queue = False

    def note(self, threads: Sequence[Stat], main_tid: int, run_queue_wait: Callable[[int], int | None]) -> None:
        """Add a scan of all threads; ``run_queue_wait`` reads one thread's wait for a CPU.

        The function is called for the main thread, for new threads, and for threads that are ready or ran since the
        last scan. Any other thread did not wait for a CPU; a missed wait counts at the next scan after the thread runs.
        """
        if not threads:
            return  # unreadable: as new threads they would count with all their past
        is_first, before = self._threads is None, self._threads or {}
        now = {}
        for stat in threads:
            known = before.get(stat.key)
            wait = None if known is None else known.run_queue_ns
            if known is None or stat.state == "R" or stat.cpu_ticks != known.cpu_ticks or stat.pid == main_tid:
                wait = run_queue_wait(stat.pid)
            if known is None:
                known = _Waits(0, stat.io_wait_ticks, wait) if is_first else _Waits(0, 0, 0)  # else a new thread
            if wait is not None and known.run_queue_ns is not None:
                self.run_queue_ns += max(wait - known.run_queue_ns, 0)
            self.io_wait_ticks += max(stat.io_wait_ticks - known.io_wait_ticks, 0)
            now[stat.key] = _Waits(stat.cpu_ticks, stat.io_wait_ticks, wait if wait is not None else known.run_queue_ns)
            if stat.pid == main_tid:
                self.counts_run_queue = wait is not None
        self._threads = now


def shares(children: Mapping[ProcessKey, Iterable[ProcessKey]]) -> dict[ProcessKey, list[ProcessKey]]:
    """Return the oldest descendants of each rank, in equal shares so that no rank takes another rank's share."""
    share = max(1, min(MAX_PER_RANK, MAX_IN_ALL // max(len(children), 1)))
    return {
        rank: nsmallest(share, keys, key=lambda key: key[::-1]) for rank, keys in list(children.items())[:MAX_IN_ALL]
    }


class ChildrenCpu:
    """The CPU time of one rank's descendants since the first scan; ``ticks`` is None before the first child.

    The sum is the time of live descendants plus the time that the kernel adds for waited-for children, so no child's
    end changes it. Only a child that ends without a wait(), or as a child of init, lowers the sum: then nothing is
    added.
    """

    def __init__(self) -> None:
        self._before: int | None = None
        self.ticks: int | None = None

    def note(self, rank: Stat, children: Sequence[Stat]) -> None:
        """Add a scan of the rank and its descendants."""
        now = rank.waited_cpu_ticks + sum(child.cpu_ticks + child.waited_cpu_ticks for child in children)
        if children and self.ticks is None:
            self.ticks = 0
        if self.ticks is not None and self._before is not None:
            self.ticks += max(now - self._before, 0)
        self._before = now


_RANK = ("job_id", "rank")
_ONCE = "Absent while 0."

# fmt: off
CPU = Family("rankwatch_rank_cpu_seconds_total", "counter",
    "CPU time, user and system. part rank: all threads of the rank's process (several ranks of a process each show "
    "the whole process). part children: its descendants that are not ranks (data loaders), since the agent first saw "
    "the process: the 128 oldest at a time, and ended descendants that were waited for. children is absent before the "
    "first child.",
    (*_RANK, "part"), "1 per live rank, 2 with children", "max")
WAIT = Family("rankwatch_rank_wait_seconds_total", "counter",
    "Time that threads of the rank's process waited, since the agent first saw the process. resource cpu: ready to "
    "run (schedstat; a thread's time is read when it has run since the last scan). resource io: for disks or pages of "
    "any file system (delay accounting: kernel.task_delayacct). io is absent while 0. Both are absent if the kernel "
    "does not count them.",
    (*_RANK, "resource"), "1 to 2 per live rank", "max")
MEMORY = Family("rankwatch_rank_memory_bytes", "gauge",
    "Memory of the rank's process: resident, or swapped (absent while 0).",
    (*_RANK, "state"), "1 to 2 per live rank", "max")
MAJOR_FAULTS = Family("rankwatch_rank_major_page_faults_total", "counter",
    f"Page faults of the rank's process that had to read from a disk or from swap. {_ONCE}",
    _RANK, "1 per live rank with such faults", "max")
BLOCKED_THREADS = Family("rankwatch_rank_blocked_threads", "gauge",
    "Threads of the rank's process and main threads of its descendants that were in uninterruptible sleep at the last "
    "scan, by wait: nfs, lustre, fuse, gpu (its driver), disk (or a file system of another or unknown kind) or other "
    "(including unreadable). Absent while no thread is blocked.",
    (*_RANK, "wait"), "up to 6 per live rank, 0 while none is blocked", "max")
CHILDREN_STOPPED = Family("rankwatch_rank_children_stopped", "gauge",
    "Descendants of the rank's process, other than ranks, that are stopped by a signal (SIGSTOP). Absent while none "
    "is stopped.",
    _RANK, "1 per live rank with stopped children", "max")
PRESSURE_WAITING = Family("rankwatch_job_pressure_waiting_seconds_total", "counter",
    "Time in which some task in a control group of the job's ranks on this node waited for the resource: cpu, memory "
    "or io (pressure stall information of cgroup version 2). The sum over these groups, since the agent first saw "
    f"them. {_ONCE}",
    ("job_id", "resource"), "up to 3 per job", "sum")
THROTTLED = Family("rankwatch_job_cpu_throttled_seconds_total", "counter",
    "Time that the control groups of the job's ranks on this node, and the groups above, were kept off CPUs because "
    "their quota of CPU time (cpu.max, cpu.cfs_quota_us) was used up. The sum over groups and CPUs, since the agent "
    f"first saw them. {_ONCE}",
    ("job_id",), "up to 1 per job", "sum")
AFFINITY = Family("rankwatch_rank_affinity_info", "gauge",
    "The CPUs that the main thread of the rank's process may run on, as a list (0-15,32), and their NUMA nodes; "
    "always 1.",
    (*_RANK, "cpus", "numa_nodes"), "1 per live rank, only with all_values")
# fmt: on
FAMILIES = declared(globals())


def render(
    ranks: Sequence[tuple[RankLabel, RankUsage]], jobs: Mapping[str, GroupTotals], *, all_values: bool
) -> Iterable[Metric]:
    """Return the families of each rank's usage and waits, and of each job's control groups."""
    page = {family: family.rows() for family in FAMILIES}
    for label, usage in ranks:
        _rank(page, label, usage)
        if all_values:
            page[AFFINITY].add((*label, usage.cpus, usage.numa_nodes), 1)
    for job_id, waited in jobs.items():
        for resource, microseconds in (("cpu", waited.cpu), ("memory", waited.memory), ("io", waited.io)):
            _if_any(page[PRESSURE_WAITING], (job_id, resource), microseconds / 1e6)
        _if_any(page[THROTTLED], (job_id,), waited.throttled / 1e6)
    return [rows.metric for rows in page.values()]


def _rank(page: dict[Family, Rows], label: RankLabel, usage: RankUsage) -> None:
    page[CPU].add((*label, "rank"), usage.cpu_seconds)
    if usage.children_cpu_seconds is not None:
        page[CPU].add((*label, "children"), usage.children_cpu_seconds)
    if usage.run_queue_wait_seconds is not None:
        page[WAIT].add((*label, "cpu"), usage.run_queue_wait_seconds)
    page[MEMORY].add((*label, "resident"), usage.resident_bytes)
    for wait, threads in usage.blocked:
        page[BLOCKED_THREADS].add((*label, wait), threads)
    _if_any(page[MEMORY], (*label, "swapped"), usage.swap_bytes)
    _if_any(page[WAIT], (*label, "io"), usage.io_wait_seconds or 0.0)
    _if_any(page[MAJOR_FAULTS], label, usage.major_faults)
    _if_any(page[CHILDREN_STOPPED], label, usage.children_stopped)


def _if_any(rows: Rows, labels: tuple[str, ...], value: float) -> None:
    if value:
        rows.add(labels, value)
