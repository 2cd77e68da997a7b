"""What is known of a rank process, as its verdict needs it."""

from __future__ import annotations

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
