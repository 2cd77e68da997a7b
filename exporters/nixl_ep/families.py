"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric
from exporters.nixl_ep.job_run import JobRun
from exporters.nixl_ep.plan import Plan
from exporters.nixl_ep.run import RankRun

_RANK = ("job_id", "rank")
_EACH = "1 per rank of a NIXL-EP run"

BANDWIDTH = Family(
    "rankwatch_nixl_ep_bandwidth_bytes_per_second",
    "gauge",
    "What the rank measured last: of its payload, for dispatch, combine, or both together (combined).",
    (*_RANK, "stage"),
    "1 to 3 per rank of a NIXL-EP run",
    "max",
)
SECONDS = Family(
    "rankwatch_nixl_ep_operation_seconds",
    "gauge",
    "Times that the rank measured last, by stage: the mean, least and most, and those to send and to receive.",
    (*_RANK, "stage", "time"),
    "3 to 9 per rank of a NIXL-EP run",
    "max",
)
PHASE = Family("rankwatch_nixl_ep_phase", "gauge", "The phase that the rank began last, from 0.", _RANK, _EACH, "max")
ENDED = Family(
    "rankwatch_nixl_ep_phase_ended", "gauge", "The phase that the rank ended last, from 0.", _RANK, _EACH, "max"
)
BEGAN = Family(
    "rankwatch_nixl_ep_phase_start_timestamp_seconds",
    "gauge",
    "When the rank was seen to begin the phase that it began last.",
    _RANK,
    _EACH,
    "max",
)
TOOK = Family(
    "rankwatch_nixl_ep_phase_seconds",
    "gauge",
    "How long the phase took that the rank ended last.",
    _RANK,
    _EACH,
    "max",
)
EXPECTED = Family(
    "rankwatch_nixl_ep_expected_ranks",
    "gauge",
    "Ranks that take part in the job's phase to its end, by the plan.",
    ("job_id",),
    "1 per NIXL-EP run with a plan",
    "max",
)
PLANNED_EXIT = Family(
    "rankwatch_planned_exit",
    "gauge",
    "1 while the rank is to leave by its job's own word: its plan kills it in this phase, it has ended its last one, "
    "or it said so. Its end is nobody's death.",
    _RANK,
    "1 per rank that is to leave",
    "max",
)
MISSED = Family(
    "rankwatch_nixl_ep_missed_total",
    "counter",
    "Reports of ranks here that miss this rank, and whether the plan has it so (planned: yes, no, unknown).",
    (*_RANK, "planned"),
    "1 per rank that was missed",
    "sum",
)
COMPLETED = Family(
    "rankwatch_nixl_ep_phase_completed",
    "gauge",
    "The phase that the launcher saw completed last, from 0.",
    ("job_id",),
    "1 per NIXL-EP run with a launcher's output",
    "max",
)
WORKER_FAILED = Family(
    "rankwatch_nixl_ep_worker_failed_info",
    "gauge",
    "Ranks whose parent says that they failed, with the exit code (negative: the signal); always 1.",
    (*_RANK, "code"),
    "1 per rank that failed",
    "max",
)
FAILED = Family(
    "rankwatch_nixl_ep_failure_info",
    "gauge",
    "By what category the run failed; always 1. An srun that the plan ends is no failure.",
    ("job_id", "category"),
    "1 per run that failed",
    "max",
)
FAMILIES = (
    BANDWIDTH,
    SECONDS,
    PHASE,
    ENDED,
    BEGAN,
    TOOK,
    EXPECTED,
    COMPLETED,
    PLANNED_EXIT,
    MISSED,
    WORKER_FAILED,
    FAILED,
)

_TIMES = {
    "mean": "mean_seconds",
    "min": "min_seconds",
    "max": "max_seconds",
    "send": "send_seconds",
    "receive": "receive_seconds",
}


class EpSnapshot(msgspec.Struct, frozen=True):
    """What is rendered. ``runs``: a mapping of jobs to JobRun, encoded. ``now``: when it was taken, epoch seconds.

    ``planned``: the ranks to leave, as the rank table names them.
    """

    runs: bytes = b"\x80"
    plans: Mapping[str, Plan] = {}
    planned: frozenset[tuple[str, str]] = frozenset()
    now: float = 0.0


RUNS_DECODER = msgspec.msgpack.Decoder(dict[str, JobRun])


def render(snapshot: EpSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    runs = sorted(RUNS_DECODER.decode(snapshot.runs).items())
    ranks = [((job_id, str(number)), rank) for job_id, run in runs for number, rank in sorted(run.ranks().items())]
    yield from _measured(ranks)
    yield from _phases(ranks)
    yield from _jobs(snapshot, runs)


def _measured(ranks: list[tuple[tuple[str, str], RankRun]]) -> Iterable[Metric]:
    bandwidth, seconds = BANDWIDTH.rows(), SECONDS.rows()
    for label, rank in ranks:
        for stage, found in rank.stages.items():
            if found.bytes_per_second is not None:
                bandwidth.add((*label, stage), found.bytes_per_second)
            for name, field in _TIMES.items():
                if (value := getattr(found, field)) is not None:
                    seconds.add((*label, stage, name), value)
    return [bandwidth.metric, seconds.metric]


def _phases(ranks: list[tuple[tuple[str, str], RankRun]]) -> Iterable[Metric]:
    phase, ended, began, took = PHASE.rows(), ENDED.rows(), BEGAN.rows(), TOOK.rows()
    for label, rank in ranks:
        if rank.phase is not None:
            phase.add(label, rank.phase)
            began.add(label, rank.began_seconds)
        if rank.ended is not None:
            ended.add(label, rank.ended)
        if rank.phase_seconds is not None:
            took.add(label, rank.phase_seconds)
    return [rows.metric for rows in (phase, ended, began, took)]


def _jobs(snapshot: EpSnapshot, runs: list[tuple[str, JobRun]]) -> Iterable[Metric]:
    expected, planned, missed, failed = EXPECTED.rows(), PLANNED_EXIT.rows(), MISSED.rows(), FAILED.rows()
    completed, workers = COMPLETED.rows(), WORKER_FAILED.rows()
    for job_id, run in runs:
        plan, phase = snapshot.plans.get(job_id), run.phase()
        if plan is not None and phase is not None:
            expected.add((job_id,), len(plan.expected(phase)))
        if run.completed is not None:
            completed.add((job_id,), run.completed)
        for number, code in sorted(run.exits().items()):
            workers.add((job_id, str(number), str(code)), 1.0)
        for (number, is_planned), count in sorted(run.missed().items()):
            missed.add((job_id, str(number), is_planned), count)
        if category := run.failure(plan, snapshot.now):
            failed.add((job_id, category), 1.0)
    for label in sorted(snapshot.planned):
        planned.add(label, 1.0)
    return [rows.metric for rows in (expected, completed, planned, missed, workers, failed)]
