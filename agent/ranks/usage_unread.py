"""Which data about the ranks' use of the node is unavailable, and the fix."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.metrics import Family
from agent.ranks.unseen import OTHER_USERS

UNREAD = Family(
    "rankwatch_rank_usage_unread",
    "gauge",
    "Live ranks without data from a source: the kernel lacks it, or it needs a right. schedstat (waits for a "
    "CPU), delayacct (waits for disks), pressure (of control groups), wait_channel (what a blocked thread waits "
    "for). Absent while none.",
    ("source",),
    "up to 4 per node",
    "sum",
)
_REMEDIES = {
    "schedstat": "CPU wait time unavailable: the kernel has no schedstat (CONFIG_SCHED_INFO)",
    "delayacct": "disk wait time unavailable: set sysctl kernel.task_delayacct=1",
    "pressure": "control group pressure unavailable: cgroup v2 or psi=1 missing",
    "wait_channel": "what blocked threads wait for is unavailable: this needs a right, see {drop_in}",
}


def usage_notes(unread: Mapping[str, int]) -> list[str]:
    """Return notes for an operator; ``unread``: number of ranks by source, as in ``UNREAD``. Pure."""
    notes = ((unread.get(source, 0), note.format(drop_in=OTHER_USERS)) for source, note in _REMEDIES.items())
    return [f"{note} ({ranks} rank(s))" for ranks, note in notes if ranks]
