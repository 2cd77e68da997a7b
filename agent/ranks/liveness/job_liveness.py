"""Liveness facts of one job on this node. Pure."""

from collections.abc import Collection
from signal import SIGABRT, SIGKILL
from typing import Annotated, Literal

import msgspec

from agent.core.checkpoint import MAX_SECONDS, SavedSeconds
from agent.core.identity import ProcessKey
from agent.ranks.rank.exit_episodes import fatal_reason
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.process import RankProcess

ENDED_JOB_SECONDS = 900.0
"""How long a job's series stay after its last rank ended."""
EXPLAINS_SECONDS = 1800.0
"""After the end, facts that explain exits are kept this long: the job's start, the scheduler's end, and lead exits of
class ok or of an ended job. On each node, rules count an ended job's ranks until ENDED_JOB_SECONDS and three minutes
after the last exit there: until then no exit may lose its explanation."""
LEAD_SECONDS = 86_400.0
"""How long a lead exit is exported while its job can still run on other nodes."""
RETRACTED_SECONDS = 300.0
"""How long a retracted lead exit is exported as -1: Prometheus sees the -1 even if some scrapes fail."""
MAX_RETRACTED = 6
"""Limit of retracted lead exits per job and node; the oldest is dropped first."""
MAX_LEADS = 3
"""Limit of lead exits per job and node that are not retracted."""


ExitClass = Literal["oom", "crash", "fail", "torn", "killed", "left", "ok", "reboot"]
"""oom: the OOM killer. crash: SEGV, BUS, ILL, FPE, TRAP, SYS. fail: ABRT, status 1 to 127. torn: SIGKILL, if a peer on
this node fails or ends by SIGTERM within 30 s. killed: any other SIGKILL. left: SIGTERM, status 0 and every other exit.
ok: any exit of a process that is proven to have finished, that an exporter reported as planned, or that the scheduler
ended. reboot: the rank ran when the machine went down."""
Lifetime = Literal["short", "long"]


class LeadExit(msgspec.Struct, frozen=True):
    """A lead exit: an exit that can have caused other exits of the job.

    ``retracted_at``: when the exported age became -1. ``revised``: the class has changed once. ``process`` is None for
    class reboot. Times are CLOCK_BOOTTIME seconds.
    """

    rank: str
    exited_at: SavedSeconds
    reason: str
    signal: str
    code: str
    exit_class: ExitClass
    lived: Lifetime
    cause: str
    user: str
    process: ProcessKey | None = None
    revised: bool = False
    retracted_at: SavedSeconds | None = None

    def labels(self) -> tuple[str, ...]:
        """Return the labels after the job's id, in the order of ``rankwatch_exit_age_seconds``."""
        return self.rank, self.reason, self.signal, self.code, self.exit_class, self.lived, self.cause, self.user


