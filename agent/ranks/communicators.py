"""The communicators of live ranks and their members, as metric families; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.core.identity import Membership
from agent.core.metrics import Family, Metric
from agent.ranks.snapshot import RankView

COMMUNICATOR_INFO = Family(
    "rankwatch_communicator_info",
    "gauge",
    "A communicator that ranks of this node belong to; always 1. ranks is how many it has, nodes is NCCL's count of "
    "NVLink domains.",
    ("job_id", "comm", "comm_name", "ranks", "nodes"),
    "1 per communicator",
    "max",
)
COMMUNICATOR_MEMBER = Family(
    "rankwatch_communicator_member_info",
    "gauge",
    "Maps a place in a communicator (comm, comm_rank) to the rank in the job; always 1.",
    ("job_id", "comm", "comm_rank", "rank"),
    "1 per rank and communicator",
    "max",
)
FAMILIES: tuple[Family, ...] = (COMMUNICATOR_INFO, COMMUNICATOR_MEMBER)


def render(ranks: Sequence[RankView]) -> Iterable[Metric]:
    """Render the communicators of the ranks that live."""
    info, members = COMMUNICATOR_INFO.rows(), COMMUNICATOR_MEMBER.rows()
    seen: dict[tuple[str, str], Membership] = {}
    placed: dict[tuple[str, str, str], str] = {}
    for view in ranks:
        if view.process.exited_at is not None:
            continue
        for (comm, comm_rank), membership in view.process.members.items():
            if _is_place(view, comm, comm_rank):
                seen.setdefault((view.label.job_id, comm), membership)
                placed.setdefault((view.label.job_id, comm, str(comm_rank)), view.label.rank)
    for (job_id, comm), m in seen.items():
        info.add((job_id, comm, m.name, str(m.size), str(m.nodes)), 1.0)
    for place, rank in placed.items():
        members.add((*place, rank), 1.0)
    return [info.metric, members.metric]


def _is_place(view: RankView, comm: str, comm_rank: int) -> bool:
    """True when (comm, comm_rank) is the place of this rank; in a process of several ranks places go by order."""
    slots = view.process.slots or []
    if len(slots) == 1:
        return True
    local = view.process.local_ranks(comm)
    return len(local) == len(slots) and local[view.slot] == comm_rank
