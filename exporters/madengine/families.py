"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.metrics import Family, Metric, Rows
from exporters.madengine.perf_csv import PerfRow
from exporters.madengine.site_files import JobManifest, SiteFacts
from exporters.madengine.tables import PlacedTable, most_complete, of_nodes
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
STATUS = Family(
    "rankwatch_madengine_status",
    "gauge",
    "What madengine makes of a run; always 1: of a node's task by its own rules, once that has ended, or (job_id and "
    "node_rank empty) of the newest row of each model in perf.csv. status: SUCCESS, FAILURE, SKIPPED or other.",
    (*_TASK, "model", "status"),
    "1 per node of a run, 1 per model and metric in perf.csv",
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
TEST_SECONDS = Family(
    "rankwatch_madengine_test_seconds", "gauge", "How long the test took, by its own word.", _TASK, _EACH, "max"
)
FAILURES = Family(
    "rankwatch_madengine_failure_lines_total",
    "counter",
    "Lines of the task's output that fail a run by madengine's rules, by pattern.",
    (*_TASK, "failure"),
    "1 per task and failure seen, at most 13",
    "max",
)
BARRIER = Family(
    "rankwatch_madengine_barrier_timeouts_total",
    "counter",
    "Times that a node gave up the barrier before the run, by side: the master waited for others, a worker for it.",
    (*_TASK, "side"),
    "1 per node that gave up",
    "max",
)
MISSING = Family(
    "rankwatch_madengine_barrier_missing_nodes",
    "gauge",
    "How many nodes had not come when the master gave up: those without a time-out of their own were not there.",
    ("job_id",),
    "1 per job whose master gave up",
    "max",
)
RESULT = Family(
    "rankwatch_madengine_result_info",
    "gauge",
    "What ran for the newest row of each model and metric in perf.csv: by which launcher, on how many nodes and GPUs; "
    "always 1.",
    ("model", "metric", "launcher", "nodes", "gpus"),
    "1 per model and metric in perf.csv, at most 256",
    "max",
)
RESULT_SECONDS = Family(
    "rankwatch_madengine_result_seconds",
    "gauge",
    "How long the test of that row took.",
    ("model", "metric"),
    "1 per model and metric in perf.csv, at most 256",
    "max",
)
TABLE_ROWS = Family(
    "rankwatch_madengine_table_rows",
    "gauge",
    "Rows of a node's table of several results; state: filled (with a result) or empty.",
    (*_TASK, "state"),
    "2 per node with a table, of at most 128 tables",
    "max",
)
MANIFEST = Family(
    "rankwatch_madengine_manifest_info",
    "gauge",
    "What the manifest of a job's run asks for; always 1. Of nodes and processes_per_node how many, target: where it "
    "runs (slurm, docker, k8s). A label is empty where that is not known.",
    ("job_id", "model", "image", "launcher", "nodes", "processes_per_node", "gpu_vendor", "target"),
    "1 per model of a job's manifest, at most 16",
    "max",
)
FAMILIES = (
    STATE,
    CODE,
    STATUS,
    CONTRADICTED,
    PERFORMANCE,
    TEST_SECONDS,
    RESULT,
    RESULT_SECONDS,
    FAILURES,
    BARRIER,
    MISSING,
    TABLE_ROWS,
    MANIFEST,
)


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
    facts: SiteFacts = SiteFacts()


def render(snapshot: MadSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for shown in snapshot.tasks:
        _judged(rows, shown)
        _printed(rows, shown)
    for job_id, missing in _missing(snapshot.tasks).items():
        rows[MISSING].add((job_id,), missing)
    _perf_csv(rows, snapshot.facts.rows)
    _tables(rows, snapshot)
    _manifests(rows, snapshot.facts.manifests)
    return [found.metric for found in rows.values()]


def _perf_csv(rows: Mapping[Family, Rows], found: tuple[PerfRow, ...]) -> None:
    for row in found:
        if row.performance is not None:
            rows[PERFORMANCE].add(("", "", row.model, row.metric), row.performance)
        if row.seconds is not None:
            rows[RESULT_SECONDS].add((row.model, row.metric), row.seconds)
        rows[RESULT].add((row.model, row.metric, row.launcher, row.nodes, row.gpus), 1.0)
    for model, status in {row.model: row.status for row in found}.items():
        rows[STATUS].add(("", "", model, status), 1.0)


def _tables(rows: Mapping[Family, Rows], snapshot: MadSnapshot) -> None:
    """Rows of each node's table, and the results of each job's best one that no line of the same task gave."""
    tables: tuple[PlacedTable, ...] = snapshot.facts.tables
    for job_id, node_rank, table in of_nodes(tables):
        for state, count in (("filled", table.filled), ("empty", table.empty)):
            rows[TABLE_ROWS].add((job_id, str(node_rank), state), count)
    printed = {
        (shown.job_id, shown.node_rank, shown.task.model, metric)
        for shown in snapshot.tasks
        for metric in shown.task.results
    }
    for job_id, node_rank, table in most_complete(tables):
        for (model, metric), value in table.results.items():
            if (job_id, node_rank, model, metric) not in printed:
                rows[PERFORMANCE].add((job_id, str(node_rank), model, metric), value)


def _manifests(rows: Mapping[Family, Rows], manifests: Iterable[JobManifest]) -> None:
    for job_id, models in manifests:
        for labels in dict.fromkeys(msgspec.structs.astuple(model) for model in models):
            rows[MANIFEST].add((job_id, *labels), 1.0)


def _judged(rows: Mapping[Family, Rows], shown: ShownTask) -> None:
    task, label = shown.task, (shown.job_id, str(shown.node_rank))
    if shown.state is not None:
        rows[STATE].add((*label, shown.state), 1.0)
    if task.code is not None:
        rows[CODE].add(label, task.code)
    if shown.state in ("returned", "exited", "lost"):
        rows[STATUS].add((*label, task.model, task.verdict(shown.node_rank)), 1.0)
    if shown.contradiction is not None:
        rows[CONTRADICTED].add((*label, shown.contradiction), 1.0)


def _printed(rows: Mapping[Family, Rows], shown: ShownTask) -> None:
    task, label = shown.task, (shown.job_id, str(shown.node_rank))
    for metric, value in task.results.items():
        rows[PERFORMANCE].add((*label, task.model, metric), value)
    if task.test_seconds is not None:
        rows[TEST_SECONDS].add(label, task.test_seconds)
    for failure, count in task.failures.items():
        rows[FAILURES].add((*label, failure), count)
    for side, count in (("master", task.barrier.master), ("worker", task.barrier.worker)):
        if count:
            rows[BARRIER].add((*label, side), count)


def _missing(tasks: Iterable[ShownTask]) -> dict[str, int]:
    return {each.job_id: each.task.barrier.missing for each in tasks if each.task.barrier.missing is not None}
