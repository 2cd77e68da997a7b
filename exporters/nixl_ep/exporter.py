"""The exporter: follows the logs of nodes and launchers in a thread, and reads the plan that lies beside them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import FilePlace, JobLines, JobTexts, PathPatterns, SavedPositions, read_changed
from agent.sdk.metrics import Metric
from agent.sdk.ranks import JobUsers, RankLabel, RankSnapshot
from agent.sdk.system import expand_hosts
from exporters.nixl_ep.binding import StartedGroup, bind
from exporters.nixl_ep.families import FAMILIES, EpSnapshot, render
from exporters.nixl_ep.job_run import JobRun, node_of
from exporters.nixl_ep.plan import MAX_PLAN_BYTES, Plan, read_plan
from exporters.nixl_ep.run import Launch, is_leaving

INTERVAL_SECONDS = 1.0
MAX_JOBS = 8
"""Of a node, that are followed."""
PLAN = "nixl-ep-plan.json"
NODES = "SLURM_JOB_NODELIST"
BY_INDEX = frozenset({"local_index", "title"})
"""Sources of a rank's name that are not the run's number."""
FILE_CLOCK_SECONDS = 10.0
"""So far behind may the clock of a file server be, by which lines are timed."""


class NixlEpConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: the logs of nodes (nixl-ep-node-N.log) and what launchers print; the plan lies beside them."""

    paths: PathPatterns = msgspec.field(default_factory=list)


class SavedRuns(msgspec.Struct):
    """What the checkpoint keeps: where reading stands, and what the lines so far say, by job."""

    positions: SavedPositions = []
    runs: dict[Annotated[str, msgspec.Meta(max_length=256)], JobRun] = {}


class LocalRank(NamedTuple):
    """A rank of this node: its name by the rank table, who started it when (epoch seconds), and whether it runs."""

    job_id: str
    rank: str
    source: str
    parent_pid: int
    order: tuple[int, int]
    started: float
    runs: bool = True


class EpTurn(NamedTuple):
    """What a turn of the reader gave."""

    available: bool
    runs: bytes
    section: bytes
    plans: dict[str, Plan]
    planned: frozenset[tuple[str, str]]


class RunReader:
    """The runs by job. Belongs to the exporter's thread."""

    def __init__(self, ctx: Context, paths: list[str], saved: SavedRuns) -> None:
        self._texts = JobTexts(ctx, paths, saved.positions)
        self._guard = ctx.guard
        self._once = ctx.once
        self._place = partial(place_in, hostname=ctx.hostname)
        self._runs = saved.runs
        self._plans: dict[str, Plan] = {}
        self._read: dict[str, FilePlace] = {}

    def turn(self, users: JobUsers, ranks: Sequence[LocalRank], nodes: Mapping[str, str]) -> EpTurn:
        """Read on in the plans and the logs; ``nodes``: by job, its nodes as its user's environment has them."""
        places = {job_id: place for job_id, text in nodes.items() if (place := self._place(text)) is not None}
        self._texts.claim = partial(is_ours, places)
        found = self._texts.turn(users)
        self._read_plans(users)
        full = {job_id for job_id, run in self._runs.items() if run.is_full()}
        for lines in found:
            if lines.job_id not in full and (lines.job_id in self._runs or len(self._runs) < MAX_JOBS):
                self._guard.attempt("lines of NIXL-EP", partial(self._take, lines), path=lines.path)
        if not self._once:
            here = users.jobs()
            for known in (self._runs, self._plans):
                for job_id in known.keys() - here:
                    del known[job_id]
        planned = frozenset(
            name
            for job_id, run in self._runs.items()
            for name in planned_names(job_id, run, self._plans.get(job_id), ranks)
        )
        saved = SavedRuns(self._texts.positions(), self._runs)
        return EpTurn(
            self._texts.available,
            msgspec.msgpack.encode(self._runs),
            msgspec.msgpack.encode(saved),
            dict(self._plans),
            planned,
        )

    def close(self) -> None:
        """Let go of all files."""
        self._texts.close()

    def _take(self, lines: JobLines) -> None:
        run = self._runs.setdefault(lines.job_id, JobRun())
        run.take(lines, self._plans.get(lines.job_id))

    def _read_plans(self, users: JobUsers) -> None:
        """Read the plan beside the file of each job that was written last; of the same user as that file."""
        newest = sorted(self._texts.files(users), key=lambda each: each[1].written_ns)
        for job_id, file in dict(newest).items():
            path = os.path.join(os.path.dirname(file.path), PLAN)
            read = partial(self._read_plan, job_id, path, file.share.uid)
            self._guard.attempt("a plan of NIXL-EP", read, path=path)

    def _read_plan(self, job_id: str, path: str, uid: int) -> None:
        try:
            found = read_changed(path, MAX_PLAN_BYTES, self._read.get(job_id), uid)
        except OSError:
            return
        plan = None if found is None else read_plan(found[1])
        if found is not None and plan is not None:  # else half written: the one before stays
            self._read[job_id], self._plans[job_id] = found[0], plan


