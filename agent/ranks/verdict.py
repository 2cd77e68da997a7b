"""From evidence to a state: pure, with no clock of its own.

The agent tells the local truth: what this node's processes show. Who was first over all nodes, and whether anyone
stayed behind elsewhere, is judged in Prometheus.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV
from typing import Literal, get_args

import msgspec

from agent.core.identity import ProcessKey

State = Literal["alive", "unresponsive", "exited", "dead", "finished", "unknown"]
STATES: tuple[State, ...] = get_args(State)
VerdictReason = Literal[
    "running",
    "stopped",
    "blocked",
    "unanswered",
    "cut_off",
    "left",
    "followed",
    "fatal_signal",
    "oom_killed",
    "failure_status",
    "killed_before_peers",
    "left_before_peers",
    "finalized",
    "all_left_well",
    "progress_after_exit",
]

BLOCKED_SECONDS = 60.0
"""In D this long without one context switch: longer than a checkpoint's slowest single write should take."""
UNANSWERED_REPORTS = 2
UNANSWERED_SECONDS = 15.0
"""So long, and in so many reports of RAS, is a process missed: neighbours of a dead one are for up to 12 s."""
KILLED_PEERS_SECONDS = 15.0
LEFT_PEERS_SECONDS = 45.0
"""Longer than Slurm's KillWait (30 s by default): within it a cancelled job's slow ranks are killed."""
EPISODE_SECONDS = 60.0
"""Exits this close together are one event; only its first can be its cause."""
SIMULTANEOUS_SECONDS = 0.1
"""Within this span the order of notifications says nothing: a fatal signal outranks an earlier exit."""
PROGRESS_SLACK_SECONDS = 5.0

_FATAL_SIGNALS = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE})
_LAST_OWN_STATUS = 127  # 128+n is a shell's or a handler's word for signal n


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended. ``known`` False: nobody could tell. ``oom``: the kernel's OOM killer did it."""

    known: bool
    signal: int = 0
    code: int = 0
    oom: bool = False

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Read a status in waitpid's form."""
        return cls(known=True, signal=status & 0x7F, code=(status >> 8) & 0xFF)


class RasSilence(msgspec.Struct, frozen=True):
    """RAS reports that miss a process: since when (monotonic, epoch seconds), and how many in a row.

    ``contradicted``: it answered for itself all the same.
    """

    since: float
    since_seconds: float
    reports: int = 0
    contradicted: bool = False


class ProcessEvidence(msgspec.Struct, frozen=True):
    """What the witnesses say of one rank process.

    Times are CLOCK_MONOTONIC seconds; ``exited_at`` None while it runs. ``state`` is the kernel's letter.
    ``blocked_since``: when a thread that NCCL needs was first seen in D with the same context-switch count as now.
    ``progress_after_exit_seconds``: how long after the exit records of it were still written. ``unproven_since``: it
    ran at this time, and nobody has looked since (the agent was away). ``before``: the reason of its last verdict,
    whose witnesses may be gone by now (their tombstones are taken down, or their ranks were started anew).
    ``silence``: the other ranks do not hear it, contradicted where it was heard or its records went on.
    """

    key: ProcessKey
    found_at: float
    exited_at: float | None = None
    exit: ExitStatus | None = None
    state: str = "S"
    blocked_since: float | None = None
    kill_pending: bool = False
    finalized: bool = False
    progress_after_exit_seconds: float = 0.0
    unproven_since: float | None = None
    before: VerdictReason | None = None
    silence: RasSilence | None = None


class RankVerdict(msgspec.Struct, frozen=True):
    """A state and the rule that gave it."""

    state: State
    reason: VerdictReason


class _Job(msgspec.Struct, frozen=True):
    """The processes of a job in the orders in which witnesses are sought, so that many can be judged quickly.

    ``exits``: those that left, the first one first; ``witnesses``: all, those known to have lived longest first.
    """

    exits: Sequence[ProcessEvidence]
    witnesses: Sequence[ProcessEvidence]
    all_left_well: bool
    now: float


def judge_job(processes: Sequence[ProcessEvidence], now: float) -> dict[ProcessKey, RankVerdict]:
    """Judge the rank processes of one job on this node, live ones and those that left, at monotonic time ``now``."""
    job = _Job(
        exits=sorted((p for p in processes if p.exited_at is not None), key=_left_at),
        witnesses=sorted(processes, key=lambda p: _alive_until(p, now), reverse=True),
        all_left_well=all(p.exited_at is not None and _left_well(p.exit) for p in processes),
        now=now,
    )
    return {p.key: _judge(p, job) for p in processes}


