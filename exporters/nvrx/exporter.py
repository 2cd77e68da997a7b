"""A helper process reads cycle files; a thread follows launcher output and reads launcher options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import JobLines, JobTexts, PathPatterns, TextExporter, jobs_in_turns
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import FairBudget, Family, Group, Metric
from agent.sdk.ranks import HOSTNAME, ProcessFacts, RankSnapshot, local_ranks
from agent.sdk.system import ProcFS
from exporters.nvrx.events import JobEvents, SavedLines
from exporters.nvrx.launchers import JobLauncher, launcher_above
from exporters.nvrx.reading import Cycle, CycleRequest, OwnedCycle

INTERVAL_SECONDS = 1.0
CYCLES_SECONDS = 5.0  # Interval between reads of cycle files and launchers
STALE_SECONDS = 60.0  # A cycle is no longer shown if its file could not be read for this long
HELPER_SECONDS = 5.0
"""Timeout of a helper call. The helper does not wait for slow file systems and answers earlier than this."""
MAX_JOBS = 64  # Limit of followed jobs per node
MAX_ROWS = 5_000  # Limit of series by rank from log lines, with equal shares for all owners and for their jobs
LINK = "NVRX_CURRENT_CYCLE_INFO"  # The variable in a rank's environment that has the path of the cycle file
MARKS = frozenset({LINK, "FT_LAUNCHER_IPC_SOCKET", "FT_RANK_MONITOR_IPC_SOCKET"})
"""NVRx sets at least one of these variables in the environment of each rank that it starts."""
READER = HelperSpec(
    "nvrx", "exporters.nvrx.reading:read_cycles", list[list[OwnedCycle] | None], memory_bytes=64 * 1024 * 1024
)

_Directory = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=255)]

_JOB = ("job_id",)
_EACH = "1 per job under NVRx"

# fmt: off
CYCLE = Family(
    "rankwatch_nvrx_cycle", "gauge",
    "Current or last restart cycle of the job's launchers, counted from 0.",
    _JOB, _EACH, "max")
NODES = Family(
    "rankwatch_nvrx_nodes", "gauge",
    "Nodes of the current restart cycle: active nodes, and standby nodes, which have no ranks and can replace a node.",
    ("job_id", "role"), "2 per job under NVRx", "max")
EVENTS = Family(
    "rankwatch_nvrx_events_total", "counter",
    "Events that the job's launchers and their health checks logged: steps of a restart, decisions and defects. Every "
    "launcher logs failure_detected, even for a failure on another node.",
    ("job_id", "event"), "1 per job and event seen, at most 30", "max")
TIMEOUTS = Family(
    "rankwatch_nvrx_heartbeat_timeouts_total", "counter",
    "Ranks that NVRx's rank monitor killed after a timeout. kind: the monitor missed the initial or a subsequent "
    "heartbeat, the end of a section (section) or the start of the next one (out_of_section). NVRx sends the SIGKILL.",
    ("job_id", "rank", "kind"), "1 per rank and kind seen, at most 1,024 per job", "max")
RECOVERY = Family(
    "rankwatch_recovery_seconds", "gauge",
    "Duration of the job's last restart. It begins at the first failure_detected of any node. until names its end: "
    "workers_started (all workers were started), or progress (a rank on this node completed an operation; absent "
    "without NCCL records).",
    ("job_id", "until"), "2 per job that was restarted", "max")
INTERRUPTIONS = Family(
    "rankwatch_nvrx_interruptions_total", "counter",
    "Interruptions of ranks that restart within their processes, by reporting rank. kind, the cause: exception, "
    "base_exception (such as an exit), soft_timeout, hard_timeout, terminated, unresponsive or other.",
    ("job_id", "rank", "kind"), "1 per rank and kind seen, at most 1,024 per job", "max")
SCORE = Family(
    "rankwatch_nvrx_gpu_score", "gauge",
    "GPU speed of the rank in NVRx's last straggler report; 1 is the best. A report lists the best and worst ranks.",
    ("job_id", "rank", "kind"), "up to 128 per job with straggler reports", "max")
LAUNCHER = Family(
    "rankwatch_nvrx_launcher_info", "gauge",
    "Launcher of the job's ranks on this node (ft_launcher or torchrun) and its command line options; always 1. "
    "segment: number of nodes that must share an NVLink domain. A label is empty if the command line lacks the option.",
    ("job_id", *JobLauncher._fields), _EACH, "max")
# fmt: on
FAMILIES = (LAUNCHER, CYCLE, NODES, EVENTS, TIMEOUTS, RECOVERY, INTERRUPTIONS, SCORE)


class NvrxSnapshot(msgspec.Struct, frozen=True):
    """The data of one render. ``lines``: SavedLines, encoded."""

    cycles: Mapping[str, Cycle] = {}
    lines: bytes = b"\x80"
    launchers: Mapping[str, JobLauncher] = {}


_DECODER = msgspec.msgpack.Decoder(SavedLines)


def render(snapshot: NvrxSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    for job_id, launcher in sorted(snapshot.launchers.items()):
        rows[LAUNCHER].add((job_id, *launcher), 1.0)
    for job_id, cycle in sorted(snapshot.cycles.items()):
        rows[CYCLE].add((job_id,), cycle.cycle)
        rows[NODES].add((job_id, "active"), cycle.active)
        rows[NODES].add((job_id, "standby"), cycle.standby)
    for job_id, job in sorted(_DECODER.decode(snapshot.lines).jobs.items()):
        for family, values in ((EVENTS, job.events), (RECOVERY, job.recovery_seconds())):
            for name, value in values.items():
                rows[family].add((job_id, name), value)
        for family, by_rank in ((TIMEOUTS, job.timeouts), (INTERRUPTIONS, job.interruptions), (SCORE, job.scores)):
            for (rank, kind), value in by_rank.items():
                rows[family].add((job_id, rank, kind), value)
    return [row.metric for row in rows.values()]


class NvrxConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: output of launchers and monitors; ``cycle_directories``: more directories with cycle files.

    A rank's environment (NVRX_CURRENT_CYCLE_INFO) names its job's cycle file. This file needs no configuration.
    """

    paths: PathPatterns = msgspec.field(default_factory=list)
    cycle_directories: Annotated[list[_Directory], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)


