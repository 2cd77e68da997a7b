"""How a process ended, and the scheduler's word on the end of its job, which explains some exits. Pure."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP, Signals

import msgspec

from agent.ranks.rank.numbers import NUMBERS, Numbers

FATAL_SIGNALS = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS})
"""Signals of a process' own faults."""
CRASHES = frozenset(signal.name for signal in FATAL_SIGNALS)
ENDED_BY_SCHEDULER = frozenset({"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE"})
"""Intended ends: the scheduler sent the ranks away, by SIGTERM and later SIGKILL."""
ENDED_IN_ORDER = frozenset({"COMPLETED", "REQUEUED"})
"""Ends that excuse no exit which speaks for itself: a script may end well, or ask for a new begin, after a crash."""


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended. ``known`` False: its status could not be read. ``oom``: the OOM killer sent the signal."""

    known: bool
    signal: int = 0
    code: int = 0
    oom: bool = False

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Read a status in waitpid's form."""
        return cls(known=True, signal=status & 0x7F, code=(status >> 8) & 0xFF)

    @property
    def signal_name(self) -> str:
        """Return the name of the signal, such as SIGKILL; its number where it has no name; empty without a signal."""
        if not self.signal:
            return ""
        try:
            return Signals(self.signal).name
        except ValueError:
            return str(self.signal)


def ending(status: ExitStatus | None) -> tuple[str, str, str]:
    """Return how a process ended: reason, signal's name, status; what is not known or does not apply is empty."""
    if status is None or not status.known:
        return "unknown", "", ""
    if status.signal:
        return ("oom_killed" if status.oom else "signaled"), status.signal_name, ""
    return "exited", "", str(status.code)


def in_words(reason: str, signal: str, code: str) -> str:
    """Word what ``ending`` returns, to stand after a rank: ``killed (SIGKILL)``. Logs, pages and commands use it."""
    if reason == "oom_killed":
        return "killed by the OOM killer"
    if signal:
        return f"{'crashed' if signal in CRASHES else 'killed'} ({signal})"
    return f"exited with status {code}" if code else "exited, status unknown"


class JobEnd(msgspec.Struct, frozen=True):
    """How a scheduler's job ended on this node: when it was here (epoch seconds; start 0: not known), and its state."""

    job_id: str
    started_seconds: float
    ended_seconds: float
    state: str

    def explains(self, exited_seconds: float, status: ExitStatus | None, numbers: Numbers = NUMBERS) -> bool:
        """Return True for an exit at this time (epoch seconds) that is no more than the end of the job."""
        late = exited_seconds - self.ended_seconds
        is_near = -numbers.end_seconds <= late <= numbers.after_end_seconds
        if not is_near or exited_seconds < self.started_seconds:
            return False
        if status is None or not status.known:
            return self.state in ENDED_BY_SCHEDULER | ENDED_IN_ORDER
        if self.state in ENDED_BY_SCHEDULER:
            return not (status.oom or status.signal in FATAL_SIGNALS)
        return self.state in ENDED_IN_ORDER and status.code == 0 and status.signal in (0, SIGTERM)
