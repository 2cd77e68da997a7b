"""A thread follows the logs of nodes and launchers and reads the plan in the same directory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import ChangedFiles, JobLines, JobTexts, PathPatterns, TextExporter, jobs_in_turns
from agent.sdk.metrics import Family, Metric, Rows
from agent.sdk.ranks import ProcessKey, RankLabel, RankSnapshot, RankView
from agent.sdk.system import expand_hosts
from exporters.nixl_ep.job_run import JobRun, SavedRuns, node_of
from exporters.nixl_ep.plan import MAX_PLAN_BYTES, Plan, read_plan
from exporters.nixl_ep.run import Launch, RankRun, is_leaving

INTERVAL_SECONDS = 1.0
MAX_JOBS = 8  # Limit of followed jobs per node
PLAN = "nixl-ep-plan.json"
NODES = "SLURM_JOB_NODELIST"
SLACK_SECONDS = 1.0  # Tolerance between the clocks of a launch's log line and of a rank's start
BY_INDEX = frozenset({"local_index", "title"})  # Rank sources that do not give the run's own rank number
FILE_CLOCK_SECONDS = 10.0  # A file server's clock gives the times of lines. It may be behind by at most this much.

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
    "logged that it leaves. The rank's exit does not alert.",
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


class NixlEpConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: logs of nodes (nixl-ep-node-N.log) and launcher output. The plan lies in the same directory."""

    paths: PathPatterns = msgspec.field(default_factory=list)


def nodes_of(views: RankSnapshot) -> dict[str, str]:
    """Return the node list (Slurm's short form) of at most MAX_JOBS jobs, from the environment of a rank."""
    followed = jobs_in_turns(views, MAX_JOBS)
    nodes = ((view.label.job_id, (view.process.facts.environment or {}).get(NODES, "")) for view in views.ranks)
    return {job_id: text for job_id, text in nodes if text and job_id in followed}


def is_own_log(node_indexes: Mapping[str, int], path: str, job_id: str) -> bool | None:
    """Return whether a log is from this node; None if that is unknown or the file is not a node's log."""
    node, own_node = node_of(path), node_indexes.get(job_id)
    return None if node is None or own_node is None else node == own_node


@lru_cache(maxsize=256)
def node_index(nodes: str, hostname: str) -> int | None:
    """Return the index of a node in Slurm's node list of a job; None if the list lacks the node."""
    try:
        names = [name.partition(".")[0] for name in expand_hosts(nodes)]
    except ValueError:
        return None
    short = hostname.partition(".")[0]
    return names.index(short) if names.count(short) == 1 else None


def planned_names(job_id: str, run: JobRun, plan: Plan | None, views: Sequence[RankView]) -> Iterable[tuple[str, str]]:
    """Return (job id, rank) of each rank with a planned end, as the rank table names it.

    If the rank table numbers ranks by start order, ranks without a known launch are omitted. A line from before a
    rank's start belongs to another process with the same number, in an earlier step of the job.
    """
    leaving = {number: rank for number, rank in run.ranks().items() if is_leaving(number, rank, plan)}
    of_job = sorted((view for view in views if view.label.job_id == job_id), key=_started)
    if any(view.process.source in BY_INDEX for view in of_job):
        numbers = numbers_of(run.launches() or (), of_job)
        return [view.label for view in of_job if numbers.get(view.process.key) in leaving]
    running = [_started(view) for view in of_job if view.process.exited_at is None]
    since = min(running or map(_started, of_job), default=0.0)
    started = {view.label.rank: _started(view) for view in of_job}
    return [
        (job_id, str(number))
        for number, rank in leaving.items()
        if rank.said_seconds >= started.get(str(number), since) - FILE_CLOCK_SECONDS
    ]


def _started(view: RankView) -> float:
    return view.process.facts.start_seconds


