"""Exit status of a process, its words ("killed by the OOM killer"), and the scheduler's end of a job. Pure."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP, Signals

import msgspec

from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

FATAL_SIGNALS = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS})
"""Signals that a fault of the process itself causes. Exit class crash (liveness/job_liveness.py) excludes SIGABRT."""
_CRASHED_IN_WORDS = frozenset(signal.name for signal in FATAL_SIGNALS)
ENDED_BY_SCHEDULER = frozenset({"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE"})
"""States of a job that the scheduler ended on purpose, by SIGTERM and later SIGKILL."""
ENDED_IN_ORDER = frozenset({"COMPLETED", "REQUEUED"})
"""States that explain only SIGTERM, status 0 or no status: after a crash, a script can succeed or request a requeue."""


class ExitStatus(msgspec.Struct, frozen=True):
    """Exit status of a process. ``known`` False: the status could not be read. ``oom``: the OOM killer sent the signal.

    ``by_launcher``: the process is a Ray worker, and this is the status of a worker that Ray ends.
    """

    known: bool
    signal: int = 0
    code: int = 0
    oom: bool = False
    by_launcher: bool = False

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Return the exit status for a status in waitpid's form."""
        return cls(known=True, signal=status & 0x7F, code=(status >> 8) & 0xFF)

    @property
    def signal_name(self) -> str:
        """Return the signal's name, such as SIGKILL; its number if it has no name; empty without a signal."""
        if not self.signal:
            return ""
        try:
            return Signals(self.signal).name
        except ValueError:
            return str(self.signal)


def ending(status: ExitStatus | None) -> tuple[str, str, str]:
    """Return (reason, signal name, exit code) of an ended process; parts that are unknown or do not apply are empty."""
    if status is None or not status.known:
        return "unknown", "", ""
    if status.signal:
        return ("oom_killed" if status.oom else "signaled"), status.signal_name, ""
    return "exited", "", str(status.code)


def in_words(reason: str, signal: str, code: str) -> str:
    """Return the result of ``ending`` as a phrase for logs, pages and commands, such as ``killed (SIGKILL)``."""
    if reason == "oom_killed":
        return "killed by the OOM killer"
    if signal:
        return f"{'crashed' if signal in _CRASHED_IN_WORDS else 'killed'} ({signal})"
    return f"exited with status {code}" if code else "exited, status unknown"


class JobEnd(msgspec.Struct, frozen=True):
    """The scheduler's report that a job ended on this node. Times are epoch seconds; ``started_seconds`` 0: unknown."""

    job_id: str
    started_seconds: float
    ended_seconds: float
    state: str

    def explains(self, exited_seconds: float, status: ExitStatus | None, thresholds: Thresholds = DEFAULTS) -> bool:
        """Return True if the end of the job fully explains an exit at this time (epoch seconds) with this status."""
        late = exited_seconds - self.ended_seconds
        is_near = -thresholds.end_seconds <= late <= thresholds.after_end_seconds
        if not is_near or exited_seconds < self.started_seconds:
            return False
        if status is None or not status.known:
            return self.state in ENDED_BY_SCHEDULER | ENDED_IN_ORDER
        if self.state in ENDED_BY_SCHEDULER:
            return not (status.oom or status.signal in FATAL_SIGNALS)
        return self.state in ENDED_IN_ORDER and status.code == 0 and status.signal in (0, SIGTERM)
