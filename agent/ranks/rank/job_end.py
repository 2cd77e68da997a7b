"""The scheduler's word on the end of a job, and which exits of ranks it explains. Pure."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP

import msgspec

from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.numbers import NUMBERS, Numbers

ENDED_BY_SCHEDULER = frozenset({"CANCELLED", "PREEMPTED", "TIMEOUT", "DEADLINE"})
"""Intended ends: the scheduler sent the ranks away, by SIGTERM and later SIGKILL."""
ENDED_IN_ORDER = frozenset({"COMPLETED", "REQUEUED"})
"""Ends that excuse no exit which speaks for itself: a script may end well, or ask for a new begin, after a crash."""
_FATAL_SIGNALS = frozenset({SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS})


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
        is_known = status is not None and status.known
        if self.state in ENDED_BY_SCHEDULER:
            return not is_known or not _speaks_for_itself(status)
        return self.state in ENDED_IN_ORDER and (not is_known or _is_in_order(status))


def _speaks_for_itself(status: ExitStatus | None) -> bool:
    return status is not None and (status.oom or status.signal in _FATAL_SIGNALS)


def _is_in_order(status: ExitStatus | None) -> bool:
    return status is not None and status.code == 0 and status.signal in (0, SIGTERM)
