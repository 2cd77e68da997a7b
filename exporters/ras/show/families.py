"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.ras.asking.jobs import JobStanding
from exporters.ras.asking.monitor import Monitored
from exporters.ras.protocol.client import STAGES, Stage
from exporters.ras.report.job_report import JobReport
from exporters.ras.show import monitor_families
from exporters.ras.show.communicator_families import FAMILIES as COMMUNICATOR_FAMILIES, render_reports

UP = Family(
    "rankwatch_ras_up",
    "gauge",
    "1 when every job at the address answered the last query with a report, else 0; absent without queries.",
    ("endpoint",),
    "1 per queried address",
)
DURATION = Family(
    "rankwatch_ras_query_duration_seconds",
    "gauge",
    "How long the last report took, from the command to its end; absent before the first.",
)
QUERIES = Family(
    "rankwatch_ras_queries_total",
    "counter",
    "Queries made: each is a collective over the RAS threads of a whole job.",
    aggregate="sum",
)
QUERY_ERRORS = Family(
    "rankwatch_ras_query_errors_total",
    "counter",
    "Queries without a report, by where they failed: connect, handshake, command, deadline, size, cut or parse.",
    ("stage",),
    "7 per node",
    "sum",
)
TIMEOUTS = Family(
    "rankwatch_ras_timeouts_total",
    "counter",
    "Times that the library gave up waiting for peers while it gathered a report.",
    aggregate="sum",
)
SKIPPED = Family(
    "rankwatch_ras_skipped_total",
    "counter",
    "What reports hold and no series shows: communicators that are phantom (no ranks), implausible, duplicate, "
    "surplus, unnamed (text names them only in trouble) or unreadable, missing ranks over the limit (rank_surplus), "
    "and whole reports of a process that ended before they were read (foreign_report) or that find no room (refused).",
    ("reason",),
    "1 per reason seen, at most 9",
    "sum",
)
LISTENERS = Family(
    "rankwatch_ras_listeners",
    "gauge",
    "Processes that listen at the configured addresses: rank, a rank's; unowned, a process that is not known "
    "to answer, such as a child that outlived its rank. An address with an unowned one gets no queries.",
    ("endpoint", "owner"),
    "2 per address with listeners",
)
REPORTER = Family(
    "rankwatch_ras_reporter",
    "gauge",
    "Always 1: the node's role in asking the job, by its ranks or the configuration: reporter, standby or none.",
    ("job_id", "role"),
    "1 per job",
)
NOT_ASKED = Family(
    "rankwatch_ras_not_asked",
    "gauge",
    "Always 1: why this node does not ask the job: not_elected, single_pass, network_namespace (the job has its own), "
    "no_listener, unowned_listener, version_unknown, version_old, process_young or too_large (the configuration's "
    "max_ranks). Absent when it does.",
    ("job_id", "reason"),
    "1 per job that is not asked",
)
LIBRARY_INFO = Family(
    "rankwatch_library_info",
    "gauge",
    "Always 1: the library that processes of the job on this node have mapped, nccl or rccl, and its version.",
    ("job_id", "flavor", "version"),
    "1 per job and version",
    "max",
)
REPORT_TIMESTAMP = Family(
    "rankwatch_ras_report_timestamp_seconds",
    "gauge",
    "Time of the query for the job's last report; absent without a fresh one.",
    ("job_id",),
    "1 per queried job",
    "max",
)
REPORTS = Family(
    "rankwatch_ras_reports_total",
    "counter",
    "Reports that the job gave this node; restarts at 0 when none came for three intervals.",
    ("job_id",),
    "1 per queried job",
    "max",
)
FAILURES = Family(
    "rankwatch_ras_failures",
    "gauge",
    "Queries of the job without a report since its last one.",
    ("job_id",),
    "1 per queried job",
)
INTERVAL = Family(
    "rankwatch_ras_interval_seconds",
    "gauge",
    "From the job's last query to the next: it grows with the job's size, with what a query costs, and with failures.",
    ("job_id",),
    "1 per queried job",
)
FAMILIES = (
    UP,
    DURATION,
    QUERIES,
    QUERY_ERRORS,
    TIMEOUTS,
    SKIPPED,
    LISTENERS,
    REPORTER,
    NOT_ASKED,
    REPORT_TIMESTAMP,
    REPORTS,
    FAILURES,
    INTERVAL,
    LIBRARY_INFO,
    *COMMUNICATOR_FAMILIES,
    *monitor_families.FAMILIES,
)
SKIPPED_REASONS = (
    "phantom",
    "implausible",
    "duplicate",
    "surplus",
    "unnamed",
    "unreadable",
    "rank_surplus",
    "foreign_report",
    "refused",
)


