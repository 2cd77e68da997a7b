"""Lets a helper read the stacks of silent jobs' ranks, one rank after the other."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from agent.sdk.evidence import Offered, Wanted, summary as summaries
from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.files import in_turns
from agent.sdk.helper import HelperError, HelperSpec
from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import Pauses, ProcessKey, RankLabel, RankView
from exporters.stacks.dump import RESULTS, StackAnswer, StackRequest, take_stack
from exporters.stacks.frames import Stack, others

# fmt: off
STACK = Family("rankwatch_rank_stack_info", "gauge",
    "The rank's Python calls while its job completes no operation: the five innermost calls of its main thread and a "
    "hash of them; always 1. The names come from the user's program.",
    ("job_id", "rank", "stack"), "while its job completes nothing 1 per rank, at most 32 per job", "max")
DUMPS = Family("rankwatch_rank_stack_dumps_total", "counter",
    "Reads of ranks' Python stacks, by result: read, gone, uninterruptible (not read: a thread waits in the "
    "kernel), not_permitted, no_python, too_large, failed, unanswered.",
    ("result",), "1 per result", "sum")
# fmt: on
FAMILIES = (STACK, DUMPS)


class StacksSnapshot(NamedTuple):
    """The stacks to show by rank, and the reads by result."""

    stacks: Mapping[RankLabel, str]
    counts: Mapping[str, int]


INTERVAL_SECONDS = 5.0
HELPER_SECONDS = 10.0  # Timeout of a helper call; py-spy gets 5 s of this time
LOOK_SECONDS = 2.0  # After this time an update starts no further read
PART_SECONDS = 8.0  # After this time a bundle's part starts no further read; the default limit of a part is 20 s
AGAIN_SECONDS = 600.0  # Pause between two reads of a rank; after an unanswered read no rank is read for this long
MAX_RANKS_PER_JOB = 32
MAX_RANKS = 128  # Limit of kept stacks, over all jobs of the node
WAITING = 2
"""Number of new stacks in a bundle besides those of its suspects, for comparison."""
UNANSWERED = "unanswered"
TAKER = HelperSpec(
    "stacks", f"{take_stack.__module__}:{take_stack.__name__}", StackAnswer, memory_bytes=256 * 1024 * 1024
)


class StacksConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``py_spy``: the program, which the site installs; it must belong to root and be writable only by root.

    ``silence_seconds``: a rank that completed operations is silent if its present pause is longer than this time and
    than all its earlier pauses. Then the stacks of its job are read.
    """

    enabled: bool | Literal["auto"] = False
    py_spy: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)] = "/usr/local/bin/py-spy"
    silence_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 180.0


class _Held(NamedTuple):
    """A rank's stack; ``progress_seconds``: time of the rank's last completed operation at the read."""

    key: ProcessKey
    stack: Stack
    progress_seconds: float | None