def nodes_of(views: RankSnapshot) -> dict[str, str]:
    """By job, its nodes in Slurm's short form, where a rank's environment tells them; MAX_JOBS at most."""
    found: dict[str, str] = {}
    for view in views.ranks:
        environment = view.process.facts.environment if view.process.facts is not None else None
        nodes = (environment or {}).get(NODES, "")
        if nodes and (view.label.job_id in found or len(found) < MAX_JOBS):
            found[view.label.job_id] = nodes
    return found


def is_ours(places: Mapping[str, int], path: str, job_id: str) -> bool | None:
    """Whether a log is that of this node; None where that is not known, or the file is none of a node's."""
    node, own = node_of(path), places.get(job_id)
    return None if node is None or own is None else node == own


@lru_cache(maxsize=256)
def place_in(nodes: str, hostname: str) -> int | None:
    """The number of a node in Slurm's list of a job's nodes; None where it is not in it."""
    try:
        names = [name.partition(".")[0] for name in expand_hosts(nodes)]
    except ValueError:
        return None
    short = hostname.partition(".")[0]
    return names.index(short) if names.count(short) == 1 else None


def planned_names(job_id: str, run: JobRun, plan: Plan | None, ranks: Sequence[LocalRank]) -> Iterable[tuple[str, str]]:
    """Which ranks of a job are to leave, as the rank table names them.

    Where that names ranks of this node by the order of their starts, only those whose launch is known. What was said
    before a rank was started was another process of that number, in an earlier step of the job.
    """
    leaving = {number: rank for number, rank in run.ranks().items() if is_leaving(number, rank, plan)}
    own = [rank for rank in ranks if rank.job_id == job_id]
    if any(rank.source in BY_INDEX for rank in own):
        numbers = numbers_of(run.launches() or (), own)
        return [(job_id, rank.rank) for rank in own if numbers.get(rank.order) in leaving]
    running = [rank.started for rank in own if rank.runs]
    since = min(running or [rank.started for rank in own], default=0.0)
    started = {rank.rank: rank.started for rank in sorted(own, key=lambda each: each.started)}
    return [
        (job_id, str(number))
        for number, rank in leaving.items()
        if rank.said_seconds >= started.get(str(number), since) - FILE_CLOCK_SECONDS
    ]


def numbers_of(launches: Sequence[Launch], own: Sequence[LocalRank]) -> dict[tuple[int, int], int]:
    """The run's number of each local rank, by when it was started, as far as it is known."""
    groups: defaultdict[int, list[LocalRank]] = defaultdict(list)
    for rank in sorted(own, key=lambda each: each.order):
        groups[rank.parent_pid].append(rank)
    return bind(
        launches,
        [StartedGroup(members[0].started, tuple(each.order for each in members)) for members in groups.values()],
    )


class NixlEpExporter:
    """See the package."""

    def __init__(self, config: NixlEpConfig) -> None:
        self._config = config
        self._shown = EpSnapshot()

    async def start(self, ctx: Context) -> None:
        """Take back what was read before; no file is touched yet."""
        self._ctx = ctx
        self._thread = ctx.thread("nixl_ep")
        self._reader: RunReader | None = None
        if self._config.paths:
            ctx.ranks.keep_variables(frozenset({NODES}))
            saved = ctx.state.restore(SavedRuns, ctx.log) or SavedRuns()
            self._reader = await self._thread.call(partial(RunReader, ctx, self._config.paths, saved))

    async def update(self) -> None:
        """Read on; NoData where no path is configured or none is there."""
        if self._reader is None:
            raise NoData
        views = self._ctx.ranks.snapshot()
        ranks = [
            LocalRank(
                *view.label,
                view.process.source,
                view.process.facts.parent_pid,
                (view.process.facts.key.start_ticks, view.process.facts.key.pid),
                view.process.facts.start_seconds,
                view.process.exited_at is None,
            )
            for view in views.ranks
            if view.process.facts is not None
        ]
        turn = await self._thread.call(partial(self._reader.turn, JobUsers(views), ranks, nodes_of(views)))
        self._ctx.state.publish(turn.section)
        self._ctx.exits.set_planned(frozenset(RankLabel(*name) for name in turn.planned))
        self._shown = EpSnapshot(turn.runs, turn.plans, turn.planned, self._ctx.clock.time())
        if not turn.available:
            raise NoData

    def snapshot(self) -> EpSnapshot:
        """What the last look gave."""
        return self._shown

    def families(self, snapshot: EpSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Let go of the files."""
        if self._reader is not None:
            await self._thread.call(self._reader.close)


SPEC = Spec(
    name="nixl_ep",
    config=NixlEpConfig,
    build=NixlEpExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=20_000,
    checkpoint_bytes=256 * 1024,
)
