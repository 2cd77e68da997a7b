"""The exporter: follows the output of nodes in a thread, and reads a site's perf.csv and tables."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import JobLines, JobTexts, PathPatterns, SavedPositions
from agent.sdk.metrics import Metric
from agent.sdk.ranks import JobUsers
from exporters.madengine.families import FAMILIES, MadSnapshot, ShownTask, render
from exporters.madengine.patterns import patterns
from exporters.madengine.site_files import SiteFacts, SiteReader
from exporters.madengine.task import NodeTask, read_name

INTERVAL_SECONDS = 2.0
SITE_SECONDS = 30.0
"""How often perf.csv and tables are looked at."""
MAX_TASKS = 256
"""Of jobs on the node, that are followed."""

_File = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]
_JobPaths = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*%j[^\0]*$", max_length=1024)]], msgspec.Meta(max_length=16)
]
_Task = tuple[Annotated[str, msgspec.Meta(max_length=256)], Annotated[int, msgspec.Meta(ge=0)]]


class MadengineConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: the output of nodes (madengine-MODEL_%j_node_N.out and .err); ``results``: perf.csv files.

    ``tables``: of several results, in node_N of a job's directory (.../%j/node_*/multi_results*.csv), believed as the
    site names them.
    """

    paths: PathPatterns = msgspec.field(default_factory=list)
    results: Annotated[list[_File], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    tables: _JobPaths = msgspec.field(default_factory=list)


class SavedTasks(msgspec.Struct):
    """What the checkpoint keeps: where reading stands, and what the lines so far say, by job and node's number."""

    positions: SavedPositions = []
    tasks: dict[_Task, NodeTask] = {}


class RanksHere(NamedTuple):
    """Jobs with a rank here that runs, and with one that died."""

    live: frozenset[str]
    dead: frozenset[str]


class TaskReader:
    """The tasks of nodes. Belongs to the exporter's thread."""

    def __init__(self, ctx: Context, paths: list[str], saved: SavedTasks) -> None:
        self._ctx = ctx
        self._texts = JobTexts(ctx, paths, saved.positions)
        self._tasks = saved.tasks
        patterns()

    def turn(self, users: JobUsers, ranks: RanksHere) -> tuple[bool, tuple[ShownTask, ...], bytes]:
        """Read on; whether there is a source, the tasks, and the section of the checkpoint."""
        for lines in self._texts.turn(users):
            self._ctx.guard.attempt("lines of madengine", partial(self._take, lines), path=lines.path)
        if not self._ctx.once:
            here = users.jobs()
            self._tasks = {key: task for key, task in self._tasks.items() if key[0] in here}
        now = self._ctx.clock.time()
        shown = tuple(self._shown(*key, task, now, ranks) for key, task in sorted(self._tasks.items()))
        saved = SavedTasks(self._texts.positions(), self._tasks)
        return self._texts.available, shown, msgspec.msgpack.encode(saved)

    def close(self) -> None:
        """Let go of all files."""
        self._texts.close()

    def _take(self, lines: JobLines) -> None:
        name = read_name(lines.path)
        if name is None:
            return
        key = (lines.job_id, name.node_rank)
        if key not in self._tasks and len(self._tasks) >= MAX_TASKS:
            return
        task = self._tasks.setdefault(key, NodeTask(name.model))
        for line in lines.lines:
            task.take(line, lines.seconds, is_output=name.is_output)

    def _shown(self, job_id: str, node_rank: int, task: NodeTask, now: float, ranks: RanksHere) -> ShownTask:
        """A frozen copy of a task, and how it stands."""
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=NodeTask)
        state = task.state(now, has_live_ranks=job_id in ranks.live or self._ctx.once)
        against = task.contradiction(node_rank, state, has_dead_ranks=job_id in ranks.dead)
        return ShownTask(job_id, node_rank, copy, state, against)


class MadengineExporter:
    """See the package."""

    def __init__(self, config: MadengineConfig) -> None:
        self._config = config
        self._tasks: TaskReader | None = None
        self._site: SiteReader | None = None
        self._facts = SiteFacts({}, ())
        self._facts_at = float("-inf")
        self._shown = MadSnapshot()

    async def start(self, ctx: Context) -> None:
        """Take back what was read before; no file is touched yet."""
        self._ctx = ctx
        self._thread = ctx.thread("madengine")
        if self._config.paths:
            saved = ctx.state.restore(SavedTasks, ctx.log) or SavedTasks()
            self._tasks = await self._thread.call(partial(TaskReader, ctx, self._config.paths, saved))
        if self._config.results or self._config.tables:
            self._site = SiteReader(self._config.results, self._config.tables, ctx.clock)

    async def update(self) -> None:
        """Read on; NoData where nothing is configured, or nothing of it is there."""
        available, tasks = False, self._shown.tasks
        views = self._ctx.ranks.snapshot()
        users = JobUsers(views)
        if self._tasks is not None:
            live = frozenset(view.label.job_id for view in views.ranks if view.process.exited_at is None)
            verdicts = [(view.label.job_id, view.process.verdict) for view in views.ranks]
            dead = frozenset(job_id for job_id, verdict in verdicts if verdict is not None and verdict.state == "dead")
            turn = partial(self._tasks.turn, users, RanksHere(live, dead))
            available, tasks, section = await self._thread.call(turn)
            self._ctx.state.publish(section)
        now = self._ctx.clock.monotonic()
        if self._site is not None and now - self._facts_at >= SITE_SECONDS:
            self._facts_at = now
            self._facts = await self._thread.call(self._site.look)
        self._shown = MadSnapshot(tasks, self._facts)
        if not available and not any(self._facts):
            raise NoData

    def snapshot(self) -> MadSnapshot:
        """What the last look gave."""
        return self._shown

    def families(self, snapshot: MadSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Let go of the files."""
        if self._tasks is not None:
            await self._thread.call(self._tasks.close)


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
