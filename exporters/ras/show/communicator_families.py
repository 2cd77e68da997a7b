"""What reports say of communicators and their ranks, as metric families. Pure.

Ranks of other nodes are named by their place in the communicator: series by rank alone come from the rank's own node.
The label ``rank`` is the global rank where the report holds the whole job, else empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.sdk.metrics import Family, Metric, Rows, comm_label
from exporters.ras.report.hangs import JobReport, stalled
from exporters.ras.report.model import Communicator, NamedRank

_COMM = ("job_id", "comm")
_PLACE = (*_COMM, "comm_rank", "rank", "host", "gpu")

# fmt: off
RANKS = Family(
    "rankwatch_communicator_ranks", "gauge",
    "Ranks of the communicator by the last report: expected; responding (initializing, finalizing and aborted count "
    "some of these); missing: unresponsive (the process did not answer) and dead (the process is declared dead). "
    "A state that the report lacks is absent.",
    (*_COMM, "state"), "8 per communicator of a queried job", "max")
RANK_MISSING = Family(
    "rankwatch_communicator_rank_missing", "gauge",
    "1 while the last report misses the rank; host is its address, gpu its NVML index. reason: dead (declared dead), "
    "unresponsive (its process did not answer), no_communicator (it left the communicator, or makes another), unknown.",
    (*_PLACE, "reason"), "1 per missing rank and communicator, at most 4096", "max")
LAUNCHED_MIN = Family(
    "rankwatch_communicator_launched_min", "gauge",
    "Launches of the collective by the rank that has launched the fewest, since the communicator was made. Not "
    "counted: send and receive, replays of CUDA graphs, symmetric-memory and copy-engine collectives.",
    (*_COMM, "collective"), "1 per communicator and collective used", "max")
LAUNCHED_MAX = Family(
    "rankwatch_communicator_launched_max", "gauge",
    "Launches of the collective by the rank that has launched the most, since the communicator was made.",
    (*_COMM, "collective"), "1 per communicator and collective used", "max")
LAST_LAUNCH = Family(
    "rankwatch_communicator_last_launch_timestamp_seconds", "gauge",
    "When a report first showed the launch counts as they are now; absent before the first launch. A pause looks like "
    "a hang of all GPUs.",
    _COMM, "1 per communicator", "max")
STALLED = Family(
    "rankwatch_communicator_stalled", "gauge",
    "1 when nothing was launched between the last two reports although the ranks' counts differ or some ranks do not "
    "answer; or when nothing was launched for 5 minutes although a few ranks have left the communicator.",
    _COMM, "1 per communicator", "max")
SUSPECT = Family(
    "rankwatch_communicator_suspect", "gauge",
    "1 for a rank that blocks a stalled communicator; no series where that is unknown. reason: behind "
    "(it has launched less than others, and does not wait elsewhere), missing (it does not answer), "
    "left (it left the communicator, in which nothing was launched for 5 minutes).",
    (*_PLACE, "reason"), "1 per suspect, at most 32 per stalled communicator", "max")
RANK_LAG = Family(
    "rankwatch_communicator_rank_lag", "gauge",
    "Launches by which the rank is behind the one that has launched the most, in a stalled communicator: the 32 "
    "furthest behind, if they are not the majority.",
    (*_COMM, "comm_rank", "rank", "collective"), "at most 32 per stalled communicator and collective", "max")
ASYNC_ERROR = Family(
    "rankwatch_communicator_async_error", "gauge",
    "1 while the rank's communicator or its proxy thread has failed with the error (ncclResult_t); an operation in "
    "progress is none.",
    (*_COMM, "comm_rank", "rank", "error"), "1 per rank with an error, at most 32 per communicator", "max")
INIT_ERROR = Family(
    "rankwatch_communicator_init_error", "gauge",
    "1 while the rank has failed to make the communicator, with the error (ncclResult_t).",
    (*_COMM, "comm_rank", "rank", "error"), "1 per rank with an error, at most 32 per communicator", "max")
ABORTED = Family(
    "rankwatch_communicator_aborted", "gauge",
    "1 for a minute after the rank aborted the communicator, which it then leaves (missing with reason "
    "no_communicator). The abort takes a second or two: one between two reports shows by the missing rank alone.",
    (*_COMM, "comm_rank", "rank"), "1 per such rank, at most 32 per communicator", "max")
# fmt: on
FAMILIES = tuple(own for own in globals().values() if isinstance(own, Family))
STATES = ("responding", "missing", "unresponsive", "dead", "initializing", "finalizing", "aborted")
"""Members of a Communicator that count its ranks."""
_ERRORS = {"async_error": ASYNC_ERROR, "init_error": INIT_ERROR}


def render_reports(reports: Mapping[str, JobReport]) -> Iterable[Metric]:
    """Return the families of the last reports, by job."""
    rows = {family.name: family.rows() for family in FAMILIES}
    for job_id, job in reports.items():
        for each in job.report.communicators:
            place = (job_id, comm_label(each.hash))
            _counts(rows, place, each, job)
            for rank in each.named:
                rows[RANK_MISSING.name].add((*_named(place, rank, job), rank.reason), 1)
            for one in each.troubled:
                if one.trouble in _ERRORS:
                    where = (*place, str(one.comm_rank), job.rank_label(one.rank))
                    rows[_ERRORS[one.trouble].name].add((*where, one.error), 1)
        for name, waited_for in job.suspects.items():
            for suspect in waited_for:
                waiting = _named((job_id, comm_label(name)), suspect.rank, job)
                rows[SUSPECT.name].add((*waiting, suspect.reason), 1)
        for gone, abort in job.aborted.items():
            labels = (job_id, comm_label(gone.hash), str(gone.comm_rank), job.rank_label(abort.rank))
            rows[ABORTED.name].add(labels, 1)
    return [found.metric for found in rows.values()]


def _counts(rows: Mapping[str, Rows], place: tuple[str, str], each: Communicator, job: JobReport) -> None:
    rows[RANKS.name].add((*place, "expected"), each.size)
    for state in STATES:
        if (count := getattr(each, state)) is not None:
            rows[RANKS.name].add((*place, state), count)
    if each.launches is None:
        return
    for collective, (least, most) in each.launches.extremes.items():
        rows[LAUNCHED_MIN.name].add((*place, collective), least)
        rows[LAUNCHED_MAX.name].add((*place, collective), most)
    rows[LAST_LAUNCH.name].add(place, job.watches[each.hash].since_seconds)
    is_stalled = stalled(each, job.watches)
    rows[STALLED.name].add(place, float(is_stalled))
    for rank in each.launches.behind if is_stalled else ():
        for collective, lag in rank.lags.items():
            rows[RANK_LAG.name].add((*place, str(rank.comm_rank), job.rank_label(rank.rank), collective), lag)


def _named(place: tuple[str, str], rank: NamedRank, job: JobReport) -> tuple[str, ...]:
    gpu = "" if rank.place.gpu < 0 else str(rank.place.gpu)
    return (*place, str(rank.comm_rank), job.rank_label(rank.rank), rank.place.host, gpu)
