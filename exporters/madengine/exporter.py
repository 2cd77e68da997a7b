"""A thread follows the output of nodes and reads configured perf.csv files, tables and manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import JobLines, JobTexts, PathPatterns, SavedTexts, TextExporter
from agent.sdk.metrics import Family, Metric, Rows
from agent.sdk.ranks import RankSnapshot
from exporters.madengine.results import most_complete
from exporters.madengine.site_files import ManifestModel, SiteFacts, SiteReader
from exporters.madengine.task import Contradiction, NodeTask, TaskState, read_name

INTERVAL_SECONDS = 2.0
SITE_SECONDS = 30.0  # Interval between reads of perf.csv, tables and manifests
MAX_JOBS = 64  # Limit of followed jobs per node
MAX_TASKS = 256  # Limit of tasks of all jobs; a job with fewer tasks evicts a task of the job with most tasks

_File = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]
_JobPaths = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*%j[^\0]*$", max_length=1024)]], msgspec.Meta(max_length=16)
]
_Task = tuple[Annotated[str, msgspec.Meta(max_length=256)], Annotated[int, msgspec.Meta(ge=0)]]

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
    "(exit_code), or a rank of the job died on the task's node (rank_dead).",
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


class MadengineConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: output of nodes (madengine-MODEL_%j_node_N.out and .err); ``results``: perf.csv files.

    ``tables``: result tables in node_N of a job's directory (.../%j/node_*/multi_results*.csv); the exporter does not
    check their owner. ``manifests``: the paths at which madengine writes a job's manifest on the job's nodes.
    """

    paths: PathPatterns = msgspec.field(default_factory=list)
    results: Annotated[list[_File], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    tables: _JobPaths = msgspec.field(default_factory=list)
    manifests: _JobPaths = msgspec.field(default_factory=lambda: ["/tmp/madengine_job_%j_node_*/build_manifest*.json"])  # noqa: S108


class SavedTasks(SavedTexts):
    """The checkpoint: by job and node rank, the state after all lines that were read."""

    tasks: dict[_Task, NodeTask] = msgspec.field(default_factory=dict)


class MadengineExporter(TextExporter[SavedTasks, MadSnapshot]):
    """Exports madengine's tasks and results, and its wrong verdicts."""

    def __init__(self, config: MadengineConfig) -> None:
        super().__init__("madengine", config.paths, SavedTasks, MadSnapshot(), render, MAX_JOBS)
        self._config = config
        self._tasks: tuple[ShownTask, ...] = ()
        self._facts = SiteFacts({}, (), {})
        self._facts_at = float("-inf")

    async def start(self, ctx: Context) -> None:
        """Restore the checkpoint. This opens no file."""
        await super().start(ctx)
        config = self._config
        self._site = SiteReader(config.results, config.tables, config.manifests, ctx.clock, ctx.hangs)

    async def update(self) -> None:
        """Read new lines and files. Raise NoData if nothing is configured or no configured file exists."""
        ranks = self.ctx.ranks.snapshot()
        available = await self.follow(ranks)
        now = self.ctx.clock.monotonic()
        if (self._config.paths or self._config.results or self._config.tables) and now - self._facts_at >= SITE_SECONDS:
            self._facts_at = now
            self._facts = await self.thread.call(partial(self._look_at_site, ranks))
        self.shown = MadSnapshot(self._tasks, self._facts)
        if not available and not any(self._facts):
            raise NoData

    def _look_at_site(self, ranks: RankSnapshot) -> SiteFacts:
        """Read all files. In a container ranks run as root, so the owner of a job's output counts as the job's user."""
        files = () if self.texts is None else self.texts.files(ranks)
        owners = {(file.share.uid, job_id) for job_id, file in files}

        def job_of(uid: int, named: str) -> str:  # once: recorded data, jobs without ranks
            return named if self.ctx.once or (uid, named) in owners else ranks.job_of(uid, named)

        return self._site.look(job_of)

    def turn(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        """Read new lines, and compute each task's state from its lines and from the job's ranks on this node."""
        super().turn(texts, ranks)
        live = {view.label.job_id for view in ranks.ranks if view.process.exited_at is None}
        verdicts = [(view.label.job_id, view.process.verdict) for view in ranks.ranks]
        dead = {job_id for job_id, verdict in verdicts if verdict is not None and verdict.state == "dead"}
        now = self.ctx.clock.time()
        shown = []
        here = self.saved.tasks if self.ctx.once else {key for key in self.saved.tasks if key[0] in ranks.job_ids}
        for job_id, node_rank in sorted(here):
            task = self.saved.tasks[job_id, node_rank]
            copy = msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=NodeTask)
            state = task.state(now, has_live_ranks=job_id in live or self.ctx.once)
            against = task.contradiction(node_rank, state, has_dead_ranks=job_id in dead)
            shown.append(ShownTask(job_id, node_rank, copy, state, against))
        self._tasks = tuple(shown)

    def take(self, lines: JobLines) -> None:
        """Add new lines of a node's output to its task."""
        name = read_name(lines.path)
        if name is None:
            return
        key = (lines.job_id, name.node_rank)
        if key in self.saved.tasks or self._make_room(lines.job_id):
            task = self.saved.tasks.setdefault(key, NodeTask(name.model))
            for line in lines.lines:
                task.take(line, lines.seconds, is_output=name.is_output)

    def _make_room(self, job_id: str) -> bool:
        """Return True if a job may have one more task; at the limit, evict a task of the job with most tasks."""
        if len(self.saved.tasks) < MAX_TASKS:
            return True
        counts = Counter(key[0] for key in self.saved.tasks)
        largest, count = counts.most_common(1)[0]
        if counts[job_id] + 1 >= count:
            return False
        del self.saved.tasks[max(key for key in self.saved.tasks if key[0] == largest)]
        return True

    def known_jobs(self) -> frozenset[str]:
        """Return the ids of jobs with tasks."""
        return frozenset(job_id for job_id, _ in self.saved.tasks)

    def forget(self, here: frozenset[str]) -> None:
        """Forget the tasks of jobs that are not in ``here``."""
        self.saved.tasks = {key: task for key, task in self.saved.tasks.items() if key[0] in here}


SPEC = Spec(
    name="madengine",
    config=MadengineConfig,
    build=MadengineExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=10_000,
    checkpoint_bytes=256 * 1024,
)
