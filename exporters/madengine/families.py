"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.madengine.manifest import ManifestModel
from exporters.madengine.results import most_complete
from exporters.madengine.site_files import SiteFacts
from exporters.madengine.task import Contradiction, NodeTask, TaskState

_TASK = ("job_id", "node_rank")
_EACH = "1 per node of a madengine run"

STATE = Family(
    "rankwatch_madengine_task_state",
    "gauge",
    "How far the node's task is: started, running (madengine), returned (it ended well), exited, or lost (no last "
    "line, no live rank, no word for a minute); always 1.",
    (*_TASK, "state"),
    _EACH,
    "max",
)
CODE = Family(
    "rankwatch_madengine_task_exit_code",
    "gauge",
    "The code with which the node's task ended, by its last line; absent before that.",
    _TASK,
    _EACH,
    "max",
)
CONTRADICTED = Family(
    "rankwatch_madengine_contradicted",
    "gauge",
    "1 where madengine's rules make a success of a task that was none: it was lost, ended with another code than 0 "
    "(exit_code), or a rank of its job died on its node (rank_dead).",
    (*_TASK, "reason"),
    "1 per task that it misjudges",
    "max",
)
PERFORMANCE = Family(
    "rankwatch_madengine_performance",
    "gauge",
    "What a run measured, in the unit that metric names: the first of its lines, or of a job's tables of several "
    "results the one with the most of them, or (job_id and node_rank empty) the newest row of perf.csv.",
    (*_TASK, "model", "metric"),
    "1 per task and metric, at most 16; 1 per model and metric of a job's best table, at most 64, and in perf.csv, at "
    "most 256",
    "max",
)
MISSING = Family(
    "rankwatch_madengine_barrier_missing_nodes",
    "gauge",
    "Nodes that had not reached the barrier before the run when the master last gave up.",
    ("job_id",),
    "1 per job whose master gave up",
    "max",
)
RUN = Family(
    "rankwatch_madengine_run_info",
    "gauge",
    "Always 1: what a job's manifest asks for (metric, status and gpus are empty), or what ran for the newest row of "
    "each model and metric in perf.csv (job_id is empty). nodes, processes_per_node, gpus: how many; target: slurm, "
    "docker or k8s. Other labels are empty where the file lacks them.",
    ("job_id", *ManifestModel._fields, "metric", "status", "gpus"),
    "1 per model of a job's manifest, at most 16; 1 per model and metric in perf.csv, at most 256",
    "max",
)
RESULT_SECONDS = Family(
    "rankwatch_madengine_result_seconds",
    "gauge",
    "How long the test of the newest row of each model and metric in perf.csv took.",
    ("model", "metric"),
    "1 per model and metric in perf.csv, at most 256",
    "max",
)
FAMILIES = (STATE, CODE, CONTRADICTED, PERFORMANCE, MISSING, RUN, RESULT_SECONDS)


class ShownTask(msgspec.Struct, frozen=True):
    """A task as it is shown."""

    job_id: str
    node_rank: int
    task: NodeTask
    state: TaskState | None
    contradiction: Contradiction | None


class MadSnapshot(msgspec.Struct, frozen=True):
    """What is rendered."""

    tasks: tuple[ShownTask, ...] = ()
    facts: SiteFacts = SiteFacts({}, (), {})


def render(snapshot: MadSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for shown in snapshot.tasks:
        _task(rows, shown)
    missing = {
        each.job_id: each.task.barrier.missing for each in snapshot.tasks if each.task.barrier.missing is not None
    }
    for job_id, count in missing.items():
        rows[MISSING].add((job_id,), count)
    _site(rows, snapshot.facts)
    printed = {
        (each.job_id, each.node_rank, each.task.model, name) for each in snapshot.tasks for name in each.task.results
    }
    for job_id, node_rank, table in most_complete(snapshot.facts.tables):
        for (model, metric), value in table.results.items():
            if (job_id, node_rank, model, metric) not in printed:
                rows[PERFORMANCE].add((job_id, str(node_rank), model, metric), value)
    return [one.metric for one in rows.values()]


def _site(rows: Mapping[Family, Rows], facts: SiteFacts) -> None:
    for (model, metric), row in facts.results.items():
        if row.performance is not None:
            rows[PERFORMANCE].add(("", "", model, metric), row.performance)
        if row.seconds is not None:
            rows[RESULT_SECONDS].add((model, metric), row.seconds)
        ran = ManifestModel(model, launcher=row.launcher, nodes=row.nodes)
        rows[RUN].add(("", *ran, metric, row.status, row.gpus), 1.0)
    for job_id, models in facts.manifests.items():
        for asked in dict.fromkeys(models):
            rows[RUN].add((job_id, *asked, "", "", ""), 1.0)


def _task(rows: Mapping[Family, Rows], shown: ShownTask) -> None:
    task, label = shown.task, (shown.job_id, str(shown.node_rank))
    if shown.state is not None:
        rows[STATE].add((*label, shown.state), 1.0)
    if task.code is not None:
        rows[CODE].add(label, task.code)
    if shown.contradiction is not None:
        rows[CONTRADICTED].add((*label, shown.contradiction), 1.0)
    for metric, value in task.results.items():
        rows[PERFORMANCE].add((*label, task.model, metric), value)
