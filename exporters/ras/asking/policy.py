"""Which node queries a job, whether, and how often: a query must never hurt the job. Pure.

A query is a collective over the whole job; its cost grows with the square of the ranks. So one node queries a job. A
second stands by, and queries a quarter as often as the job can afford. All nodes listen to events: that is free.
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
"""``labels``: for processes that nothing has named; they are queried rarely, to learn their ranks."""
Refusal = Literal[
    "not_elected", "single_pass", "network_namespace", "no_listener", "unowned_listener", "version_unknown",
    "version_old", "process_young", "too_large",
]  # fmt: skip

SOUND_VERSION: Version = (2, 29, 2)
"""Older libraries can crash when asked while communicators are made, or with several that miss ranks (NVIDIA/nccl
1669, 1718, 1762). Up to 2.32.3 a report as text still can (2346), one as JSON cannot: sound libraries give JSON."""
MONITOR_VERSION: Version = (2, 29, 2)  # The first with MONITOR
YOUNG_SECONDS = 120.0  # How old the youngest process must be before an older library, where configured, is queried
MIN_INTERVAL_SECONDS = 7.0
"""RAS then shows a killed rank within 10 s, jitter and scan delay included."""
MAX_INTERVAL_SECONDS = 600.0
"""After failures, and for labels; a job that cannot afford even this (from 4,500 ranks on) gets fewer queries."""
COST_SHARE = 0.01  # The share of time that queries of one job may take
SECONDS_PER_SQUARE_RANK = 30e-6
STANDBY_FACTOR = 4.0
LABELS_WAIT_SECONDS = 60.0
"""Other sources have this time to name the processes. Then each node of a job queries within six times this time."""
MAX_DOUBLINGS = 7
JITTER = 0.1
ISOLATED_SHARE = 0.5  # With more of a communicator missing the process that answered may itself be cut off: ask again

ALARMS = frozenset({"PEER_DEAD", "PEER_UNRESPONSIVE"})
"""The events that are an alarm; so is the end of the stream, since its process ended."""
WAKE_SECONDS = 2.0  # From a wake to the query, plus or minus half: the nodes that query are woken in the same second
ALERT_SECONDS = 300.0  # How long after an alarm a standby queries as often as the reporter
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
"""The pause before a stream is tried again doubles from FIRST to LAST. A stream that lasted LAST resets it."""


class Visit(msgspec.Struct):
    """When a job is queried at an address, and what its last queries mean for the next. Times are monotonic.

    ``least_seconds``: the shortest interval that the site allows. ``hastened_at``: the last query put forward;
    ``alert_until``: the end of the time after an alarm in which a standby keeps the reporter's pace. ``ranks`` and
    ``cost_seconds``: of the last clean query; ``delays``: queries since then; ``missing``: ranks were, at the last
    report. ``up``: whether the last query gave a report; ``failures``: queries without one since the last report.
    """

    due_at: float = 0.0
    least_seconds: float = MIN_INTERVAL_SECONDS
    asked_at: float = -math.inf
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
        """From the last query to the next; None before the first."""
        return self.due_at - self.asked_at if self.up is not None else None

    def note(self, role: Role, answer: tuple[Report, float] | None, world_size: int, now: float, jitter: float) -> None:
        """Note a query that ended ``now``: its report and the seconds that took, None when it failed.

        Waiting for peers that do not answer is no measure of cost: it would slow the queries when they matter most. The
        job has ``world_size`` ranks, whether or not they are in the report (a text names few); 0 where that is not
        known. ``jitter`` is a random number in [0, 1), here and below.
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
        self.asked_at = now

    def hasten(self, now: float, jitter: float) -> None:
        """Put the next query forward after a wake, but not to before the job can afford it.

        One query in an interval is put forward, however many the wakes: so they double the cost at most, and where the
        interval is the shortest there is they add nothing.
        """
        self.alert_until = now + ALERT_SECONDS
        earliest = max(
            now + WAKE_SECONDS * (0.5 + jitter),
            self.asked_at + self.least_seconds,
            self.hastened_at + self._affordable_seconds(),
        )
        if earliest < self.due_at:
            self.due_at = self.hastened_at = earliest

    def next_interval_seconds(self, role: Role, jitter: float, *, alert: bool = False) -> float:
        """Seconds until the next query. ``alert``: after an alarm.

        A standby queries a quarter as often as the job can afford, a small job as often as the reporter: the reporter
        can fail unnoticed. While ranks are missing it queries as often: the reporter's node may be among them.
        """
        base = MAX_INTERVAL_SECONDS if role == "labels" else self._affordable_seconds()
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
    """Return its role: the node of global rank 0 reports, that of the last one stands by; a configured role wins.

    ``ranks``: the job's on this node, None while nothing has named them; ``world_size``: how many it has in all, None
    where that is not known.
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
    """Why a job whose processes listen at ``site`` is not asked; None when it may be.

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
    """True when a MONITOR connection to ``site`` can only reach a process that serves it and knows the command."""
    return refusal(site, max(oldest, MONITOR_VERSION), math.inf) is None


def looks_isolated(report: Report) -> bool:
    """Return True when more ranks are missing than ISOLATED_SHARE: the process that answered may be cut off."""
    return report.missing() > ISOLATED_SHARE * report.ranks()


def first_wait_seconds(role: Role, jitter: float) -> float:
    """Seconds until the first query: the nodes of a cluster, and jobs that start together, are not all to ask at once.

    ``jitter`` is a random number in [0, 1).
    """
    return LABELS_WAIT_SECONDS * (1.0 + 5.0 * jitter) if role == "labels" else MIN_INTERVAL_SECONDS * jitter


def retry_seconds(failures: int, jitter: float) -> float:
    """Seconds until a stream that failed ``failures`` times in a row is tried again; ``jitter`` is in [0, 1)."""
    longest = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, MAX_DOUBLINGS), LAST_RETRY_SECONDS)
    return longest * (0.5 + 0.5 * jitter)