class NvrxExporter(TextExporter[SavedLines, NvrxSnapshot]):
    """Reads NVRx's cycle files, launcher output and launcher options, and exports them."""

    def __init__(self, config: NvrxConfig) -> None:
        super().__init__("nvrx", config.paths, SavedLines, NvrxSnapshot(), render, MAX_JOBS)
        self._directories = config.cycle_directories
        self._cycles: dict[str, Cycle] = {}
        self._read_at: dict[str, float] = {}  # Monotonic time of the last read, by job
        self._cycles_at = float("-inf")
        self._ranks = RankSnapshot()
        self._rows = FairBudget(MAX_ROWS)
        self._groups: dict[str, Group] = {}

    async def start(self, ctx: Context) -> None:
        """Prepare the helper and the thread. This opens no file."""
        self._helper = ctx.helper(READER)
        ctx.ranks.keep_variables(MARKS | {HOSTNAME})
        await super().start(ctx)

    async def update(self) -> None:
        """Read all sources once. Raise NoData if NVRx started no rank on this node and no configured path exists."""
        is_due = self.ctx.clock.monotonic() - self._cycles_at >= CYCLES_SECONDS
        available = False
        if self.texts is not None or is_due:
            ranks = self.ctx.ranks.snapshot()
            available = await self.follow(ranks)
            self.shown = msgspec.structs.replace(self.shown, lines=self.section)
        if is_due:  # last, so that a failing helper loses no lines
            self._cycles_at = self.ctx.clock.monotonic()
            launchers = await self.thread.call(partial(self._look_at_launchers, ranks))
            self.shown = msgspec.structs.replace(self.shown, launchers=launchers)
            try:
                await self._look_at_cycles(ranks, named_by(ranks, str(self.ctx.roots.proc)))
            finally:
                self._forget_unread_cycles()
                self.shown = msgspec.structs.replace(self.shown, cycles=dict(self._cycles))
        if not (self._cycles or self.shown.launchers or available):
            raise NoData

    def turn(self, texts: JobTexts, ranks: RankSnapshot) -> None:
        """Read new lines and record the progress of ranks."""
        self._ranks, self._rows = ranks, FairBudget(MAX_ROWS)
        self._groups = {view.label.job_id: (view.process.facts.owner.key, view.label.job_id) for view in ranks.ranks}
        for job_id, job in self.saved.jobs.items():
            self._rows.keep(self._groups.get(job_id, ("", job_id)), job.rows())
        super().turn(texts, ranks)
        progress = [(view.process.progress_seconds, view.label.job_id) for view in ranks.ranks]
        for seconds, job_id in sorted((seconds, job_id) for seconds, job_id in progress if seconds is not None):
            if job_id in self.saved.jobs:
                self.saved.jobs[job_id].progress(seconds)

    def take(self, lines: JobLines) -> None:
        """Count new lines of a job. Jobs beyond MAX_JOBS are ignored."""
        if lines.job_id in self.saved.jobs or len(self.saved.jobs) < MAX_JOBS:
            job = self.saved.jobs.setdefault(lines.job_id, JobEvents())
            views = [view for view in self._ranks.ranks if view.label.job_id == lines.job_id]
            names = self._ranks.hostnames_of({view.process.facts.uid for view in views})
            local = sorted(local_ranks(views, names).items())  # keys with a host name come last and replace the rest
            ranks = {(host, number): rank for (name, number), rank in local for host in ({name} if name else names)}
            admit = partial(self._rows.take, self._groups.get(lines.job_id, ("", lines.job_id)))
            for text in lines.lines:
                job.take(text, ranks, admit)

    def known_jobs(self) -> frozenset[str]:
        """Return the ids of jobs with counts."""
        return frozenset(self.saved.jobs)

    def forget(self, here: frozenset[str]) -> None:
        """Forget the jobs that are not in ``here``."""
        self.saved.jobs = {job_id: job for job_id, job in self.saved.jobs.items() if job_id in here}

    def _look_at_launchers(self, views: RankSnapshot) -> dict[str, JobLauncher]:
        """Return for each job the launcher above the first live rank that NVRx started on this node."""
        proc, jobs = ProcFS(self.ctx.roots.proc), dict[str, JobLauncher | None]()
        for job_id, uid, facts in live_ranks(views):
            if MARKS & (facts.environment or {}).keys() and job_id not in jobs:
                look = partial(launcher_above, proc, facts.key, uid)
                jobs[job_id] = self.ctx.failures.attempt("a launcher", look, job_id=job_id)
        return {job_id: launcher for job_id, launcher in jobs.items() if launcher is not None}

    def _forget_unread_cycles(self) -> None:
        now = self.ctx.clock.monotonic()
        fresh = {job_id for job_id, read_at in self._read_at.items() if now - read_at < STALE_SECONDS}
        self._cycles = {job_id: cycle for job_id, cycle in self._cycles.items() if job_id in fresh}
        self._read_at = {job_id: self._read_at[job_id] for job_id in self._cycles}

    async def _look_at_cycles(self, ranks: RankSnapshot, named: Mapping[str, CycleRequest]) -> None:
        """Read the cycle files that ranks' environments name, and those in the configured directories.

        If a file cannot be read, its last cycle stays.
        """
        here, now = jobs_in_turns(ranks, MAX_JOBS), self.ctx.clock.monotonic()
        if not self.ctx.once:
            self._cycles = {job_id: cycle for job_id, cycle in self._cycles.items() if job_id in here}
        ids = frozenset(job_id for view in ranks.ranks for job_id in (view.label.job_id, view.process.plain_job_id))
        directories = (CycleRequest(path, "", 0, -1 - number, ids) for number, path in enumerate(self._directories))
        requests = [*named.values(), *directories]
        if not requests:
            return
        answers = await self._helper.call(requests, HELPER_SECONDS)
        for job_id, answer in zip([*named, *([""] * len(self._directories))], answers, strict=False):
            for uid, cycle in answer or ():
                of = job_id or (cycle.job_id if self.ctx.once else ranks.job_of(uid, cycle.job_id))
                known = self._cycles.get(of)
                is_followed = of in here or (self.ctx.once and (known is not None or len(self._cycles) < MAX_JOBS))
                if of and is_followed and (job_id or of not in named):
                    self._read_at[of] = now
                    self._cycles[of] = cycle if known is None or cycle.order >= known.order else known


def named_by(views: RankSnapshot, proc_root: str) -> dict[str, CycleRequest]:
    """Return for each job the request for the cycle file that the job's live ranks name."""
    requests: dict[str, CycleRequest] = {}
    for job_id, uid, facts in live_ranks(views):
        path = (facts.environment or {}).get(LINK, "")
        if path.startswith("/") and job_id not in requests:
            requests[job_id] = CycleRequest(path, proc_root, facts.key.pid, uid)
    return requests


def live_ranks(views: RankSnapshot) -> Iterator[tuple[str, int, ProcessFacts]]:
    """Yield job, user (uid) and facts of each live rank with a known user, of at most MAX_JOBS jobs."""
    followed = jobs_in_turns(views, MAX_JOBS)
    for view in views.ranks:
        facts = view.process.facts
        if facts.uid is not None and view.process.exited_at is None and view.label.job_id in followed:
            yield view.label.job_id, facts.uid, facts


SPEC = Spec(
    name="nvrx",
    config=NvrxConfig,
    build=NvrxExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=10_000,
    checkpoint_bytes=512 * 1024,
)
