"""The metric families of the exporter, and their rendering from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.nixl_ep.job_run import JobRun, SavedRuns
from exporters.nixl_ep.plan import Plan
from exporters.nixl_ep.run import RankRun

_RANK = ("job_id", "rank")


def _of_rank(name: str, text: str) -> Family:
    return Family(name, "gauge", text, _RANK, "1 per rank of a NIXL-EP run", "max")


# fmt: off
BANDWIDTH = Family(
    "rankwatch_nixl_ep_bandwidth_bytes_per_second", "gauge",
    "Last bandwidth that the rank measured for its payload, by stage: dispatch, combine, or both together (combined).",
    (*_RANK, "stage"), "1 to 3 per rank of a NIXL-EP run", "max")
PHASE = Family(
    "rankwatch_nixl_ep_phase", "gauge",
    "Last phase, from 0, by event: begun or ended by the rank; completed, as the launcher reported (rank is empty).",
    (*_RANK, "event"), "2 per rank of a NIXL-EP run, 1 per run with a launcher's output", "max")
BEGAN = _of_rank(
    "rankwatch_nixl_ep_phase_start_timestamp_seconds", "Time when the log showed the start of the rank's newest phase."
)
TOOK = _of_rank("rankwatch_nixl_ep_phase_seconds", "Duration of the phase that the rank ended last.")
EXPECTED = Family(
    "rankwatch_nixl_ep_expected_ranks", "gauge",
    "Ranks that, by the plan, take part in the job's current phase until it ends.",
    ("job_id",), "1 per NIXL-EP run with a plan", "max")
PLANNED_EXIT = Family(
    "rankwatch_planned_exit", "gauge",
    "1 while the rank's end is planned: the job's plan kills it in this phase, it has completed its last phase, or it "
    "logged that it leaves. Its exit does not alert.",
    _RANK, "1 per rank with a planned end", "max")
FAILED = Family(
    "rankwatch_nixl_ep_failure_info", "gauge",
    "Failure category of the run; always 1. A planned end of srun is not a failure.",
    ("job_id", "category"), "1 per run that failed", "max")
# fmt: on
FAMILIES = (BANDWIDTH, PHASE, BEGAN, TOOK, EXPECTED, PLANNED_EXIT, FAILED)


class EpSnapshot(msgspec.Struct, frozen=True):
    """The data of one render. ``runs``: SavedRuns, encoded. ``now``: seconds since the epoch.

    ``planned``: rank table labels of ranks with a planned end.
    """

    runs: bytes = b"\x80"
    plans: Mapping[str, Plan] = {}
    planned: frozenset[tuple[str, str]] = frozenset()
    now: float = 0.0


_DECODER = msgspec.msgpack.Decoder(SavedRuns)


def render(snapshot: EpSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for job_id, run in sorted(_DECODER.decode(snapshot.runs).runs.items()):
        for number, rank in sorted(run.ranks().items()):
            _rank(rows, (job_id, str(number)), rank)
        _job(rows, job_id, run, snapshot)
    for label in sorted(snapshot.planned):
        rows[PLANNED_EXIT].add(label, 1.0)
    return [row.metric for row in rows.values()]


def _rank(rows: Mapping[Family, Rows], label: tuple[str, str], rank: RankRun) -> None:
    for stage, measured in rank.stages.items():
        if measured.bytes_per_second is not None:
            rows[BANDWIDTH].add((*label, stage), measured.bytes_per_second)
    began = None if rank.phase is None else rank.began_seconds
    for event, phase in (("begun", rank.phase), ("ended", rank.ended)):
        if phase is not None:
            rows[PHASE].add((*label, event), phase)
    for family, value in ((BEGAN, began), (TOOK, rank.phase_seconds)):
        if value is not None:
            rows[family].add(label, value)


def _job(rows: Mapping[Family, Rows], job_id: str, run: JobRun, snapshot: EpSnapshot) -> None:
    plan, phase = snapshot.plans.get(job_id), run.phase()
    if plan is not None and phase is not None:
        rows[EXPECTED].add((job_id,), len(plan.expected(phase)))
    if run.completed is not None:
        rows[PHASE].add((job_id, "", "completed"), run.completed)
    if category := run.failure(plan, snapshot.now):
        rows[FAILED].add((job_id, category), 1.0)
