"""Sums of usage and waits of a rank process and its descendants since the first scan. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import Stat


class RankUsage(msgspec.Struct, frozen=True):
    """Usage and waits of a rank process; totals are since its start or since the agent first saw it.

    ``children_cpu_seconds`` None: it had no child. ``blocked``: threads in uninterruptible sleep by kind of wait.
    ``groups``: directories of its control groups. ``cpus``: list of the CPUs that its main thread may run on,
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


class _Seen(NamedTuple):
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
        self._seen: dict[ProcessKey, _Seen] | None = None
        self.run_queue_ns = 0
        self.io_wait_ticks = 0
        self.counts_run_queue = False

    def note(self, threads: Sequence[Stat], main_tid: int, run_queue_wait: Callable[[int], int | None]) -> None:
        """Add a scan of all threads; ``run_queue_wait`` reads one thread's wait for a CPU.

        It is called for the main thread, for new threads, and for threads that are ready or ran since the last scan.
        Any other thread did not wait for a CPU; the next scan after it runs counts any rest.
        """
        is_first, before = self._seen is None, self._seen or {}
        seen = {}
        for stat in threads:
            known = before.get(stat.key)
            wait = None if known is None else known.run_queue_ns
            if known is None or stat.state == "R" or stat.cpu_ticks != known.cpu_ticks or stat.pid == main_tid:
                wait = run_queue_wait(stat.pid)
            if known is None:
                known = _Seen(0, stat.io_wait_ticks, wait) if is_first else _Seen(0, 0, 0)  # else new
            if wait is not None and known.run_queue_ns is not None:
                self.run_queue_ns += max(wait - known.run_queue_ns, 0)
            self.io_wait_ticks += max(stat.io_wait_ticks - known.io_wait_ticks, 0)
            seen[stat.key] = _Seen(stat.cpu_ticks, stat.io_wait_ticks, wait if wait is not None else known.run_queue_ns)
            if stat.pid == main_tid:
                self.counts_run_queue = wait is not None
        self._seen = seen


MAX_PER_RANK = 128  # Measured descendants of one rank, the oldest: a rank has some 4 to 32 data loaders
MAX_IN_ALL = 2048  # Measured descendants of all ranks, in equal shares


def shares(children: Mapping[ProcessKey, Iterable[ProcessKey]]) -> dict[ProcessKey, list[ProcessKey]]:
    """Return the oldest descendants of each rank, in equal shares so that no rank takes another's."""
    share = max(1, min(MAX_PER_RANK, MAX_IN_ALL // max(len(children), 1)))
    return {
        rank: nsmallest(share, keys, key=lambda key: key[::-1]) for rank, keys in list(children.items())[:MAX_IN_ALL]
    }


class ChildrenCpu:
    """The CPU time of one rank's descendants since the first scan; ``ticks`` is None before the first child.

    The sum is the time of live descendants plus the time that the kernel adds for waited-for children, so no child's
    end changes it. Only a child without a wait() (or an adopted one) lowers the sum, which counts as no increase.
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
