"""Which node queries a job, whether it may, and how often: a query must never hurt the job. Pure.

A query is a collective over the whole job; its cost grows with the squared number of ranks. So one node queries a job:
the reporter. The standby, a second node, queries large jobs a quarter as often as the reporter. Reading events is free.
"""

import math
from collections.abc import Collection
from typing import Literal

import msgspec

from exporters.ras.local.job_files import Version
from exporters.ras.local.listeners import Site
from exporters.ras.report.model import Report

Configured = Literal["auto", "reporter", "standby", "monitor", "off"]
Role = Literal["reporter", "standby", "labels", "none"]
"""``labels``: the role for processes whose ranks no source has named. They are queried rarely, to learn their ranks."""
Refusal = Literal[
    "not_elected", "single_pass", "network_namespace", "no_listener", "unowned_listener", "version_unknown",
    "version_old", "process_young", "too_large",
]  # fmt: skip

SOUND_VERSION: Version = (2, 29, 2)
"""Older libraries can crash on a query while communicators are created, or if several communicators miss ranks
(NVIDIA/nccl 1669, 1718, 1762). Libraries up to 2.32.3 can still crash on a text report (2346), but not on a JSON
report, which libraries from this version on give."""
MONITOR_VERSION: Version = (2, 29, 2)  # The first version with MONITOR
YOUNG_SECONDS = 120.0  # An older library, if oldest_version allows it, is queried once its youngest process is this old
MIN_INTERVAL_SECONDS = 7.0
"""At this interval a killed rank shows in RAS within 10 s, jitter and scan delay included."""
MAX_INTERVAL_SECONDS = 600.0
"""The longest interval after failures, and the shortest interval of an agent with the role ``labels``.

Jobs of 4,500 ranks or more can afford only longer intervals.
"""
COST_SHARE = 0.01  # The share of time that queries of one job may take
SECONDS_PER_SQUARE_RANK = 30e-6
STANDBY_FACTOR = 4.0
LABELS_WAIT_SECONDS = 60.0
"""With the role ``labels`` a node's first query waits one to six times this long, so other sources can name the job."""
MAX_DOUBLINGS = 7
COLLECTIVE_SECONDS, LARGE_JOB_RANKS, LARGE_JOB_COLLECTIVE_SECONDS = 5, 1024, 30
JITTER = 0.1
ISOLATED_SHARE = 0.5  # If a greater share of ranks is missing, the process that answered may be cut off: query again

ALARMS = frozenset({"PEER_DEAD", "PEER_UNRESPONSIVE"})
"""The events that are alarms. The end of a stream is an alarm too, since its process ended."""
WAKE_SECONDS = 2.0  # Mean time from an alarm to the query (1 to 3 s): all nodes get the alarm in the same second
ALERT_SECONDS = 300.0  # How long after an alarm a standby queries as often as the reporter
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
"""The pause before a stream's retry doubles from FIRST to LAST. A stream that lasted LAST seconds resets the pause."""


