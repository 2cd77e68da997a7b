"""The state of a rank, from the evidence on its process and on the others of its job on this node. Pure.

Which rank of all nodes was the first to leave, and whether any lives on elsewhere, is judged in Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTERM, Signals
from typing import Literal, get_args

import msgspec

from agent.core.identity import ProcessKey
from agent.ranks.rank.exit_status import ExitStatus

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
    "killed_before_teardown",
    "killed_before_peers",
    "left_before_peers",
    "finalized",
    "all_left_well",
    "progress_after_exit",
    "ended_by_scheduler",
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
TEARDOWN_SECONDS = 10.0
"""A launcher sees a death within its poll (torchrun: 0.1 to 5 s), then ends the other ranks by SIGTERM. A cancel is the
other way round: SIGTERM, and after Slurm's KillWait SIGKILL."""
PROGRESS_SLACK_SECONDS = 5.0

_FATAL_SIGNALS = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE})
_LAST_OWN_STATUS = 127  # 128+n is a shell's or a handler's word for signal n


class RasSilence(msgspec.Struct, frozen=True):
    """RAS reports that miss a process: since when (monotonic, epoch seconds), and how many in a row.

    ``contradicted``: it answered for itself all the same.
    """

    since: float
    since_seconds: float
    reports: int = 0
    contradicted: bool = False


