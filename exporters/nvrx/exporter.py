"""The exporter: asks the helper for cycle files; follows lines, and looks for launchers above ranks, in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import JobTexts, PathPatterns, SavedPositions
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import Metric
from agent.sdk.ranks import JobUsers, RankSnapshot, RankView
from agent.sdk.system import ProcFS
from exporters.nvrx.cycle import Cycle
from exporters.nvrx.events import JobEvents
from exporters.nvrx.families import FAMILIES, NvrxSnapshot, render
from exporters.nvrx.launchers import Launchers, StartedRank
from exporters.nvrx.lines import read_line
from exporters.nvrx.notices import read_notice
from exporters.nvrx.options import MAX_DIGITS
from exporters.nvrx.reading import CycleRequest, FoundCycle

INTERVAL_SECONDS = 1.0
CYCLES_SECONDS = 5.0
"""How often cycle files are looked at."""
HELPER_SECONDS = 5.0
"""The helper waits for no file system; it answers within its grace."""
MAX_JOBS = 64
"""Of a node, that are followed."""
MAX_LOCAL_SIZE = 1024
LINK = "NVRX_CURRENT_CYCLE_INFO"
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
MARKS = frozenset({LINK, "FT_LAUNCHER_IPC_SOCKET", "FT_RANK_MONITOR_IPC_SOCKET"})
"""Of these each rank that NVRx starts has one."""
GROUP_RANK = "GROUP_RANK"
ASKED_NODES = "PET_NNODES"
MAX_GROUP_RANKS = 16
"""Launchers of one job on a node."""
READER = HelperSpec(
    "nvrx", "exporters.nvrx.reading:read_cycles", list[list[FoundCycle] | None], memory_bytes=64 * 1024 * 1024
)

_Directory = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=255)]
Progress = Mapping[str, tuple[float, ...]]
"""By job, when each of its ranks here last completed an operation, in seconds since the epoch."""


class NvrxConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: what launchers and monitors print; ``cycle_directories``: cycle files that no rank here names.

    Those that ranks name by their environment (NVRX_CURRENT_CYCLE_INFO) are read unless the exporter is off.
    """

    paths: PathPatterns = msgspec.field(default_factory=list)
    cycle_directories: Annotated[list[_Directory], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)


class SavedLines(msgspec.Struct):
    """What the checkpoint keeps: where reading stands, and what the lines so far add up to, by job."""

    positions: SavedPositions = []
    jobs: dict[Annotated[str, msgspec.Meta(max_length=256)], JobEvents] = {}


class LauncherLines:
    """The lines, by job. Belongs to the exporter's thread."""

    def __init__(self, ctx: Context, paths: list[str], saved: SavedLines) -> None:
        self._texts = JobTexts(ctx, paths, saved.positions)
        self._guard = ctx.guard
        self._once = ctx.once
        self._jobs = saved.jobs

    def turn(self, users: JobUsers, progress: Progress) -> tuple[bool, bytes, bytes]:
        """Read on; whether there is a source, the jobs' events, and the section of the checkpoint."""
        for found in self._texts.turn(users):
            if found.job_id in self._jobs or len(self._jobs) < MAX_JOBS:
                job = self._jobs.setdefault(found.job_id, JobEvents())
                self._guard.attempt("lines of NVRx", partial(_take, job, found.lines), path=found.path)
        for job_id, seconds in progress.items():
            if job_id in self._jobs:
                for each in sorted(seconds):
                    self._jobs[job_id].progress(each)
        if not self._once:
            here = users.jobs()
            self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in here}
        events = msgspec.msgpack.encode(self._jobs)
        saved = SavedLines(self._texts.positions(), self._jobs)
        return self._texts.available, events, msgspec.msgpack.encode(saved)

    def close(self) -> None:
        """Let go of all files."""
        self._texts.close()


def _take(job: JobEvents, lines: list[str]) -> None:
    for text in lines:
        line = read_line(text)
        if line is not None:
            job.take(line)
        if notice := read_notice(text):
            job.note(notice)


