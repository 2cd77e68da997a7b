"""From evidence to a state: pure, with no clock of its own.

The agent tells the local truth: what this node's processes show. Who was first over all nodes, and whether anyone
stayed behind elsewhere, is judged in Prometheus.
"""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV
from typing import Literal, get_args

import msgspec

from agent.identity import ProcessKey

State = Literal["alive", "unresponsive", "exited", "dead", "finished", "unknown"]
STATES: tuple[State, ...] = get_args(State)
Reason = Literal[
    "running",
    "stopped",
    "blocked",
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


class Evidence(msgspec.Struct, frozen=True):
    """What the witnesses say of one rank process.

    Times are CLOCK_MONOTONIC seconds; ``exited_at`` None while it runs. ``state`` is the kernel's letter.
    ``blocked_since``: when a thread that NCCL needs was first seen in D with the same context-switch count as now.
    ``progress_after_exit_seconds``: how long after the exit records of it were still written. ``unproven_since``: it
    ran at this time, and nobody has looked since (the agent was away). ``before``: the reason of its last verdict,
    whose witnesses may be gone by now (their tombstones are taken down, or their ranks were started anew).
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
    before: Reason | None = None


class Verdict(msgspec.Struct, frozen=True):
    """A state and the rule that gave it."""

    state: State
    reason: Reason


def judge_job(processes: Sequence[Evidence], now: float) -> dict[ProcessKey, Verdict]:
    """Judge the rank processes of one job on this node, live ones and those that left, at monotonic time ``now``."""
    all_left_well = all(p.exited_at is not None and _left_well(p.exit) for p in processes)
    return {p.key: _judge(p, processes, all_left_well, now) for p in processes}


def _judge(process: Evidence, processes: Sequence[Evidence], all_left_well: bool, now: float) -> Verdict:
    if process.exited_at is None:
        return _judge_running(process, now)
    if process.progress_after_exit_seconds > PROGRESS_SLACK_SECONDS:
        return Verdict("unknown", "progress_after_exit")
    if process.finalized:
        return Verdict("finished", "finalized")
    if all_left_well or process.before == "all_left_well":
        return Verdict("finished", "all_left_well")
    return _judge_left(process, processes, now)


def _judge_running(process: Evidence, now: float) -> Verdict:
    if process.state == "T":  # "t" is a debugger's doing
        return Verdict("unresponsive", "stopped")
    if process.blocked_since is not None and now - process.blocked_since > BLOCKED_SECONDS:
        return Verdict("unresponsive", "blocked")
    return Verdict("alive", "running")


def _judge_left(process: Evidence, processes: Sequence[Evidence], now: float) -> Verdict:
    left_at = process.exited_at if process.exited_at is not None else now
    cause = _fatal(process.exit)
    followed = process.before == "followed" or any(_precedes(other, process) for other in processes)
    if cause is not None and not followed:
        return Verdict("dead", cause)
    if process.before in ("killed_before_peers", "left_before_peers"):
        return Verdict("dead", process.before)
    outlived = max((_alive_until(peer, now) - left_at for peer in processes if _is_peer(peer, process)), default=-1.0)
    if process.exit is not None and process.exit.signal == SIGKILL and outlived >= KILLED_PEERS_SECONDS:
        return Verdict("dead", "killed_before_peers")
    if outlived >= LEFT_PEERS_SECONDS:
        return Verdict("dead", "left_before_peers")
    return Verdict("exited", "left" if cause is None else "followed")


def _left_well(status: ExitStatus | None) -> bool:
    return status is not None and status.known and status.signal == 0 and status.code == 0


def _fatal(status: ExitStatus | None) -> Reason | None:
    if status is None or not status.known:
        return None
    if status.oom:
        return "oom_killed"
    if status.signal in _FATAL_SIGNALS:
        return "fatal_signal"
    if status.signal == 0 and 1 <= status.code <= _LAST_OWN_STATUS:
        return "failure_status"
    return None


def _precedes(other: Evidence, process: Evidence) -> bool:
    """True when ``other`` left before ``process`` in the same episode, so that ``process`` may be its victim."""
    if other.key == process.key or other.exited_at is None or process.exited_at is None:
        return False
    apart = process.exited_at - other.exited_at
    if abs(apart) <= SIMULTANEOUS_SECONDS:
        return _order(other) < _order(process)
    return 0 < apart <= EPISODE_SECONDS


def _order(process: Evidence) -> tuple[bool, float, ProcessKey]:
    struck = _fatal(process.exit) in ("oom_killed", "fatal_signal")
    return (not struck, process.exited_at or 0.0, process.key)


def _is_peer(peer: Evidence, process: Evidence) -> bool:
    """A peer was there when ``process`` left: a process of a later restart proves nothing."""
    return peer.key != process.key and process.exited_at is not None and peer.found_at < process.exited_at


def _alive_until(peer: Evidence, now: float) -> float:
    if peer.unproven_since is not None:
        return peer.unproven_since
    if peer.exited_at is not None:
        return peer.exited_at
    return float("-inf") if peer.kill_pending else now