class ProcessEvidence(msgspec.Struct, frozen=True):
    """What is known of one rank process.

    Times are CLOCK_MONOTONIC seconds; ``exited_at`` None while it runs. ``state`` is the kernel's letter.
    ``blocked_since``: when a thread that NCCL needs was first seen in D with the same context-switch count as now.
    ``progress_after_exit_seconds``: how long after the exit records of it were still written. ``unproven_since``: it
    ran at this time, and was not looked at since (the agent did not run). ``before``: the reason of its last verdict;
    the processes that led to it may have been removed from the table since, or replaced by restarted ones.
    ``silence``: RAS does not hear it; contradicted where it was heard, or its records went on. ``ended_by_scheduler``:
    its exit is the end that the scheduler says the job had.
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
    ended_by_scheduler: bool = False


class RankVerdict(msgspec.Struct, frozen=True):
    """A state and the rule that gave it."""

    state: State
    reason: VerdictReason


class _Job(msgspec.Struct, frozen=True):
    """The processes of a job as ``_judge`` needs them: each question about all of them is answered in O(log n).

    ``found_at``: when each was found, in order; ``alive_until``: the latest time at which any of those found up to
    there was known to be alive. ``preceded``: see ``_preceded``. ``torn_down``: see ``_killed_before_teardown``.
    """

    found_at: Sequence[float]
    alive_until: Sequence[float]
    preceded: Collection[ProcessKey]
    torn_down: Collection[ProcessKey]
    all_left_well: bool
    now: float


def judge_job(processes: Sequence[ProcessEvidence], now: float) -> dict[ProcessKey, RankVerdict]:
    """Judge the rank processes of one job on this node, live ones and those that left, at monotonic time ``now``."""
    found = sorted(processes, key=lambda p: p.found_at)
    exits = sorted((p for p in processes if p.exited_at is not None), key=lambda p: (_left_at(p), p.key))
    job = _Job(
        found_at=[p.found_at for p in found],
        alive_until=list(accumulate((_alive_until(p, now) for p in found), max)),
        preceded=_preceded(exits),
        torn_down=_killed_before_teardown(exits),
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
    if process.ended_by_scheduler:
        return RankVerdict("finished", "ended_by_scheduler")
    return _judge_left(process, job)


def _judge_running(process: ProcessEvidence, now: float) -> RankVerdict:
    if process.state == "T":  # "t" is a debugger's doing
        return RankVerdict("unresponsive", "stopped")
    if process.blocked_since is not None and now - process.blocked_since > BLOCKED_SECONDS:
        return RankVerdict("unresponsive", "blocked")
    silence = process.silence
    if silence is None or silence.reports < UNANSWERED_REPORTS or now - silence.since < UNANSWERED_SECONDS:
        return RankVerdict("alive", "running")
    return RankVerdict("alive", "cut_off") if silence.contradicted else RankVerdict("unresponsive", "unanswered")


def _judge_left(process: ProcessEvidence, job: _Job) -> RankVerdict:
    cause = _fatal(process.exit)
    followed = process.before == "followed" or (cause is not None and process.key in job.preceded)
    if cause is not None and not followed:
        return RankVerdict("dead", cause)
    if process.before in ("killed_before_teardown", "killed_before_peers", "left_before_peers"):
        return RankVerdict("dead", process.before)
    if process.key in job.torn_down:
        return RankVerdict("dead", "killed_before_teardown")
    outlived = _outlived_seconds(process, job)
    if _ended_by(process, SIGKILL) and outlived >= KILLED_PEERS_SECONDS:
        return RankVerdict("dead", "killed_before_peers")
    if outlived >= LEFT_PEERS_SECONDS:
        return RankVerdict("dead", "left_before_peers")
    return RankVerdict("exited", "left" if cause is None else "followed")


def _outlived_seconds(process: ProcessEvidence, job: _Job) -> float:
    """How long a peer was alive after ``process`` left; 0 or less where none was.

    A peer was there when it left: a process of a later restart proves nothing. The process itself is among those
    looked at, which changes nothing: it was not alive after it left.
    """
    left_at = _left_at(process)
    peers = bisect_left(job.found_at, left_at)
    return job.alive_until[peers - 1] - left_at if peers else 0.0


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


def _ended_by(process: ProcessEvidence, signal: Signals) -> bool:
    return process.exit is not None and process.exit.known and process.exit.signal == signal


def _killed_before_teardown(exits: Sequence[ProcessEvidence]) -> set[ProcessKey]:
    """The processes that SIGKILL ended first of their episode, and after which SIGTERM ended one that was there.

    ``exits``: in order. An exit by SIGTERM that is simultaneous with the SIGKILL came after it. The first ones of
    episodes are so far apart that no exit by SIGTERM is looked at for two of them.
    """
    terminated = [p for p in exits if _ended_by(p, SIGTERM)]
    others = [p for p in exits if not _ended_by(p, SIGTERM)]
    preceded = _preceded(others) if terminated else set()
    found = set()
    for process in others if terminated else ():
        left_at = _left_at(process)
        if process.key in preceded or process.unproven_since is not None or not _ended_by(process, SIGKILL):
            continue
        first = bisect_left(terminated, left_at - SIMULTANEOUS_SECONDS, key=_left_at)
        if first and left_at - _left_at(terminated[first - 1]) <= EPISODE_SECONDS:
            continue
        end = bisect_right(terminated, left_at + TEARDOWN_SECONDS, key=_left_at)
        if any(peer.found_at < left_at for peer in terminated[first:end]):
            found.add(process.key)
    return found


def _preceded(exits: Sequence[ProcessEvidence]) -> set[ProcessKey]:
    """The processes that left after another one in the same episode, and so may have been torn down with it.

    Of those that left before a process, the last one that is not simultaneous with it matters; of those simultaneous
    with it, the first by ``_order``, which is the first struck one or the first of all. ``exits``: in order.
    """
    struck = [p for p in exits if _is_struck(p)]
    left_at, struck_at = ([_left_at(p) for p in each] for each in (exits, struck))
    found = set()
    for process, at in zip(exits, left_at, strict=True):
        near = bisect_left(left_at, at - SIMULTANEOUS_SECONDS)
        near_struck = bisect_left(struck_at, at - SIMULTANEOUS_SECONDS)
        others = (*exits[max(near - 1, 0) : near + 1], *struck[near_struck : near_struck + 1])
        if any(_precedes(other, process) for other in others):
            found.add(process.key)
    return found


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
    return (not _is_struck(process), _left_at(process), process.key)


def _is_struck(process: ProcessEvidence) -> bool:
    return _fatal(process.exit) in ("oom_killed", "fatal_signal")


def _alive_until(peer: ProcessEvidence, now: float) -> float:
    if peer.unproven_since is not None:
        return peer.unproven_since
    if peer.exited_at is not None:
        return peer.exited_at
    return float("-inf") if peer.kill_pending else now