class NvrxExporter:
    """See the package."""

    def __init__(self, config: NvrxConfig) -> None:
        self._config = config
        self._reader: LauncherLines | None = None
        self._cycles: dict[str, Cycle] = {}
        self._cycles_at = float("-inf")
        self._available = False
        self._shown = NvrxSnapshot()

    async def start(self, ctx: Context) -> None:
        """Prepare; no file is touched yet but where lines are to be followed."""
        self._ctx = ctx
        self._thread = ctx.thread("nvrx")
        self._helper = ctx.helper(READER)
        ctx.ranks.keep_variables(MARKS | {LOCAL_SIZE, GROUP_RANK, ASKED_NODES})
        self._launchers = Launchers(ProcFS(ctx.roots.proc), ctx.guard)
        if self._config.paths:
            saved = ctx.state.restore(SavedLines, ctx.log) or SavedLines()
            self._reader = await self._thread.call(partial(LauncherLines, ctx, self._config.paths, saved))

    async def update(self) -> None:
        """Look once; NoData where no rank has a launcher or names a cycle file, and no configured path is there."""
        is_due = self._ctx.clock.monotonic() - self._cycles_at >= CYCLES_SECONDS
        if self._reader is not None or is_due:
            await self._look(self._ctx.ranks.snapshot(), is_due=is_due)
        if not (self._cycles or self._available or self._shown.launchers or self._shown.group_ranks):
            raise NoData

    async def _look(self, views: RankSnapshot, *, is_due: bool) -> None:
        users = JobUsers(views)
        progress: dict[str, tuple[float, ...]] = {}
        running, sizes = set(), {}
        for view in views.ranks:
            process, job_id = view.process, view.label.job_id
            if process.exited_at is None:
                running.add(job_id)
                size = local_size(process.facts.environment if process.facts is not None else None)
                if size:
                    sizes[job_id] = size
            if process.progress_seconds is not None:
                progress[job_id] = (*progress.get(job_id, ()), process.progress_seconds)
        events = self._shown.events
        if self._reader is not None:
            self._available, events, section = await self._thread.call(partial(self._reader.turn, users, progress))
            self._ctx.state.publish(section)
        launchers, numbers = self._shown.launchers, self._shown.group_ranks
        if is_due:
            numbers = group_ranks(views.ranks)
            launchers = await self._thread.call(partial(self._launchers.look, started_ranks(views.ranks)))
        self._shown = NvrxSnapshot(self._shown.cycles, frozenset(running), sizes, events, launchers, numbers)
        if is_due:  # last: a helper that fails costs no lines
            self._cycles_at = self._ctx.clock.monotonic()
            await self._look_at_cycles(users, named_by(views, str(self._ctx.roots.proc)))
            self._shown = msgspec.structs.replace(self._shown, cycles=dict(self._cycles))

    async def _look_at_cycles(self, users: JobUsers, named: Mapping[str, CycleRequest]) -> None:
        """Ask for the cycle files that ranks name and for a site's; what is half written leaves the last good one."""
        here = users.jobs()
        if not self._ctx.once:
            self._cycles = {job_id: cycle for job_id, cycle in self._cycles.items() if job_id in here}
        requests = [*named.values(), *(CycleRequest(path) for path in self._config.cycle_directories)]
        if not requests:
            return
        answers = await self._helper.call(requests, HELPER_SECONDS)
        for job_id, answer in zip(named, answers, strict=False):
            for found in answer or ():
                self._learn(job_id, found.cycle)
        for answer in answers[len(named) :]:
            for found in answer or ():
                job_id = found.cycle.job_id if self._ctx.once else users.job_of(found.uid, found.cycle.job_id)
                if job_id and job_id not in named:
                    self._learn(job_id, found.cycle)

    def _learn(self, job_id: str, cycle: Cycle) -> None:
        known = self._cycles.get(job_id)
        if (known is None and len(self._cycles) < MAX_JOBS) or (known is not None and cycle.order >= known.order):
            self._cycles[job_id] = cycle

    def snapshot(self) -> NvrxSnapshot:
        """What the last look gave."""
        return self._shown

    def families(self, snapshot: NvrxSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Let go of the files."""
        if self._reader is not None:
            await self._thread.call(self._reader.close)


def named_by(views: RankSnapshot, proc_root: str) -> dict[str, CycleRequest]:
    """By job, the request for the file that its live ranks name, MAX_JOBS at most."""
    found: dict[str, CycleRequest] = {}
    for view in views.ranks:
        facts, job_id = view.process.facts, view.label.job_id
        if facts is None or facts.uid is None or view.process.exited_at is not None or job_id in found:
            continue
        path = (facts.environment or {}).get(LINK, "")
        if path.startswith("/") and len(found) < MAX_JOBS:
            found[job_id] = CycleRequest(path, proc_root, facts.key.pid, facts.uid)
    return found


def started_ranks(views: Iterable[RankView]) -> dict[str, StartedRank]:
    """By job, the live rank of NVRx's that was found first; MAX_JOBS at most."""
    found: dict[str, StartedRank] = {}
    for view in sorted(views, key=lambda view: view.process.found_at):
        facts, job_id, environment = view.process.facts, view.label.job_id, _of_nvrx(view)
        if (
            facts is not None
            and facts.uid is not None
            and environment
            and job_id not in found
            and len(found) < MAX_JOBS
        ):
            found[job_id] = StartedRank(facts.key, facts.uid, environment.get(ASKED_NODES, ""))
    return found


def group_ranks(views: Iterable[RankView]) -> dict[str, frozenset[str]]:
    """By job, the numbers that NVRx's launchers gave this node, of live ranks; MAX_GROUP_RANKS at most."""
    found: dict[str, frozenset[str]] = {}
    for view in views:
        text, numbers = _of_nvrx(view).get(GROUP_RANK, ""), found.get(view.label.job_id, frozenset())
        is_number = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
        if is_number and len(numbers) < MAX_GROUP_RANKS:
            found[view.label.job_id] = numbers | {str(int(text))}
    return found


def _of_nvrx(view: RankView) -> Mapping[str, str]:
    """The environment of a live rank that NVRx started; empty for all others."""
    facts = view.process.facts
    environment = {} if facts is None or view.process.exited_at is not None else facts.environment or {}
    return environment if MARKS & environment.keys() else {}


def local_size(environment: Mapping[str, str] | None) -> int:
    """How many ranks a node has, by a rank's environment; 0 where that is not known."""
    text = (environment or {}).get(LOCAL_SIZE, "")
    size = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
    return size if size <= MAX_LOCAL_SIZE else 0


SPEC = Spec(
    name="nvrx",
    config=NvrxConfig,
    build=NvrxExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=10_000,
    checkpoint_bytes=256 * 1024,
)