def numbers_of(launches: Sequence[Launch], of_job: Sequence[RankView]) -> dict[ProcessKey, int]:
    """Return the run's own rank number of each local rank with a known launch.

    The environment names only the task's rank. So the rank table numbers ranks by start order, while the run uses
    another order. Ranks with the same parent process belong to the last launch in the log that has their number of
    ranks and came after their start. ``launches``: launches on this node only, in log order.
    """
    groups: defaultdict[int, list[RankView]] = defaultdict(list)
    for view in sorted(of_job, key=lambda view: view.process.key[::-1]):  # by start, then pid
        groups[view.process.facts.parent_pid].append(view)
    by_process: dict[ProcessKey, int] = {}
    free = list(launches)
    for group in sorted(groups.values(), key=lambda views: _started(views[0]), reverse=True):
        since, numbers = _started(group[0]) - SLACK_SECONDS, list(range(len(group)))
        fitting = [launch for launch in free if launch.seconds >= since and sorted(launch.ranks) == numbers]
        if fitting:
            free = free[: free.index(fitting[-1])]
            by_process.update((view.process.key, fitting[-1].ranks[number]) for number, view in enumerate(group))
    return by_process


class NixlEpExporter(TextExporter[SavedRuns, EpSnapshot]):
    """Exports NIXL-EP runs and the ranks that leave as planned."""

    def __init__(self, config: NixlEpConfig) -> None:
        super().__init__("nixl_ep", config.paths, SavedRuns, EpSnapshot(), render, MAX_JOBS)
        self._plans: dict[str, Plan] = {}
        self._full: frozenset[str] = frozenset()
        self._planned: frozenset[tuple[str, str]] = frozenset()

    async def start(self, ctx: Context) -> None:
        """Restore the checkpoint. This opens no file."""
        self._files = ChangedFiles(MAX_PLAN_BYTES, read_plan, ctx.hangs)
        ctx.ranks.keep_variables(frozenset({NODES}))
        await super().start(ctx)

    async def update(self) -> None:
        """Read new lines. Raise NoData if no path is configured or no file exists."""
        available = await self.follow(self.ctx.ranks.snapshot())
        self.ctx.exits.set_planned(frozenset(RankLabel(*name) for name in self._planned))
        self.shown = EpSnapshot(self.section, dict(self._plans), self._planned, self.ctx.clock.time())
        if not available:
            raise NoData

    def turn(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        """Read plans and new lines of logs, and compute which ranks leave as planned."""
        nodes = {job_id: node_index(text, hostname=self.ctx.hostname) for job_id, text in nodes_of(ranks).items()}
        texts.claim = partial(is_own_log, {job_id: index for job_id, index in nodes.items() if index is not None})
        lines = texts.turn(ranks)
        self.ctx.failures.attempt("plans of NIXL-EP", partial(self._read_plans, texts, ranks))
        self._full = frozenset(job_id for job_id, run in self.saved.runs.items() if run.is_full())
        self.keep(lines, ranks)
        self._planned = frozenset(
            name
            for job_id, run in self.saved.runs.items()
            for name in planned_names(job_id, run, self._plans.get(job_id), ranks.ranks)
        )

    def take(self, lines: JobLines) -> None:
        """Add new lines to their job's run. Jobs beyond MAX_JOBS are ignored."""
        runs = self.saved.runs
        if lines.job_id not in self._full and (lines.job_id in runs or len(runs) < MAX_JOBS):
            path = os.fsencode(lines.path).decode(errors="replace")  # the checkpoint needs UTF-8
            runs.setdefault(lines.job_id, JobRun()).take(lines._replace(path=path))

    def known_jobs(self) -> frozenset[str]:
        """Return the ids of jobs with a run."""
        return frozenset(self.saved.runs)

    def forget(self, here: frozenset[str]) -> None:
        """Forget the jobs that are not in ``here``."""
        for known in (self.saved.runs, self._plans):
            for job_id in known.keys() - here:
                del known[job_id]

    def _read_plans(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        """Read the plan beside each job's newest log. The plan must have the same owner as that log."""
        newest = dict(sorted(texts.files(ranks), key=lambda job_and_log: job_and_log[1].written_ns))
        paths = {job_id: os.path.join(os.path.dirname(file.path), PLAN) for job_id, file in newest.items()}
        self._files.look({paths[job_id]: file.share.uid for job_id, file in newest.items()})
        plans = {job_id: self._files.contents.get(path) for job_id, path in paths.items()}
        self._plans |= {job_id: plan for job_id, plan in plans.items() if plan is not None}  # a plan outlives its file


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
