"""Which node queries a job, whether, and how often: a query must never hurt the job. Pure.

Every query is a collective over the whole job, its cost quadratic in the job's size. So one node of a job
asks, one more stands by at a quarter of what the job can afford, and the others do not. Listening to the events costs
nothing: every node does.
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
1669, 1718, 1762)."""
MONITOR_VERSION: Version = (2, 29, 2)  # The first with MONITOR
YOUNG_SECONDS = 120.0  # How old the youngest process must be before an older library, where configured, is queried
MIN_INTERVAL_SECONDS = 7.0
"""So that a killed rank is missed within 10 s: with its jitter, and the look at which a query begins."""
MAX_INTERVAL_SECONDS = 600.0
"""After failures, and for labels; a job that cannot afford even this (from 4,500 ranks on) gets fewer queries."""
COST_SHARE = 0.01  # The share of time that queries of one job may take
SECONDS_PER_SQUARE_RANK = 30e-6
STANDBY_FACTOR = 4.0
LABELS_WAIT_SECONDS = 60.0
"""How long anything else may name the processes first; then the nodes of a job query within six times this time."""
MAX_DOUBLINGS = 7
JITTER = 0.1
ISOLATED_SHARE = 0.5  # With more of a communicator missing the process that answered may itself be cut off: ask again

ALARMS = frozenset({"PEER_DEAD", "PEER_UNRESPONSIVE"})
"""The events that are an alarm; so is the end of the stream, since its process ended."""
WAKE_SECONDS = 2.0  # From a wake to the query, plus or minus half: the nodes that query are woken in the same second
ALERT_SECONDS = 300.0  # How long after an alarm a standby queries as often as the reporter
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 60.0
"""Pause before a stream is tried again, doubling. After a stream that lasted for the latter it is the former again."""


class Pace(msgspec.Struct, frozen=True):
    """What the last queries mean for the next: ranks, seconds of the last clean one, failures since, any missing.

    ``least_seconds``: the shortest interval that the site allows.
    """

    ranks: int = 0
    cost_seconds: float = 0.0
    failures: int = 0
    missing: bool = False
    least_seconds: float = MIN_INTERVAL_SECONDS


class Timing(msgspec.Struct, frozen=True):
    """Times (monotonic) of a job's next query and last query; ``hastened_at``: the last query put forward.

    ``alert_until``: the end of the time after an alarm in which a standby keeps the reporter's pace.
    """

    due_at: float
    asked_at: float = -math.inf
    hastened_at: float = -math.inf
    alert_until: float = -math.inf


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


def next_pace(before: Pace, answer: tuple[Report, float] | None, world_size: int) -> Pace:
    """Return the pace after a query: ``answer`` is its report and the seconds that took, None when it failed.

    Waiting for peers that do not answer is no measure of cost: it would slow the queries when they matter most. The job
    has ``world_size`` ranks, whether or not they are in the report (a text names few); 0 where that is not known.
    """
    if answer is None:
        return msgspec.structs.replace(before, ranks=max(before.ranks, world_size), failures=before.failures + 1)
    report, seconds = answer
    late = report.timeouts > 0
    return Pace(
        ranks=max(report.ranks(), world_size),
        cost_seconds=before.cost_seconds if late else seconds,
        failures=before.failures + 1 if late else 0,
        missing=report.missing() > 0,
        least_seconds=before.least_seconds,
    )


def interval_seconds(role: Role, pace: Pace, jitter: float, *, alert: bool = False) -> float:
    """Seconds until the next query; ``jitter`` is a random number in [0, 1), ``alert`` as in Timing.

    A standby asks a quarter as often as the job can afford: of a small job as often as the reporter, which may stop
    asking unseen. It keeps the reporter's pace while ranks are missing: the reporter's node may be among them.
    """
    base = MAX_INTERVAL_SECONDS if role == "labels" else _affordable_seconds(pace)
    if role == "standby" and not (pace.missing or alert):
        base = max(base, STANDBY_FACTOR * _cost_seconds(pace))
    base = min(base * 2.0 ** min(pace.failures, MAX_DOUBLINGS), max(MAX_INTERVAL_SECONDS, base))
    return base * (1.0 - JITTER + 2.0 * JITTER * jitter)


def first_wait_seconds(role: Role, jitter: float) -> float:
    """Seconds until the first query: the nodes of a cluster, and jobs that start together, are not all to ask at once.

    ``jitter`` is a random number in [0, 1).
    """
    return LABELS_WAIT_SECONDS * (1.0 + 5.0 * jitter) if role == "labels" else MIN_INTERVAL_SECONDS * jitter


def after_query(before: Timing, role: Role, pace: Pace, now: float, jitter: float) -> Timing:
    """Return the timing after a query that ended ``now``; ``jitter`` is a random number in [0, 1)."""
    interval = interval_seconds(role, pace, jitter, alert=now < before.alert_until)
    return msgspec.structs.replace(before, due_at=now + interval, asked_at=now)


def after_wake(before: Timing, pace: Pace, now: float, jitter: float) -> Timing:
    """Return the timing after a wake: the next query comes soon, but not sooner than the job can afford.

    One query in an interval is put forward, however many the wakes: so they double the cost at most, and where the
    interval is the shortest there is they add nothing. ``jitter`` is a random number in [0, 1).
    """
    alert_until = now + ALERT_SECONDS
    earliest = max(
        now + WAKE_SECONDS * (0.5 + jitter),
        before.asked_at + pace.least_seconds,
        before.hastened_at + _affordable_seconds(pace),
    )
    if earliest >= before.due_at:
        return msgspec.structs.replace(before, alert_until=alert_until)
    return Timing(earliest, before.asked_at, hastened_at=earliest, alert_until=alert_until)


def retry_seconds(failures: int, jitter: float) -> float:
    """Seconds until a stream that failed ``failures`` times in a row is tried again; ``jitter`` is in [0, 1)."""
    longest = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, MAX_DOUBLINGS), LAST_RETRY_SECONDS)
    return longest * (0.5 + 0.5 * jitter)


def _affordable_seconds(pace: Pace) -> float:
    """Return the shortest interval that keeps the cost to the job within its bounds."""
    return max(pace.least_seconds, _cost_seconds(pace))


def _cost_seconds(pace: Pace) -> float:
    """Return the interval that what a query costs the job demands."""
    return max(pace.cost_seconds / COST_SHARE, SECONDS_PER_SQUARE_RANK * pace.ranks**2)
