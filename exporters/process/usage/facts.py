"""What one look finds that a rank process used and waited for; pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class RankUsage(msgspec.Struct, frozen=True):
    """What a rank process used and waited for; totals are since its start or since the agent first looked at it.

    ``children_cpu_seconds`` None: it had no child. ``blocked``: threads in uninterruptible sleep by what they wait for.
    ``groups``: the directories of its control groups. ``cpus``: a list of those that its main thread may run on,
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
    """What a control group's processes waited for by now, in microseconds; 0 where it does not tell."""

    cpu: int = 0
    memory: int = 0
    io: int = 0
    throttled: int = 0


class JobUsage(msgspec.Struct, frozen=True):
    """What the control groups of one job's ranks on the node waited for since the agent first looked at them."""

    job_id: str
    waited: GroupTotals
