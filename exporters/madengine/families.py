"""The metric families of the exporter, and their rendering from a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.madengine.results import most_complete
from exporters.madengine.site_files import ManifestModel, SiteFacts
from exporters.madengine.task import Contradiction, NodeTask, TaskState

_TASK = ("job_id", "node_rank")
_EACH = "1 per node of a madengine run"

# fmt: off
STATE = Family(
    "rankwatch_madengine_task_state", "gauge",
    "State of the node's task: started, running (madengine runs), returned (madengine ended with code 0), exited, or "
    "lost (no last line, no live rank, and no output for 60 s); always 1. code: the exit status in its last line, "
    "empty before that line.",
    (*_TASK, "state", "code"), _EACH, "max")
CONTRADICTED = Family(
    "rankwatch_madengine_contradicted", "gauge",
    "1 if madengine counts a failed task as a success. reason: the task was lost, exited with a code other than 0 "
    "(exit_code), or a rank of its job died on its node (rank_dead).",
    (*_TASK, "reason"), "1 per task with a wrong verdict", "max")
PERFORMANCE = Family(
    "rankwatch_madengine_performance", "gauge",
    "Result of a run, in the unit that metric names. Source: the task's first line with the metric, the job's result "
    "table with the most results, or (job_id and node_rank empty) the newest row of perf.csv.",
    (*_TASK, "model", "metric"),
    "1 per task and metric, at most 16; 1 per model and metric of a job's best table, at most 64, and in perf.csv, at "
    "most 256", "max")
MISSING = Family(
    "rankwatch_madengine_barrier_missing_nodes", "gauge",
    "Nodes missing at the barrier before the run, in the master's last barrier timeout.",
    ("job_id",), "1 per job with a barrier timeout", "max")
RUN = Family(
    "rankwatch_madengine_run_info", "gauge",
    "Always 1: a model in a job's manifest (metric, status and gpus are empty), or the newest row of each model and "
    "metric in perf.csv (job_id is empty). nodes, processes_per_node, gpus: counts; target: slurm, docker or "
    "k8s. A label is empty if the file lacks it.",
    ("job_id", *ManifestModel._fields, "metric", "status", "gpus"),
    "1 per model of a job's manifest, at most 16; 1 per model and metric in perf.csv, at most 256", "max")
RESULT_SECONDS = Family(
    "rankwatch_madengine_result_seconds", "gauge",
    "Test duration in the newest row of each model and metric in perf.csv.",
    ("model", "metric"), "1 per model and metric in perf.csv, at most 256", "max")
# fmt: on
FAMILIES = (STATE, CONTRADICTED, PERFORMANCE, MISSING, RUN, RESULT_SECONDS)


class ShownTask(msgspec.Struct, frozen=True):
    """A task with its state, for rendering."""

    job_id: str
    node_rank: int
    task: NodeTask
    state: TaskState | None
    contradiction: Contradiction | None


class MadSnapshot(msgspec.Struct, frozen=True):
    """The data of one render."""

    tasks: tuple[ShownTask, ...] = ()
    facts: SiteFacts = SiteFacts({}, (), {})


def render(snapshot: MadSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for shown in snapshot.tasks:
        _task(rows, shown)
    missing = {task.job_id: task.task.missing_nodes for task in snapshot.tasks if task.task.missing_nodes is not None}
    for job_id, count in missing.items():
        rows[MISSING].add((job_id,), count)
    _site(rows, snapshot.facts)
    printed = {
        (task.job_id, task.node_rank, task.task.model, name) for task in snapshot.tasks for name in task.task.results
    }
    for job_id, node_rank, table in most_complete(snapshot.facts.tables):
        for (model, metric), value in table.results.items():
            if (job_id, node_rank, model, metric) not in printed:
                rows[PERFORMANCE].add((job_id, str(node_rank), model, metric), value)
    return [row.metric for row in rows.values()]


def _site(rows: Mapping[Family, Rows], facts: SiteFacts) -> None:
    for (model, metric), row in facts.results.items():
        if row.performance is not None:
            rows[PERFORMANCE].add(("", "", model, metric), row.performance)
        if row.seconds is not None:
            rows[RESULT_SECONDS].add((model, metric), row.seconds)
        ran = ManifestModel(model, launcher=row.launcher, nodes=row.nodes)
        rows[RUN].add(("", *ran, metric, row.status, row.gpus), 1.0)
    for job_id, models in facts.manifests.items():
        for model_facts in dict.fromkeys(models):
            rows[RUN].add((job_id, *model_facts, "", "", ""), 1.0)


def _task(rows: Mapping[Family, Rows], shown: ShownTask) -> None:
    task, label = shown.task, (shown.job_id, str(shown.node_rank))
    if shown.state is not None:
        rows[STATE].add((*label, shown.state, "" if task.code is None else str(task.code)), 1.0)
    if shown.contradiction is not None:
        rows[CONTRADICTED].add((*label, shown.contradiction), 1.0)
    for metric, value in task.results.items():
        rows[PERFORMANCE].add((*label, task.model, metric), value)
