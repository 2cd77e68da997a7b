"""What exporters see of a rank process over time, and what it is judged to be. Pure."""

from typing import Literal, get_args

import msgspec

State = Literal["alive", "unresponsive", "exited", "dead", "finished", "unknown"]
STATES: tuple[State, ...] = get_args(State)
VerdictReason = Literal[
    "running", "stopped", "blocked", "unanswered", "cut_off", "left", "followed", "fatal_signal", "oom_killed",
    "failure_status", "killed_before_teardown", "killed_before_peers", "left_before_peers", "finalized",
    "all_left_well", "progress_after_exit", "ended_by_scheduler",
]  # fmt: skip


class RasSilence(msgspec.Struct, frozen=True):
    """RAS reports that miss a process: since when (monotonic, epoch seconds), and how many in a row.

    ``contradicted``: it answered for itself all the same.
    """

    since: float
    since_seconds: float
    reports: int = 0
    contradicted: bool = False


class RankVerdict(msgspec.Struct, frozen=True):
    """A state and the rule that gave it."""

    state: State
    reason: VerdictReason


class Pauses:
    """The pauses of one process between operations, from look to look: whether it has fallen silent; epoch seconds."""

    __slots__ = ("_last", "_longest")

    def __init__(self) -> None:
        self._last: float | None = None
        self._longest = 0.0

    def silent_since(self, progress_seconds: float | None, now_seconds: float, least_seconds: float) -> float | None:
        """Return when it completed its last operation, if that is longer ago than ``least_seconds`` and than ever.

        ``progress_seconds``: its last operation by all that is known now; None: it has completed none.
        """
        if progress_seconds is None:
            return None
        if self._last is not None and progress_seconds > self._last:
            self._longest = max(self._longest, progress_seconds - self._last)
        self._last = progress_seconds
        quiet = now_seconds - progress_seconds
        return progress_seconds if quiet > max(least_seconds, self._longest) else None
