"""Evidence about a rank process over time, and the verdict on the process. Pure."""

from typing import Literal

import msgspec

State = Literal["alive", "unresponsive", "exited", "dead", "finished", "unknown"]
VerdictReason = Literal[
    "running", "stopped", "blocked", "unanswered", "cut_off", "left", "followed", "fatal_signal", "oom_killed",
    "failure_status", "killed_before_teardown", "killed_before_peers", "left_before_peers", "finalized",
    "all_left_well", "progress_after_exit", "ended_by_scheduler",
]  # fmt: skip
UNRESPONSIVE: dict[str, str] = {
    "stopped": "stopped by a signal", "blocked": "blocked in the kernel", "unanswered": "not answering NCCL's RAS",
}  # fmt: skip
"""The reasons of the state ``unresponsive`` in words, for pages, commands and bundles."""


class RasSilence(msgspec.Struct, frozen=True):
    """Consecutive RAS reports without a process: time of the first report (monotonic, epoch seconds), and their number.

    ``contradicted``: newer records show that the process lives.
    """

    since: float
    since_seconds: float
    reports: int = 0
    contradicted: bool = False


class RankVerdict(msgspec.Struct, frozen=True):
    """A rank's state and the rule that set it."""

    state: State
    reason: VerdictReason


class Pauses:
    """Tracks the pauses of one process between operations, to detect its silence. Times are epoch seconds."""

    __slots__ = ("_last", "_longest")

    def __init__(self) -> None:
        self._last: float | None = None
        self._longest = 0.0

    def silent_since(self, progress_seconds: float | None, now_seconds: float, least_seconds: float) -> float | None:
        """Return the time of the last operation if the pause since then is abnormal, else None.

        Abnormal: longer than ``least_seconds`` and all earlier pauses. ``progress_seconds``: the last operation's time.
        """
        if progress_seconds is None:
            return None
        if self._last is not None and progress_seconds > self._last:
            self._longest = max(self._longest, progress_seconds - self._last)
        self._last = progress_seconds
        quiet = now_seconds - progress_seconds
        return progress_seconds if quiet > max(least_seconds, self._longest) else None
