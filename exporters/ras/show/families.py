"""The metric families of the exporter and of MONITOR's events, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.ras.asking.jobs import JobStanding
from exporters.ras.asking.monitor import Monitored
from exporters.ras.protocol.client import EVENTS, OTHER, STAGES, Stage
from exporters.ras.report.hangs import JobReport
from exporters.ras.show.communicator_families import FAMILIES as COMMUNICATOR_FAMILIES, render_reports

# fmt: off
MONITOR_UP = Family(
    "rankwatch_ras_monitor_up", "gauge",
    "1 while a RAS thread at the address tells its events, 0 while none does; absent where the agent listens to none.",
    ("endpoint",), "1 per address that is listened to")
MONITOR_ERRORS = Family(
    "rankwatch_ras_monitor_errors_total", "counter",
    "Streams of events that were not had, by where they failed: connect, handshake, command (the library has no "
    "MONITOR) or size; or that ended: cut (the process that told them did) or deadline (it does not answer any more).",
    ("stage",), "1 per stage seen, at most 6", "sum")
EVENTS_HEARD = Family(
    "rankwatch_ras_events_total", "counter",
    "What one RAS thread of the node learned of its peers, by the library's own names, and other: PEER_NEW and "
    "PEER_DEAD are learned by every process of a job, all else by a process's neighbours in the RAS network alone.",
    ("event",), "13 per node", "sum")
UP = Family(
    "rankwatch_ras_up", "gauge",
    "1 when every job at the address answered the last query with a report, else 0; absent without queries.",
    ("endpoint",), "1 per queried address")
DURATION = Family(
    "rankwatch_ras_query_duration_seconds", "gauge",
    "How long the last report took, from the command to its end; absent before the first.")
QUERIES = Family(
    "rankwatch_ras_queries_total", "counter",
    "Queries made: each is a collective over the RAS threads of a whole job.",
    aggregate="sum")
QUERY_ERRORS = Family(
    "rankwatch_ras_query_errors_total", "counter",
    "Queries without a report, by where they failed: connect, handshake, command, deadline, size, cut or parse.",
    ("stage",), "7 per node", "sum")
LISTENERS = Family(
    "rankwatch_ras_listeners", "gauge",
    "Processes that listen at the configured addresses: rank, a rank's; unowned, a process that is not known "
    "to answer, such as a child that outlived its rank. An address with an unowned one gets no queries.",
    ("endpoint", "owner"), "2 per address with listeners")
REPORTER = Family(
    "rankwatch_ras_reporter", "gauge",
    "Always 1: the node's role in asking the job, by its ranks or the configuration: reporter, standby or none.",
    ("job_id", "role"), "1 per job")
NOT_ASKED = Family(
    "rankwatch_ras_not_asked", "gauge",
    "Always 1: why this node does not ask the job: not_elected, single_pass, network_namespace (the job has its own), "
    "no_listener, unowned_listener, version_unknown, version_old, process_young or too_large (the configuration's "
    "max_ranks). Absent when it does.",
    ("job_id", "reason"), "1 per job that is not asked")
LIBRARY_INFO = Family(
    "rankwatch_library_info", "gauge",
    "Always 1: the library that processes of the job on this node have mapped, nccl or rccl, and its version.",
    ("job_id", "flavor", "version"), "1 per job and version", "max")
REPORT_TIMESTAMP = Family(
    "rankwatch_ras_report_timestamp_seconds", "gauge",
    "Time of the query for the job's last report; absent without a fresh one.",
    ("job_id",), "1 per queried job", "max")
FAILURES = Family(
    "rankwatch_ras_failures", "gauge",
    "Queries of the job without a report since its last one.",
    ("job_id",), "1 per queried job")
INTERVAL = Family(
    "rankwatch_ras_interval_seconds", "gauge",
    "From the job's last query to the next: it grows with the job's size, with what a query costs, and with failures.",
    ("job_id",), "1 per queried job")
# fmt: on
FAMILIES = (*(own for own in globals().values() if isinstance(own, Family)), *COMMUNICATOR_FAMILIES)
STREAM_STAGES: tuple[Stage, ...] = ("connect", "handshake", "command", "size", "cut", "deadline")


class RasSnapshot(msgspec.Struct, frozen=True):
    """What ``render`` needs. ``libraries``: job, flavor, version; ``reports``: the last ones, by job.

    ``visits``: for each queried job the seconds to its next query, and its failures.
    """

    up: dict[str, bool]
    visits: dict[str, tuple[float, int]]
    duration_seconds: float | None
    queries: int
    errors: Counter[Stage]
    listeners: dict[str, tuple[int, int]]
    jobs: tuple[JobStanding, ...]
    libraries: frozenset[tuple[str, str, str]]
    reports: dict[str, JobReport]
    heard: Monitored


def render(snapshot: RasSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    heard = snapshot.heard
    yield UP.by_label(snapshot.up)
    if snapshot.duration_seconds is not None:
        yield DURATION.single(snapshot.duration_seconds)
    yield QUERIES.single(snapshot.queries)
    yield QUERY_ERRORS.by_label({stage: snapshot.errors[stage] for stage in STAGES})
    listeners = LISTENERS.rows()
    for endpoint, (owned, unowned) in snapshot.listeners.items():
        listeners.add((endpoint, "rank"), owned)
        listeners.add((endpoint, "unowned"), unowned)
    yield listeners.metric
    named = [each for each in snapshot.jobs if each.job.job_id]  # one user's job may be of several owners
    yield _info(REPORTER, ((each.job.job_id, each.role) for each in named))
    yield _info(NOT_ASKED, ((each.job.job_id, each.refusal) for each in named if each.refusal))
    yield REPORT_TIMESTAMP.by_label({job_id: report.asked_seconds for job_id, report in snapshot.reports.items()})
    yield FAILURES.by_label({job_id: failures for job_id, (_, failures) in snapshot.visits.items()})
    yield INTERVAL.by_label({job_id: seconds for job_id, (seconds, _) in snapshot.visits.items()})
    yield _info(LIBRARY_INFO, sorted(snapshot.libraries))
    yield from render_reports(snapshot.reports)
    yield MONITOR_UP.by_label(heard.up)
    yield MONITOR_ERRORS.by_label({stage: heard.errors[stage] for stage in STREAM_STAGES if heard.errors[stage]})
    yield EVENTS_HEARD.by_label({event: heard.events[event] for event in (*EVENTS, OTHER)})


def _info(family: Family, labels: Iterable[tuple[str, ...]]) -> Metric:
    """Return a family whose series are always 1, each once."""
    once = list(dict.fromkeys(labels))
    return Metric(family, once, [1] * len(once))
