"""The metric families of RAS's reports and events, and a job's last report in an evidence bundle. Pure.

A report gives a rank's number in a communicator, not the global rank. The label ``rank`` is the rank in the largest
communicator; it is empty if this communicator is known to have only a part of the job.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.evidence import Offered, summary
from agent.sdk.metrics import Family, Metric, Rows, comm_label, declared
from exporters.ras.protocol.client import EVENTS, OTHER, STAGES, Stage
from exporters.ras.query.jobs import QueryPlan
from exporters.ras.query.monitor import Monitored
from exporters.ras.report.hangs import JobReport, stalled
from exporters.ras.report.model import Communicator, NamedRank

MAX_WORDS = 64
_SENTENCES = {
    "behind": "has launched less than the others",
    "missing": "does not answer the others",
    "left": "has left a communicator that the others wait in",
}

_COMM = ("job_id", "comm")
_LOCATION = (*_COMM, "comm_rank", "rank", "host", "gpu")

# fmt: off
RANKS = Family(
    "rankwatch_communicator_ranks", "gauge",
    "Ranks of the communicator by the last report. expected: all ranks. responding: ranks that answered; initializing, "
    "finalizing and aborted count some of them. missing: other ranks; unresponsive (the process did not answer) and "
    "dead (the process is declared dead) count some of them. A state that the report lacks is absent.",
    (*_COMM, "state"), "8 per communicator of a queried job", "max")
RANK_MISSING = Family(
    "rankwatch_communicator_rank_missing", "gauge",
    "1 while the last report misses the rank; host: its address; gpu: its GPU's NVML index. reason: dead (declared "
    "dead), unresponsive (its process did not answer), no_communicator (it left the communicator, or makes another), "
    "unknown.",
    (*_LOCATION, "reason"), "1 per missing rank and communicator, at most 4096", "max")
LAUNCHED_MAX = Family(
    "rankwatch_communicator_launched_max", "gauge",
    "Launches of the collective by the rank that has launched the most, since the communicator was made. Not "
    "counted: send and receive, replays of CUDA graphs, symmetric-memory and copy-engine collectives.",
    (*_COMM, "collective"), "1 per communicator and collective used", "max")
LAST_LAUNCH = Family(
    "rankwatch_communicator_last_launch_timestamp_seconds", "gauge",
    "Time of the first report with the present launch counts; absent before the first launch. A pause of the job "
    "looks like a hang of all GPUs.",
    _COMM, "1 per communicator", "max")
STALLED = Family(
    "rankwatch_communicator_stalled", "gauge",
    "1 when nothing was launched between the last two reports although the ranks' counts differ or some ranks do not "
    "answer; or when nothing was launched for 5 minutes although a few ranks have left the communicator.",
    _COMM, "1 per communicator", "max")
SUSPECT = Family(
    "rankwatch_communicator_suspect", "gauge",
    "1 for a rank that blocks a stalled communicator; no series if these ranks are unknown. reason: behind "
    "(it has launched less than others, and waits in no other communicator), missing (it does not answer), "
    "left (it left the communicator, in which nothing was launched for 5 minutes).",
    (*_LOCATION, "reason"), "1 per suspect, at most 32 per stalled communicator", "max")
RANK_LAG = Family(
    "rankwatch_communicator_rank_lag", "gauge",
    "Number of launches that the rank lacks, compared with the rank that has launched the most, in a stalled "
    "communicator. Only the 32 ranks furthest behind have a series, and no rank if they are the majority.",
    (*_COMM, "comm_rank", "rank", "collective"), "at most 32 per stalled communicator and collective", "max")
ASYNC_ERROR = Family(
    "rankwatch_communicator_async_error", "gauge",
    "1 while the rank's communicator or its proxy thread has failed with the error (ncclResult_t), in use (phase run) "
    "or during initialisation (phase init). An operation in progress is no error.",
    (*_COMM, "comm_rank", "rank", "phase", "error"), "1 per rank with an error, at most 32 per communicator", "max")
ABORTED = Family(
    "rankwatch_communicator_aborted", "gauge",
    "1 for a minute after a report shows that the rank aborts the communicator. The rank then leaves it (missing with "
    "reason no_communicator). Without a report during the abort (a second or two) the rank shows only as missing.",
    (*_COMM, "comm_rank", "rank"), "1 per such rank, at most 32 per communicator", "max")
# fmt: on
_OF_REPORTS = tuple(family for family in globals().values() if isinstance(family, Family))
STATES = ("responding", "missing", "unresponsive", "dead", "initializing", "finalizing", "aborted")
"""Fields of a Communicator that count its ranks."""
_PHASES = {"async_error": "run", "init_error": "init"}


def render_reports(reports: Mapping[str, JobReport]) -> Iterable[Metric]:
    """Return the families of the last reports, by job."""
    rows = {family.name: family.rows() for family in _OF_REPORTS}
    for job_id, job in reports.items():
        for communicator in job.report.communicators:
            ids = (job_id, comm_label(communicator.hash))
            _counts(rows, ids, communicator, job)
            for rank in communicator.named:
                rows[RANK_MISSING.name].add((*_named(ids, rank, job), rank.reason), 1)
            for troubled_rank in communicator.troubled:
                if phase := _PHASES.get(troubled_rank.trouble):
                    where = (*ids, str(troubled_rank.comm_rank), job.rank_label(troubled_rank.rank))
                    rows[ASYNC_ERROR.name].add((*where, phase, troubled_rank.error), 1)
        for name, waited_for in job.suspects.items():
            for suspect in waited_for:
                waiting = _named((job_id, comm_label(name)), suspect.rank, job)
                rows[SUSPECT.name].add((*waiting, suspect.reason), 1)
        for who, abort in job.aborted.items():
            labels = (job_id, comm_label(who.hash), str(who.comm_rank), job.rank_label(abort.rank))
            rows[ABORTED.name].add(labels, 1)
    return [row.metric for row in rows.values()]


def _counts(rows: Mapping[str, Rows], labels: tuple[str, str], communicator: Communicator, job: JobReport) -> None:
    rows[RANKS.name].add((*labels, "expected"), communicator.size)
    for state in STATES:
        if (count := getattr(communicator, state)) is not None:
            rows[RANKS.name].add((*labels, state), count)
    if communicator.launches is None:
        return
    for collective, (_, most) in communicator.launches.extremes.items():
        rows[LAUNCHED_MAX.name].add((*labels, collective), most)
    rows[LAST_LAUNCH.name].add(labels, job.watches[communicator.hash].since_seconds)
    is_stalled = stalled(communicator, job.watches)
    rows[STALLED.name].add(labels, float(is_stalled))
    for rank in communicator.launches.behind if is_stalled else ():
        for collective, lag in rank.lags.items():
            rows[RANK_LAG.name].add((*labels, str(rank.comm_rank), job.rank_label(rank.rank), collective), lag)


def _named(labels: tuple[str, str], rank: NamedRank, job: JobReport) -> tuple[str, ...]:
    gpu = "" if rank.location.gpu < 0 else str(rank.location.gpu)
    return (*labels, str(rank.comm_rank), job.rank_label(rank.rank), rank.location.host, gpu)


# fmt: off
MONITOR_UP = Family(
    "rankwatch_ras_monitor_up", "gauge",
    "1 while a RAS thread at the address reports its events, 0 while none does; absent if the agent does not monitor "
    "the address.",
    ("endpoint",), "1 per address that is listened to")
MONITOR_ERRORS = Family(
    "rankwatch_ras_monitor_errors_total", "counter",
    "Streams of RAS events that failed, by stage: connect, handshake, command (the library has no MONITOR), size (a "
    "reply is too long), cut (the process that sent the events ended) or deadline (the process no longer answers).",
    ("stage",), "1 per stage seen, at most 6", "sum")
EVENT_COUNTS = Family(
    "rankwatch_ras_events_total", "counter",
    "Events that one RAS thread of the node reports about its peers, by the library's name of the event, or other. "
    "Every process of a job learns PEER_NEW and PEER_DEAD; the other events reach only a process's neighbours in the "
    "RAS network.",
    ("event",), "13 per node", "sum")
UP = Family(
    "rankwatch_ras_up", "gauge",
    "1 when every job at the address answered the last query with a report, else 0; absent without queries.",
    ("endpoint",), "1 per queried address")
QUERIES = Family(
    "rankwatch_ras_queries_total", "counter",
    "Queries sent: each is a collective over the RAS threads of a whole job.",
    aggregate="sum")
QUERY_ERRORS = Family(
    "rankwatch_ras_query_errors_total", "counter",
    "Queries without a report, by the stage that failed: connect, handshake, command, deadline, size, cut or parse.",
    ("stage",), "7 per node", "sum")
LISTENERS = Family(
    "rankwatch_ras_listeners", "gauge",
    "Processes that listen at the configured addresses: rank, a rank's process; unowned, a process that may not "
    "answer, such as a child that outlived its rank. An address with an unowned listener gets no queries.",
    ("endpoint", "owner"), "2 per address with listeners")
REPORTER = Family(
    "rankwatch_ras_reporter", "gauge",
    "The node's role in queries of the job: reporter, standby or none; always 1. The job's ranks or the configuration "
    "decide the role.",
    ("job_id", "role"), "1 per job")
NOT_QUERIED = Family(
    "rankwatch_ras_not_asked", "gauge",
    "Reason why this node does not query the job; always 1, absent if the node queries it. Reasons: not_elected, "
    "single_pass, network_namespace (the job has its own), no_listener, unowned_listener, version_unknown, "
    "version_old, process_young or too_large (the configuration's max_ranks).",
    ("job_id", "reason"), "1 per job that is not queried")
LIBRARY_INFO = Family(
    "rankwatch_library_info", "gauge",
    "Always 1: the library that processes of the job on this node have mapped, nccl or rccl, and its version; "
    "of several libraries the oldest.",
    ("job_id", "flavor", "version"), "1 per job and version", "max")
REPORT_TIMESTAMP = Family(
    "rankwatch_ras_report_timestamp_seconds", "gauge",
    "Time of the query for the job's last report; absent without a fresh report.",
    ("job_id",), "1 per queried job", "max")
FAILURES = Family(
    "rankwatch_ras_failures", "gauge",
    "Queries of the job without a report since its last report.",
    ("job_id",), "1 per queried job")
INTERVAL = Family(
    "rankwatch_ras_interval_seconds", "gauge",
    "Time from the job's last query to the next. It grows with the job's size, with the duration of a query, and with "
    "failures.",
    ("job_id",), "1 per queried job")
# fmt: on
FAMILIES = declared(globals())
STREAM_STAGES: tuple[Stage, ...] = ("connect", "handshake", "command", "size", "cut", "deadline")


class RasSnapshot(msgspec.Struct, frozen=True):
    """The state to render. ``libraries``: job, flavor, version; ``reports``: the last reports, by job.

    ``schedules``: for each queried job the seconds between its queries, and its failures.
    """

    up: dict[str, bool]
    schedules: dict[str, tuple[float, int]]
    queries: int
    errors: Counter[Stage]
    listeners: dict[str, tuple[int, int]]
    jobs: tuple[QueryPlan, ...]
    libraries: frozenset[tuple[str, str, str]]
    reports: dict[str, JobReport]
    monitored: Monitored


def render(snapshot: RasSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    monitored = snapshot.monitored
    yield UP.by_label(snapshot.up)
    yield QUERIES.single(snapshot.queries)
    yield QUERY_ERRORS.by_label({stage: snapshot.errors[stage] for stage in STAGES})
    listeners = LISTENERS.rows()
    for endpoint, (owned, unowned) in snapshot.listeners.items():
        listeners.add((endpoint, "rank"), owned)
        listeners.add((endpoint, "unowned"), unowned)
    yield listeners.metric
    named = [reported for reported in snapshot.jobs if reported.job.job_id]  # several owners may share a job id
    yield _info(REPORTER, ((reported.job.job_id, reported.role) for reported in named))
    yield _info(NOT_QUERIED, ((reported.job.job_id, reported.refusal) for reported in named if reported.refusal))
    yield REPORT_TIMESTAMP.by_label({job_id: report.queried_seconds for job_id, report in snapshot.reports.items()})
    yield FAILURES.by_label({job_id: failures for job_id, (_, failures) in snapshot.schedules.items()})
    yield INTERVAL.by_label({job_id: seconds for job_id, (seconds, _) in snapshot.schedules.items()})
    yield _info(LIBRARY_INFO, sorted(snapshot.libraries))
    yield from render_reports(snapshot.reports)
    yield MONITOR_UP.by_label(monitored.up)
    yield MONITOR_ERRORS.by_label(
        {stage: monitored.errors[stage] for stage in STREAM_STAGES if monitored.errors[stage]}
    )
    yield EVENT_COUNTS.by_label({event: monitored.events[event] for event in (*EVENTS, OTHER)})


def _info(family: Family, labels: Iterable[tuple[str, ...]]) -> Metric:
    """Return a family whose series are always 1, without duplicates."""
    once = list(dict.fromkeys(labels))
    return Metric(family, once, [1] * len(once))


def stalls(reports: Mapping[str, JobReport]) -> dict[str, float]:
    """Return how many seconds each job with suspects had stood still at its last report, by job id."""
    seconds = {job_id: report.stalled_seconds() for job_id, report in reports.items()}
    return {job_id: stalled for job_id, stalled in seconds.items() if stalled is not None}


def bundle_part(last: JobReport | None) -> Offered:
    """Return the evidence in a job's last report; empty without a report."""
    if last is None:
        return Offered({}, why="no report on this job")
    words = [
        summary.Word(rank, "ras", f"{_SENTENCES[suspect.reason]} ({comm_label(comm)})"[: summary.MAX_TEXT], blames=True)
        for comm, suspects in sorted(last.blamed().items())
        for suspect in suspects
        if (rank := last.rank_label(suspect.rank.rank))
    ]
    report = {"asked": last.queried_seconds, "report": last.report}
    return Offered({"report.json": msgspec.json.encode(report) + b"\n"}, words[:MAX_WORDS])
