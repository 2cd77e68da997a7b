"""The exporter: follows the output of nodes in a thread, and reads a site's perf.csv."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from agent.api import (
    Context,
    ExporterConfig,
    FilePlace,
    JobLines,
    JobTexts,
    JobUsers,
    Metric,
    NoData,
    PathPatterns,
    SavedPositions,
    Spec,
    read_changed,
)
from exporters.madengine.families import FAMILIES, MadSnapshot, ShownTask, render
from exporters.madengine.patterns import patterns
from exporters.madengine.perf_csv import MAX_CSV_BYTES, MAX_RESULTS, PerfRow, read_rows
from exporters.madengine.task import NodeTask, read_name

INTERVAL_SECONDS = 2.0
RESULTS_SECONDS = 30.0
"""How often perf.csv is looked at."""
MAX_TASKS = 256
"""Of jobs on the node, that are followed."""

_File = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]
_Task = tuple[Annotated[str, msgspec.Meta(max_length=256)], Annotated[int, msgspec.Meta(ge=0)]]


class MadengineConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: the output of nodes (madengine-MODEL_%j_node_N.out and .err); ``results``: perf.csv files."""

    paths: PathPatterns = msgspec.field(default_factory=list)
    results: Annotated[list[_File], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)


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


class ResultReader:
    """The rows of a site's perf.csv files, read when one changes. Belongs to the exporter's thread."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._read: dict[str, FilePlace] = {}
        self._rows: dict[str, list[PerfRow]] = {}

    def look(self) -> tuple[PerfRow, ...]:
        """The rows of all files."""
        for path in self._paths:
            try:
                self._look_at(path)
            except OSError:
                self._rows.pop(path, None)
                self._read.pop(path, None)
        found = {(row.model, row.metric): row for path in self._paths for row in self._rows.get(path, ())}
        return tuple(found.values())[-MAX_RESULTS:]

    def _look_at(self, path: str) -> None:
        found = read_changed(path, MAX_CSV_BYTES, self._read.get(path))
        rows = None if found is None else read_rows(found[1])
        if found is not None and rows is not None:
            self._read[path], self._rows[path] = found[0], rows


class MadengineExporter:
    """See the package."""

    def __init__(self, config: MadengineConfig) -> None:
        self._config = config
        self._tasks: TaskReader | None = None
        self._results = ResultReader(config.results)
        self._rows: tuple[PerfRow, ...] = ()
        self._results_at = float("-inf")
        self._shown = MadSnapshot()

    async def start(self, ctx: Context) -> None:
        """Take back what was read before; no file is touched yet."""
        self._ctx = ctx
        self._thread = ctx.thread("madengine")
        if self._config.paths:
            saved = ctx.state.restore(SavedTasks, ctx.log) or SavedTasks()
            self._tasks = await self._thread.call(partial(TaskReader, ctx, self._config.paths, saved))

    async def update(self) -> None:
        """Read on; NoData where nothing is configured, or nothing of it is there."""
        available, tasks = False, self._shown.tasks
        if self._tasks is not None:
            views = self._ctx.ranks.snapshot()
            live = frozenset(view.label.job_id for view in views.ranks if view.process.exited_at is None)
            verdicts = [(view.label.job_id, view.process.verdict) for view in views.ranks]
            dead = frozenset(job_id for job_id, verdict in verdicts if verdict is not None and verdict.state == "dead")
            turn = partial(self._tasks.turn, JobUsers(views), RanksHere(live, dead))
            available, tasks, section = await self._thread.call(turn)
            self._ctx.state.publish(section)
        now = self._ctx.clock.monotonic()
        if self._config.results and now - self._results_at >= RESULTS_SECONDS:
            self._results_at = now
            self._rows = await self._thread.call(self._results.look)
        self._shown = MadSnapshot(tasks, self._rows)
        if not available and not self._rows:
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