class Schedule(msgspec.Struct):
    """The time of the next query of a job at an address, computed from its last queries. Times are monotonic.

    ``least_seconds``: the configured shortest interval. ``hastened_at``: the time to which a query was last moved
    forward. Until ``alert_until``, after an alarm, a standby queries as often as the reporter. ``ranks``: number of the
    job's ranks. ``cost_seconds``: duration of the last query without timeouts; ``delays``: queries since that query.
    ``missing``: the last report missed ranks. ``up``: the last query gave a report. ``failures``: consecutive failures.
    """

    due_at: float = 0.0
    least_seconds: float = MIN_INTERVAL_SECONDS
    queried_at: float = -math.inf
    hastened_at: float = -math.inf
    alert_until: float = -math.inf
    ranks: int = 0
    cost_seconds: float = 0.0
    delays: int = 0
    missing: bool = False
    up: bool | None = None
    failures: int = 0

    @property
    def interval_seconds(self) -> float | None:
        """Return the seconds from the last query to the next; None before the first."""
        return self.due_at - self.queried_at if self.up is not None else None

    def note(self, role: Role, answer: tuple[Report, float] | None, world_size: int, now: float, jitter: float) -> None:
        """Record a query that ended at ``now``: its report and duration in seconds, or None when it failed.

        The duration of a query with timeouts is not used as cost: it would make queries rarer when they matter most.
        ``world_size``: the number of the job's ranks, even those that the report lacks (a text report names few); 0
        when unknown. ``jitter`` is a random number in [0, 1), as in the other methods.
        """
        self.up = answer is not None
        if answer is None:
            self.failures, self.delays, self.ranks = self.failures + 1, self.delays + 1, max(self.ranks, world_size)
        else:
            report, seconds = answer
            self.failures, self.ranks, self.missing = 0, max(report.ranks(), world_size), report.missing() > 0
            if report.timeouts:
                self.delays += 1
            else:
                self.delays, self.cost_seconds = 0, seconds
        self.due_at = now + self.next_interval_seconds(role, jitter, alert=now < self.alert_until)
        self.queried_at = now

    def hasten(self, now: float, jitter: float) -> None:
        """Move the next query forward after an alarm, but no earlier than the job can afford.

        Many alarms move only one query in each interval that the job can afford.
        """
        self.alert_until = now + ALERT_SECONDS
        earliest = max(
            now + WAKE_SECONDS * (0.5 + jitter),
            self.queried_at + self.least_seconds,
            self.hastened_at + self._affordable_seconds(),
        )
        if earliest < self.due_at:
            self.due_at = self.hastened_at = earliest

    def next_interval_seconds(self, role: Role, jitter: float, *, alert: bool = False) -> float:
        """Return the seconds until the next query. ``alert``: an alarm was recent.

        A standby queries a large job a quarter as often as the job can afford. It queries a small job as often as the
        reporter does, because no standby learns that the reporter has failed. While ranks are missing, it queries every
        job as often as the reporter, because the reporter's node may be missing.
        """
        base = max(self._affordable_seconds(), MAX_INTERVAL_SECONDS if role == "labels" else 0.0)
        if role == "standby" and not (self.missing or alert):
            base = max(base, STANDBY_FACTOR * self._costly_seconds())
        base = min(base * 2.0 ** min(self.delays, MAX_DOUBLINGS), max(MAX_INTERVAL_SECONDS, base))
        return base * (1.0 - JITTER + 2.0 * JITTER * jitter)

    def _affordable_seconds(self) -> float:
        """Return the shortest interval that keeps the cost to the job within its bounds."""
        return max(self.least_seconds, self._costly_seconds())

    def _costly_seconds(self) -> float:
        """Return the interval at which queries take COST_SHARE of the job's time."""
        return max(self.cost_seconds / COST_SHARE, SECONDS_PER_SQUARE_RANK * self.ranks**2)


def role_of(configured: Configured, ranks: Collection[int] | None, world_size: int | None) -> Role:
    """Return this node's role: reporter with global rank 0, standby with the last rank, unless configured.

    ``ranks``: the job's ranks on this node; ``world_size``: number of all ranks of the job. None when unknown.
    """
    if configured in ("monitor", "off"):
        return "none"
    if configured in ("reporter", "standby"):
        return configured
    if ranks is None:
        return "labels"
    if 0 in ranks:
        return "reporter"
    return "standby" if world_size is not None and world_size - 1 in ranks else "none"


def refusal(site: Site, oldest: Version, youngest_seconds: float) -> Refusal | None:
    """Return why not to query the job whose processes listen at ``site``; None when it may be queried.

    ``oldest``: the oldest version to query; ``youngest_seconds``: the age of the youngest process there.
    """
    if site.unowned:
        return "unowned_listener"
    versions = [server.version for server in site.servers.values() if server.version is not None]
    if len(versions) < len(site.servers):
        return "version_unknown"
    if min(versions) < oldest:
        return "version_old"
    return "process_young" if min(versions) < SOUND_VERSION and youngest_seconds < YOUNG_SECONDS else None


def may_monitor(site: Site, oldest: Version) -> bool:
    """Return True when every process that a connection to ``site`` can reach supports MONITOR."""
    return refusal(site, max(oldest, MONITOR_VERSION), math.inf) is None


def looks_isolated(report: Report) -> bool:
    """Return True when more than ISOLATED_SHARE of the ranks is missing: the process that answered may be cut off."""
    return report.missing() > ISOLATED_SHARE * report.ranks()


def collective_seconds(ranks: int) -> int:
    """Return the library's soft timeout for a report on a job with this number of ranks."""
    return LARGE_JOB_COLLECTIVE_SECONDS if ranks > LARGE_JOB_RANKS else COLLECTIVE_SECONDS


def first_wait_seconds(role: Role, jitter: float) -> float:
    """Return the seconds until the first query; ``jitter`` in [0, 1) spreads nodes and jobs that start together."""
    return LABELS_WAIT_SECONDS * (1.0 + 5.0 * jitter) if role == "labels" else MIN_INTERVAL_SECONDS * jitter


def retry_seconds(failures: int, jitter: float) -> float:
    """Return the seconds until the retry of a stream after consecutive ``failures``; ``jitter`` is in [0, 1)."""
    longest = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, MAX_DOUBLINGS), LAST_RETRY_SECONDS)
    return longest * (0.5 + 0.5 * jitter)
