"""The exporter: asks the helper for cycle files and follows what launchers print in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import JobTexts, PathPatterns, SavedPositions
from agent.sdk.helper import HelperSpec
from agent.sdk.metrics import Metric
from agent.sdk.ranks import JobUsers, RankSnapshot
from exporters.nvrx.cycle import Cycle
from exporters.nvrx.events import JobEvents
from exporters.nvrx.families import FAMILIES, NvrxSnapshot, render
from exporters.nvrx.reading import CycleRequest, FoundCycle

INTERVAL_SECONDS = 1.0
CYCLES_SECONDS = 5.0
"""How often cycle files are looked at."""
HELPER_SECONDS = 5.0
"""The helper waits for no file system; it answers within its grace."""
MAX_JOBS = 64
"""Of a node, that are followed."""
LINK = "NVRX_CURRENT_CYCLE_INFO"
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
        job.take(text)


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
        ctx.ranks.keep_variables(frozenset({LINK}))
        if self._config.paths:
            saved = ctx.state.restore(SavedLines, ctx.log) or SavedLines()
            self._reader = await self._thread.call(partial(LauncherLines, ctx, self._config.paths, saved))

    async def update(self) -> None:
        """Look once; NoData where no rank names a cycle file and no configured path is there."""
        is_due = self._ctx.clock.monotonic() - self._cycles_at >= CYCLES_SECONDS
        if self._reader is not None or is_due:
            await self._look(self._ctx.ranks.snapshot(), is_due=is_due)
        if not (self._cycles or self._available):
            raise NoData

    async def _look(self, views: RankSnapshot, *, is_due: bool) -> None:
        users = JobUsers(views)
        if self._reader is not None:
            progress: dict[str, tuple[float, ...]] = {}
            for view in views.ranks:
                if (seconds := view.process.progress_seconds) is not None:
                    progress[view.label.job_id] = (*progress.get(view.label.job_id, ()), seconds)
            self._available, events, section = await self._thread.call(partial(self._reader.turn, users, progress))
            self._ctx.state.publish(section)
            self._shown = msgspec.structs.replace(self._shown, events=events)
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
