"""The metric families of usage and waits of rank processes. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from agent.sdk.metrics import Family, Metric, Rows, declared
from agent.sdk.ranks import RankLabel
from exporters.process.usage.totals import GroupTotals, RankUsage

_RANK = ("job_id", "rank")
_ONCE = "Absent while 0."

# fmt: off
CPU = Family("rankwatch_rank_cpu_seconds_total", "counter",
    "CPU time, user and system. part rank: all threads of the rank's process (several ranks of a process each show "
    "the whole process). part children: its descendants that are not ranks (data loaders), since the agent first saw "
    "it: the 128 oldest at a time, and ended descendants that were waited for. children is absent before the first "
    "child.",
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
    "or io (pressure stall information of cgroup version 2). The sum over their groups, since the agent first saw "
    f"them. {_ONCE}",
    ("job_id", "resource"), "up to 3 per job", "sum")
THROTTLED = Family("rankwatch_job_cpu_throttled_seconds_total", "counter",
    "Time that the control groups of the job's ranks on this node, and those above them, were kept off CPUs because "
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
