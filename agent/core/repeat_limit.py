"""How often a message is logged, so that no part of the agent and no user of the node fills the journal. Pure."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

REPEATS_PER_WINDOW = 10
"""Of one message; of one that names a user, for each job of that user."""
REPEATS_PER_USER = 30
"""Of one message about all jobs of one user, so that invented jobs do not fill the journal."""
WINDOW_SECONDS = 60.0
MAX_MESSAGES = 1024
"""Distinct (logger, level, message, user, job) with a window; a new one evicts the oldest."""

MessageKey: TypeAlias = tuple[str, int, str]
"""Logger, level and message."""
_CountedKey: TypeAlias = tuple[MessageKey, str, str | None]


class _Window(NamedTuple):
    start: float
    passed: int
    held_back: int


class RepeatLimit:
    """Lets a message through REPEATS_PER_WINDOW times per WINDOW_SECONDS.

    For a message that names a user this limit is per job, and REPEATS_PER_USER is the limit of all the user's jobs.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._windows: dict[_CountedKey, _Window] = {}
        self.forgotten = 0

    def admit(self, key: MessageKey, user: str = "", job_id: str = "") -> int | None:
        """Return how many of ``key`` were held back since the last one let through, or None to hold back this one.

        ``forgotten`` counts those held back in windows that were evicted before they could be returned.
        """
        now = self._monotonic()
        limits: dict[_CountedKey, int] = {(key, user, job_id if user else ""): REPEATS_PER_WINDOW}
        if user:
            limits[key, user, None] = REPEATS_PER_USER
        for counted, limit in limits.items():
            window = self._windows.get(counted)
            if window is not None and now - window.start < WINDOW_SECONDS and window.passed >= limit:
                self._windows[counted] = window._replace(held_back=window.held_back + 1)
                return None
        return sum(self._pass(counted, now) for counted in limits)

    def _pass(self, counted: _CountedKey, now: float) -> int:
        """Count a message that is let through; if that begins a window, return how many the last one held back."""
        window = self._windows.get(counted)
        if window is not None and now - window.start < WINDOW_SECONDS:
            self._windows[counted] = window._replace(passed=window.passed + 1)
            return 0
        self._windows.pop(counted, None)  # inserted again below: keeps the dict ordered by the windows' starts
        if len(self._windows) >= MAX_MESSAGES:
            self.forgotten += self._windows.pop(next(iter(self._windows))).held_back
        self._windows[counted] = _Window(now, 1, 0)
        return 0 if window is None else window.held_back