class JobLiveness(msgspec.Struct):
    """Liveness facts of a job on this node.

    ``share``: the container, user or Kubernetes namespace; limits count all jobs of one share together. ``live``:
    number of live ranks, None if unknown. ``proven``: the scheduler or Kubernetes proves that a rank on this node
    belongs to the job. ``proves_first``: the same for rank 0. ``started_at``: when the oldest rank of the latest run
    started. ``left_at``: when the last rank ended or got SIGKILL, None before. ``ranks``: peak number of ranks on this
    node. ``expected``: ranks of the job (0: unknown).
    """

    share: str
    live: int | None = 0
    started_at: SavedSeconds = 0.0
    left_at: SavedSeconds | None = None
    ranks: int = 0
    expected: int = 0
    proven: bool = False
    proves_first: bool = False
    progress_seconds: SavedSeconds | None = None
    progress_at: SavedSeconds | None = None
    longest_pause: SavedSeconds = 0.0
    end_state: str = ""
    end_at: SavedSeconds = 0.0
    leads: tuple[LeadExit, ...] = ()

    def note_ranks(self, members: Collection[RankProcess], started_at: float | None, now: float) -> None:
        """Note which of ``members`` run at ``now``; ``started_at``: start of the oldest running rank, or None.

        A start in the future (damaged evidence) counts as now. A new run deletes ``end_state`` of the run before.
        """
        running = [p for p in members if p.exited_at is None]
        live = [p for p in running if not p.kill_pending]
        count = sum(len(p.labels) for p in live)
        self.live = None if any(not p.confirmed for p in running) else count
        self.ranks = max(self.ranks, count)
        self.expected = max((p.world_size or 0 for p in live), default=self.expected)
        if live and started_at is not None:
            self.started_at, self.left_at = min(started_at, now), None
            if self.started_at > self.end_at or now - self.end_at > EXPLAINS_SECONDS:
                self.end_state = ""
        elif self.left_at is None:
            exits = [p.exited_at for p in members if p.exited_at is not None]
            self.left_at = now if running else max(exits, default=now)

    def note_progress(self, newest_seconds: float | None, now: float, now_seconds: float, since: float) -> None:
        """Note the newest completed operation (epoch seconds), and the part of the pause before it after ``since``."""
        if newest_seconds is None or newest_seconds == self.progress_seconds:
            return
        at = min(now, now - (now_seconds - newest_seconds))
        if self.progress_at is not None and newest_seconds > (self.progress_seconds or 0.0):
            at = max(at, self.progress_at)  # perhaps the clock was set forward
        if self.progress_at is not None and self.progress_at >= self.started_at:
            self.longest_pause = max(self.longest_pause, at - max(self.progress_at, since))
        self.progress_seconds, self.progress_at = newest_seconds, at

    def retract(self, lead: LeadExit, now: float) -> None:
        """Export a lead exit as -1 from now on."""
        if lead.retracted_at is None:
            invalid = sorted((o for o in self.leads if o.retracted_at is not None), key=lambda o: o.retracted_at or 0.0)
            surplus = invalid[:1] if len(invalid) >= MAX_RETRACTED else []
            retracted = msgspec.structs.replace(lead, retracted_at=now)
            self.leads = tuple(retracted if other is lead else other for other in self.leads if other not in surplus)

    def retract_returned(self, running: Collection[tuple[str, float]], now: float) -> None:
        """Retract the exits of ranks that run again on this node, and all exits before the current run.

        ``running``: (rank, start) of each running rank.
        """
        run_start = min((start for _, start in running), default=float("-inf"))
        for lead in self.leads:
            is_back = any(rank == lead.rank and start > lead.exited_at for rank, start in running)
            if is_back or run_start > lead.exited_at:
                self.retract(lead, now)

    def admit(self, lead: LeadExit, now: float) -> bool:
        """Add a lead exit; at the limit, retract an exit of class ok, or else of class left.

        Return False if the exit is not added.
        """
        valid = [other for other in self.leads if other.retracted_at is None]
        if len(valid) >= MAX_LEADS:
            soft = [other for kind in ("ok", "left") for other in valid if other.exit_class == kind]
            if not soft or lead.exit_class in ("ok", "left"):
                return False
            self.retract(soft[0], now)
        self.leads = (*self.leads, lead)
        return True

    def expire(self, now: float) -> None:
        """Retract lead exits after EXPLAINS_SECONDS or LEAD_SECONDS; drop them RETRACTED_SECONDS later."""
        ran_whole_here = bool(self.expected) and self.ranks >= self.expected and self.live == 0
        for lead in self.leads:
            is_short = lead.exit_class == "ok" or ran_whole_here or self.end_state
            if now - lead.exited_at > (EXPLAINS_SECONDS if is_short else LEAD_SECONDS):
                self.retract(lead, now)
        self.leads = tuple(
            lead for lead in self.leads if lead.retracted_at is None or now - lead.retracted_at <= RETRACTED_SECONDS
        )

    def over_at(self) -> float | None:
        """Return when the last rank had ended and the last lead exit was retracted; None before this time."""
        times = [self.left_at, *(lead.retracted_at for lead in self.leads)]
        return None if None in times else max(at for at in times if at is not None)

    def is_over(self, now: float) -> bool:
        """Return True when the job has no more series."""
        return self.left_at is not None and now - self.left_at > EXPLAINS_SECONDS and not self.leads


class RanBefore(msgspec.Struct, frozen=True):
    """A job whose ranks ran on this node before a reboot. ``started_seconds``: start of its oldest rank (epoch).

    ``proven``: the scheduler proved that one of the ranks belongs to the job. ``share``: as in JobLiveness.
    """

    user: str
    ranks: list[str]
    started_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_SECONDS)]
    expected: int = 0
    proven: bool = True
    share: str = ""


def liveness_of(ran: RanBefore, now: float, now_seconds: float, short_seconds: float) -> JobLiveness:
    """Return the facts of a job whose ranks ended with the previous boot; its lead exit is that of the lowest rank.

    The lead exit gets the time of the boot: this is later than the exit, so it precedes no exit on another node.
    """
    booted_seconds = now_seconds - now
    lived: Lifetime = "short" if booted_seconds - ran.started_seconds < short_seconds else "long"
    first = min(ran.ranks, key=lambda rank: (len(rank), rank))
    lead = LeadExit(first, 0.0, "unknown", "", "", "reboot", lived, "", ran.user)
    return JobLiveness(
        share=ran.share or ran.user,
        started_at=min(ran.started_seconds - booted_seconds, 0.0),
        left_at=0.0,
        ranks=len(ran.ranks),
        expected=ran.expected,
        proven=ran.proven,
        leads=(lead,),
    )


def class_of(status: ExitStatus | None, *, finished: bool, torn: bool) -> ExitClass:
    """Return an exit's class. ``finished``: the process provably finished. ``torn``: see ``killed_before_teardown``."""
    if finished:
        return "ok"
    reason = fatal_reason(status)
    if reason == "oom_killed":
        return "oom"
    if reason is not None:
        is_crash = reason == "fatal_signal" and status is not None and status.signal != SIGABRT
        return "crash" if is_crash else "fail"
    if torn:
        return "torn"
    return "killed" if status is not None and status.known and status.signal == SIGKILL else "left"