class StacksExporter:
    """Exports the stacks of silent jobs' ranks."""

    def __init__(self, config: StacksConfig) -> None:
        self._config = config
        self._pauses: dict[tuple[RankLabel, ProcessKey], Pauses] = {}
        self._looked_at: dict[ProcessKey, float] = {}
        self._held: dict[RankLabel, _Held] = {}
        self._silent: frozenset[str] = frozenset()
        self._rests_until = float("-inf")
        self._counts: Counter[str] = Counter(dict.fromkeys((*RESULTS, UNANSWERED), 0))

    async def start(self, ctx: Context) -> None:
        """Offer the stacks to bundles of evidence."""
        self._ctx = ctx
        self._thread = ctx.thread("stacks")
        self._helper = ctx.helper(TAKER)
        ctx.evidence.offer(self._part)

    async def update(self) -> None:
        """Read the ranks of silent jobs; NoData without /proc, or without py-spy unless ``enabled`` is true."""
        if not await self._thread.call(self._is_there):
            raise NoData
        views = self._ctx.ranks.snapshot().ranks
        self._silent = self._silent_jobs(views)
        self._forget(views)
        until = self._ctx.clock.monotonic() + LOOK_SECONDS
        for view in self._due(views):
            if self._ctx.clock.monotonic() >= until:
                break
            await self._look_at(view)

    def _is_there(self) -> bool:
        """Return if /proc and py-spy exist; raises OSError if py-spy is missing but required, or unsafe. Blocking."""
        if not self._ctx.roots.proc.is_dir():
            return False
        try:
            status = os.stat(self._config.py_spy)
        except FileNotFoundError:
            if self._config.enabled is True:
                raise
            return False
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise PermissionError(f"{self._config.py_spy} may be changed by users other than root")
        return True

    def _silent_jobs(self, views: Iterable[RankView]) -> frozenset[str]:
        """Return jobs with a silent rank on this node, or whose stall in RAS's reports exceeds ``silence_seconds``."""
        now = self._ctx.clock.time()
        known: dict[tuple[RankLabel, ProcessKey], Pauses] = {}
        silent = set()
        for view in _running(views):
            key = (view.label, view.process.key)
            pauses = known[key] = self._pauses.get(key) or Pauses()
            if pauses.silent_since(view.process.progress_seconds, now, self._config.silence_seconds) is not None:
                silent.add(view.label.job_id)
        self._pauses = known
        stalls = self._ctx.evidence.stalls()
        silent |= {job_id for job_id, seconds in stalls.items() if seconds > self._config.silence_seconds}
        return frozenset(silent)

    def _forget(self, views: Iterable[RankView]) -> None:
        """Drop the stacks of ranks that ended, restarted or made progress, and old stacks of jobs that continue."""
        running = {view.label: view for view in _running(views)}
        now, live = self._ctx.clock.monotonic(), {view.process.key for view in running.values()}
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in live and now - at < AGAIN_SECONDS}
        for label, held in list(self._held.items()):
            view = running.get(label)
            is_there = view is not None and (view.process.key, view.process.progress_seconds) == (
                held.key,
                held.progress_seconds,
            )
            if not is_there or (held.key not in self._looked_at and label.job_id not in self._silent):
                self._drop(label)

    def _due(self, views: Iterable[RankView]) -> list[RankView]:
        """Return the ranks to read now, at most MAX_RANKS_PER_JOB of a job, with the users in turn."""
        of_job: Counter[str] = Counter()
        due = []
        for view in _running(views):
            of_job[view.label.job_id] += view.label.job_id in self._silent
            if 0 < of_job[view.label.job_id] <= MAX_RANKS_PER_JOB and self._may_look_at(view):
                due.append(view)
        return in_turns(due, _user)

    def _may_look_at(self, view: RankView) -> bool:
        if self._ctx.clock.monotonic() < self._rests_until or view.process.state == "D":
            return False
        return view.process.key not in self._looked_at

    async def _look_at(self, view: RankView) -> Stack | None:
        """Let the helper read one rank's stack, keep it until the rank makes progress, and return it."""
        if not self._may_look_at(view):  # a bundle and an update can run at the same time
            return None
        key = view.process.key
        self._looked_at[key] = self._ctx.clock.monotonic()
        request = StackRequest(self._config.py_spy, str(self._ctx.roots.proc), key.pid, key.start_ticks)
        try:
            answer = await self._helper.call(request, HELPER_SECONDS)
        except HelperError:
            self._counts[UNANSWERED] += 1
            self._rests_until = self._ctx.clock.monotonic() + AGAIN_SECONDS
            raise
        self._counts[answer.result] += 1
        if answer.error:
            self._ctx.log.warning(
                "a rank's stack could not be read",
                job_id=view.label.job_id,
                rank=view.label.rank,
                user=view.process.user,
                error=answer.error,
            )
        if answer.stack is not None:
            self._hold(view, answer.stack)
        return answer.stack

    def _hold(self, view: RankView, stack: Stack) -> None:
        self._drop(view.label)
        group = (_user(view), view.label.job_id)
        if len(self._held) < MAX_RANKS and self._ctx.admit.admit(("stacks", view.label), 1, group=group):
            self._held[view.label] = _Held(view.process.key, stack, view.process.progress_seconds)

    def _drop(self, label: RankLabel) -> None:
        if self._held.pop(label, None) is not None:
            self._ctx.admit.release(("stacks", label))

    async def _part(self, wanted: Wanted) -> Offered:
        """Return a job's kept stacks, and new stacks of suspects and WAITING other ranks; without suspects, of all
        ranks."""
        views = [view for view in _running(self._ctx.ranks.snapshot().ranks) if view.label.job_id == wanted.job_id]
        stacks = {view.label.rank: held.stack for view in views if (held := self._held.get(view.label)) is not None}
        rest = [view for view in views if view.label.rank not in stacks and self._may_look_at(view)]
        rest.sort(key=lambda view: view.label.rank not in wanted.suspects)
        suspects = sum(view.label.rank in wanted.suspects for view in rest)
        most = suspects + WAITING if wanted.suspects else MAX_RANKS_PER_JOB
        until = self._ctx.clock.monotonic() + PART_SECONDS
        for view in rest[:most] if await self._thread.call(self._is_there) else ():
            if self._ctx.clock.monotonic() >= until:
                break
            try:
                stack = await self._look_at(view)
            except HelperError:
                break  # the error is counted, and earlier stacks are kept
            if stack is not None:
                stacks[view.label.rank] = stack
        return offered(stacks)

    def snapshot(self) -> StacksSnapshot:
        """Return the stacks of silent jobs, and the reads by result."""
        shown = {label: held.stack.label for label, held in self._held.items() if label.job_id in self._silent}
        return StacksSnapshot(shown, dict(self._counts))

    def families(self, snapshot: StacksSnapshot) -> Iterable[Metric]:
        """Return the metric families of a snapshot. Pure."""
        stacks = STACK.rows()
        for label, stack in snapshot.stacks.items():
            stacks.add((label.job_id, label.rank, stack), 1)
        yield from (stacks.metric, DUMPS.by_label(snapshot.counts))

    async def drain(self) -> None:
        """Do nothing: the thread and the helper end with the lease."""


def offered(stacks: Mapping[str, Stack]) -> Offered:
    """Return a bundle's part with these stacks (by rank)."""
    elsewhere = others({rank: stack.label for rank, stack in stacks.items()})
    words: Sequence[summaries.Word] = [
        summaries.Word(
            rank, "stacks", f"its Python code is in {stack.label}"[: summaries.MAX_TEXT], blames=rank in elsewhere
        )
        for rank, stack in stacks.items()
    ]
    files = {f"rank-{rank}.txt": stack.text.encode() for rank, stack in stacks.items()}
    return Offered(files, words, why="" if files else "py-spy is missing, or could read no rank")


def _running(views: Iterable[RankView]) -> list[RankView]:
    return [view for view in views if view.process.exited_at is None]


def _user(view: RankView) -> int:
    return -1 if view.uid is None else view.uid


SPEC = Spec(
    name="stacks",
    config=StacksConfig,
    build=StacksExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=30.0,
    families=FAMILIES,
    series_cap=200,
)
