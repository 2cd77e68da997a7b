"""Which open alerts are an occasion for a bundle on this node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent.sdk.ranks import RankView
from exporters.evidence.alert_messages import OpenAlert
from exporters.evidence.watch import Occasion


class AlertWatch:
    """Remembers the jobs with a due bundle: each job's alerts are an occasion once, until it has none any more.

    A rank can be blamed minutes after the job's first alert: a node that had none to take one for then looks again.
    ``open_jobs``: all jobs with alerts at the last look.
    """

    def __init__(self) -> None:
        self.open_jobs: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()

    def look(self, alerts: Collection[OpenAlert], views: Sequence[RankView]) -> list[Occasion]:
        """Return the bundles that are due by all alerts that are open now."""
        self.open_jobs = jobs = frozenset(alert.job_id for alert in alerts)
        self._known &= jobs
        found = []
        for job_id in sorted(jobs - self._known):
            blamed = {alert.rank for alert in alerts if alert.job_id == job_id and alert.rank.isdigit()}
            rank = chosen_rank([view for view in views if view.label.job_id == job_id], blamed)
            if rank:
                found.append(Occasion(job_id, "alert", rank))
        self._known |= {occasion.job_id for occasion in found}
        return found


def chosen_rank(views: Iterable[RankView], blamed: Collection[str]) -> str:
    """Return the rank for which this node, with ``views`` of one job, takes a bundle; empty where it takes none.

    That is a blamed one; else the job's lowest or highest rank that is not blamed: two nodes that wait show what all
    wait in, and a job of a thousand nodes is not read on all of them.
    """
    here, size = [], 0
    for view in views:
        world = view.process.world()
        size = max(size, view.process.world_size or 0, 0 if world is None else world.size)
        here.append(view.label.rank)
    others = [rank for rank in range(min(size, len(blamed) + 1)) if str(rank) not in blamed]
    last = [rank for rank in range(size - 1, max(-1, size - 2 - len(blamed)), -1) if str(rank) not in blamed]
    wanted = [*sorted(blamed), *map(str, (*others[:1], *last[:1]))]
    return next((rank for rank in wanted if rank in here), "")