class RasSnapshot(msgspec.Struct, frozen=True):
    """What ``render`` needs. ``libraries``: job, flavor, version; ``reports``: the last ones, by job.

    ``visits``: for each queried job the seconds to its next query, and its failures.
    """

    up: dict[str, bool]
    visits: dict[str, tuple[float, int]]
    duration_seconds: float | None
    queries: int
    errors: Counter[Stage]
    timeouts: int
    skipped: Counter[str]
    listeners: dict[str, tuple[int, int]]
    jobs: tuple[JobStanding, ...]
    libraries: frozenset[tuple[str, str, str]]
    reports: dict[str, JobReport]
    heard: Monitored


def render(snapshot: RasSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    up = UP.rows()
    for endpoint, value in snapshot.up.items():
        up.add((endpoint,), float(value))
    yield up.metric
    if snapshot.duration_seconds is not None:
        yield DURATION.single(snapshot.duration_seconds)
    yield QUERIES.single(snapshot.queries)
    errors = QUERY_ERRORS.rows()
    for stage in STAGES:
        errors.add((stage,), snapshot.errors[stage])
    yield errors.metric
    yield TIMEOUTS.single(snapshot.timeouts)
    skipped = SKIPPED.rows()
    for reason in filter(snapshot.skipped.get, SKIPPED_REASONS):
        skipped.add((reason,), snapshot.skipped[reason])
    yield skipped.metric
    listeners = LISTENERS.rows()
    for endpoint, (owned, unowned) in snapshot.listeners.items():
        listeners.add((endpoint, "rank"), owned)
        listeners.add((endpoint, "unowned"), unowned)
    yield listeners.metric
    yield from _jobs(snapshot.jobs)
    yield from _visits(snapshot)
    libraries = LIBRARY_INFO.rows()
    for library in sorted(snapshot.libraries):
        libraries.add(library, 1)
    yield libraries.metric
    yield from render_reports(snapshot.reports)
    yield from monitor_families.render(snapshot.heard)


def _jobs(jobs: tuple[JobStanding, ...]) -> Iterable[Metric]:
    roles, refusals = REPORTER.rows(), NOT_ASKED.rows()
    named = [job for job in jobs if job.job_id]  # one user's job may be of several owners
    for role in dict.fromkeys((job.job_id, job.role) for job in named):
        roles.add(role, 1)
    for refusal in dict.fromkeys((job.job_id, job.refusal) for job in named if job.refusal is not None):
        refusals.add(refusal, 1)
    yield roles.metric
    yield refusals.metric


def _visits(snapshot: RasSnapshot) -> Iterable[Metric]:
    asked, counts, failures, intervals = REPORT_TIMESTAMP.rows(), REPORTS.rows(), FAILURES.rows(), INTERVAL.rows()
    for job_id, report in snapshot.reports.items():
        asked.add((job_id,), report.asked_seconds)
        counts.add((job_id,), report.count)
    for job_id, (seconds, failed) in snapshot.visits.items():
        intervals.add((job_id,), seconds)
        failures.add((job_id,), failed)
    return [asked.metric, counts.metric, failures.metric, intervals.metric]
