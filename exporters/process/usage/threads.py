"""How long the threads of one rank process waited for a CPU and for disks, since it was first looked at; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import Stat


class _Seen(NamedTuple):
    """A thread at the last look: CPU time and wait for disks in ticks, wait for a CPU in nanoseconds if known."""

    cpu_ticks: int
    io_wait_ticks: int
    run_queue_ns: int | None


class ThreadTotals:
    """Adds up what each thread waited between two looks, so that no thread's end takes any of it back.

    ``run_queue_ns`` and ``io_wait_ticks`` begin at 0 with the first look: the kernel has no sum over a process' threads
    that would outlive a restart of the agent. ``counts_run_queue``: the kernel has the main thread's wait.
    """

    def __init__(self) -> None:
        self._seen: dict[ProcessKey, _Seen] | None = None
        self.run_queue_ns = 0
        self.io_wait_ticks = 0
        self.counts_run_queue = False

    def note(self, threads: Sequence[Stat], main_tid: int, run_queue_wait: Callable[[int], int | None]) -> None:
        """Take a look at all threads; ``run_queue_wait`` reads one thread's wait for a CPU.

        It is read for the main thread, for new ones, and for those that are ready or ran since the last look. A
        thread that did not run has hardly waited for a CPU; its wait is counted when it runs.
        """
        is_first, before = self._seen is None, self._seen or {}
        seen = {}
        for stat in threads:
            known = before.get(stat.key)
            wait = None if known is None else known.run_queue_ns
            if known is None or stat.state == "R" or stat.cpu_ticks != known.cpu_ticks or stat.pid == main_tid:
                wait = run_queue_wait(stat.pid)
            if known is None:
                known = _Seen(0, stat.io_wait_ticks, wait) if is_first else _Seen(0, 0, 0)  # else it is new
            if wait is not None and known.run_queue_ns is not None:
                self.run_queue_ns += max(wait - known.run_queue_ns, 0)
            self.io_wait_ticks += max(stat.io_wait_ticks - known.io_wait_ticks, 0)
            seen[stat.key] = _Seen(stat.cpu_ticks, stat.io_wait_ticks, wait if wait is not None else known.run_queue_ns)
            if stat.pid == main_tid:
                self.counts_run_queue = wait is not None
        self._seen = seen
