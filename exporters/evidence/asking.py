"""Queries Prometheus for open pages on this node's jobs, through a helper, without waiting for the answer."""

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence

from agent.sdk.exporter import Context
from agent.sdk.files import in_turns
from agent.sdk.helper import HelperError, HelperSpec
from agent.sdk.ranks import RankView
from exporters.evidence.alert_messages import MAX_JOBS, AlertsAnswer, AlertsRequest, OpenAlert
from exporters.evidence.config import EvidenceConfig
from exporters.evidence.story import user_of
from exporters.evidence.watch import Occasion

ASK_SECONDS = 60.0  # Interval of one node's queries: 1,250 nodes with jobs query 21 times a second
PATIENCE_SECONDS = 15.0  # Longer than the helper waits for Prometheus
ASKER = HelperSpec(
    "evidence_alerts", "exporters.evidence.alerts:open_alerts", AlertsAnswer, memory_bytes=64 * 1024 * 1024
)


class AlertWatch:
    """Remembers which jobs had a bundle: a job's alerts trigger one bundle, and the next only after all alerts have
    ended.

    If this node has no suitable rank, the next answer counts again: an alert can blame a rank minutes after a job's
    first alert. ``open_jobs``: all jobs with alerts in the last answer.
    """

    def __init__(self) -> None:
        self.open_jobs: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()

    def look(self, alerts: Collection[OpenAlert], views: Sequence[RankView]) -> list[Occasion]:
        """Return the bundles that the open alerts make due."""
        self.open_jobs = jobs = frozenset(alert.job_id for alert in alerts)
        self._known &= jobs
        occasions = []
        for job_id in sorted(jobs - self._known):
            blamed = {alert.rank for alert in alerts if alert.job_id == job_id and alert.rank.isdigit()}
            rank = chosen_rank([view for view in views if view.label.job_id == job_id], blamed)
            if rank:
                occasions.append(Occasion(job_id, "alert", rank))
        self._known |= {occasion.job_id for occasion in occasions}
        return occasions


def chosen_rank(views: Iterable[RankView], blamed: Collection[str]) -> str:
    """Return the rank for which this node takes a bundle; empty if it takes none. ``views``: one job's ranks on this
    node.

    The rank is a blamed rank, else the job's lowest or highest rank that is not blamed. Two nodes with waiting ranks
    suffice to show the call in which all ranks wait. So most of a large job's nodes take no bundle.
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


class AlertAsker:
    """Sends the queries. ``watch``: the state of the alerts. ``failures``: the number of queries without an answer."""

    def __init__(self, config: EvidenceConfig, ctx: Context) -> None:
        self._config = config
        self._ctx = ctx
        self._helper = ctx.helper(ASKER)
        self.watch = AlertWatch()
        self._task: asyncio.Task[AlertsAnswer] | None = None
        spread = random.Random()  # noqa: S311  # spreads queries over time; no secret
        self._due_at = ctx.clock.monotonic() + spread.uniform(0.0, ASK_SECONDS)
        self._failing = False
        self.failures = 0

    def look(self, views: Sequence[RankView]) -> list[Occasion]:
        """Return the bundles that the last answer triggers; start a query if it is due. ``views``: the ranks."""
        occasions = self._taken_in(views)
        jobs = asked_about(views)
        if jobs and self._task is None and self._ctx.clock.monotonic() >= self._due_at:
            self._due_at = self._ctx.clock.monotonic() + ASK_SECONDS
            request = AlertsRequest(self._config.alerts_url, self._config.alerts_cluster, jobs)
            self._task = asyncio.get_running_loop().create_task(self._helper.call(request, PATIENCE_SECONDS))
        return occasions

    async def close(self) -> None:
        """Cancel a running query."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _taken_in(self, views: Sequence[RankView]) -> list[Occasion]:
        if self._task is None or not self._task.done():
            return []
        ended, self._task = self._task, None
        try:
            answer = ended.result()
        except HelperError as error:
            answer = AlertsAnswer(error=str(error))
        self.failures += bool(answer.error)
        if answer.error and not self._failing:
            self._ctx.log.warning("Prometheus cannot be queried for open pages", error=answer.error)
        self._failing = bool(answer.error)
        return [] if answer.error else self.watch.look(answer.alerts, views)


def asked_about(views: Sequence[RankView]) -> list[str]:
    """Return the running jobs to query alerts for, sorted: at most MAX_JOBS, users in turn."""
    users = {view.label.job_id: user_of([view]) for view in views if view.process.exited_at is None}
    return sorted(in_turns(sorted(users), users.__getitem__, MAX_JOBS))
