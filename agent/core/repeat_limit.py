"""How often a message is logged, so that no part of the agent and no user of the node fills the journal. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

REPEATS_PER_WINDOW = 10
"""Of one message; where its fields name a user, of that user's job."""
REPEATS_PER_USER = 30
"""Of one message about all jobs of one user: who invents jobs fills no journal."""
WINDOW_SECONDS = 60.0
MAX_MESSAGES = 1024
"""Distinct (logger, level, message, user, job) whose repeats are counted; the oldest gives way."""

MessageKey: TypeAlias = tuple[str, int, str]
"""Logger, level and message."""
_CountedKey: TypeAlias = tuple[MessageKey, str, str | None]


class _Window(NamedTuple):
    start: float
    passed: int
    held_back: int


class RepeatLimit:
    """Lets the same message through REPEATS_PER_WINDOW times per WINDOW_SECONDS.

    A message about a user's job has that for each job, and REPEATS_PER_USER for all jobs of the user together.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._windows: dict[_CountedKey, _Window] = {}
        self.forgotten = 0

    def admit(self, key: MessageKey, user: str = "", job_id: str = "") -> int | None:
        """Return how many of ``key`` were held back since the last one let through, None to hold back this one.

        ``forgotten`` grows by what was held back of a key that gave way to a new one.
        """
        now = self._monotonic()
        limits: dict[_CountedKey, int] = {(key, user, job_id if user else ""): REPEATS_PER_WINDOW}
        if user:
            limits[key, user, None] = REPEATS_PER_USER
        for counted, most in limits.items():
            window = self._windows.get(counted)
            if window is not None and now - window.start < WINDOW_SECONDS and window.passed >= most:
                self._windows[counted] = window._replace(held_back=window.held_back + 1)
                return None
        return sum(self._pass(counted, now) for counted in limits)

    def _pass(self, counted: _CountedKey, now: float) -> int:
        """Count one that is let through; return how many its last window held back."""
        window = self._windows.get(counted)
        if window is not None and now - window.start < WINDOW_SECONDS:
            self._windows[counted] = window._replace(passed=window.passed + 1)
            return 0
        self._windows.pop(counted, None)  # set anew: the dict stays in the order of the windows' starts
        if len(self._windows) >= MAX_MESSAGES:
            self.forgotten += self._windows.pop(next(iter(self._windows))).held_back
        self._windows[counted] = _Window(now, 1, 0)
        return 0 if window is None else window.held_back