def _judge(process: ProcessEvidence, job: _Job) -> RankVerdict:
    if process.exited_at is None:
        return _judge_running(process, job.now)
    if process.progress_after_exit_seconds > PROGRESS_SLACK_SECONDS:
        return RankVerdict("unknown", "progress_after_exit")
    if process.finalized:
        return RankVerdict("finished", "finalized")
    if job.all_left_well or process.before == "all_left_well":
        return RankVerdict("finished", "all_left_well")
    return _judge_left(process, job)


def _judge_running(process: ProcessEvidence, now: float) -> RankVerdict:
    if process.state == "T":  # "t" is a debugger's doing
        return RankVerdict("unresponsive", "stopped")
    if process.blocked_since is not None and now - process.blocked_since > BLOCKED_SECONDS:
        return RankVerdict("unresponsive", "blocked")
    silence = process.silence
    if silence is None or silence.reports < UNANSWERED_REPORTS or now - silence.since < UNANSWERED_SECONDS:
        return RankVerdict("alive", "running")
    return RankVerdict("unknown", "cut_off") if silence.contradicted else RankVerdict("unresponsive", "unanswered")


def _judge_left(process: ProcessEvidence, job: _Job) -> RankVerdict:
    cause = _fatal(process.exit)
    followed = process.before == "followed" or (cause is not None and _was_preceded(process, job))
    if cause is not None and not followed:
        return RankVerdict("dead", cause)
    if process.before in ("killed_before_peers", "left_before_peers"):
        return RankVerdict("dead", process.before)
    longest = next((peer for peer in job.witnesses if _is_peer(peer, process)), None)
    outlived = -1.0 if longest is None else _alive_until(longest, job.now) - _left_at(process)
    if process.exit is not None and process.exit.signal == SIGKILL and outlived >= KILLED_PEERS_SECONDS:
        return RankVerdict("dead", "killed_before_peers")
    if outlived >= LEFT_PEERS_SECONDS:
        return RankVerdict("dead", "left_before_peers")
    return RankVerdict("exited", "left" if cause is None else "followed")


def _left_well(status: ExitStatus | None) -> bool:
    return status is not None and status.known and status.signal == 0 and status.code == 0


def _fatal(status: ExitStatus | None) -> VerdictReason | None:
    if status is None or not status.known:
        return None
    if status.oom:
        return "oom_killed"
    if status.signal in _FATAL_SIGNALS:
        return "fatal_signal"
    if status.signal == 0 and 1 <= status.code <= _LAST_OWN_STATUS:
        return "failure_status"
    return None


def _was_preceded(process: ProcessEvidence, job: _Job) -> bool:
    here = bisect_right(job.exits, _left_at(process), key=_left_at)
    end = bisect_right(job.exits, _left_at(process) + 2 * SIMULTANEOUS_SECONDS, key=_left_at)
    likeliest_first = chain(reversed(job.exits[:here]), job.exits[here:end])
    return any(_precedes(other, process) for other in likeliest_first)


def _left_at(process: ProcessEvidence) -> float:
    return process.exited_at if process.exited_at is not None else float("inf")


def _precedes(other: ProcessEvidence, process: ProcessEvidence) -> bool:
    """True when ``other`` left before ``process`` in the same episode, so that ``process`` may be its victim."""
    if other.key == process.key or other.exited_at is None or process.exited_at is None:
        return False
    apart = process.exited_at - other.exited_at
    if abs(apart) <= SIMULTANEOUS_SECONDS:
        return _order(other) < _order(process)
    return 0 < apart <= EPISODE_SECONDS


def _order(process: ProcessEvidence) -> tuple[bool, float, ProcessKey]:
    struck = _fatal(process.exit) in ("oom_killed", "fatal_signal")
    return (not struck, process.exited_at or 0.0, process.key)


def _is_peer(peer: ProcessEvidence, process: ProcessEvidence) -> bool:
    """A peer was there when ``process`` left: a process of a later restart proves nothing."""
    return peer.key != process.key and process.exited_at is not None and peer.found_at < process.exited_at


def _alive_until(peer: ProcessEvidence, now: float) -> float:
    if peer.unproven_since is not None:
        return peer.unproven_since
    if peer.exited_at is not None:
        return peer.exited_at
    return float("-inf") if peer.kill_pending else now
