"""What the node does not tell of the ranks' use of it, and what helps."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.metrics import Family
from agent.ranks.unseen import OTHER_USERS

UNREAD = Family(
    "rankwatch_rank_usage_unread",
    "gauge",
    "Live ranks of which a source says nothing, as the kernel lacks it or it takes a right: schedstat (waits for a "
    "CPU), delayacct (waits for disks), pressure (of control groups), wait_channel (what a blocked thread waits "
    "for). Absent while none.",
    ("source",),
    "up to 4 per node",
    "sum",
)
_REMEDIES = {
    "schedstat": "how long they wait for a CPU; the kernel has no schedstat (CONFIG_SCHED_INFO)",
    "delayacct": "how long they wait for disks; sysctl kernel.task_delayacct=1",
    "pressure": "the pressure in their control groups; they are in none of version 2, or the kernel lacks psi=1",
    "wait_channel": "what blocked threads wait for; that takes a right, see {drop_in}",
}


def usage_notes(unread: Mapping[str, int]) -> list[str]:
    """Sentences for an operator; ``unread``: how many ranks, by source, as ``UNREAD`` has them. Pure."""
    told = ((unread.get(source, 0), what.format(drop_in=OTHER_USERS)) for source, what in _REMEDIES.items())
    return [f"not known of {ranks} rank(s): {what}" for ranks, what in told if ranks]
