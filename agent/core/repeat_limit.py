"""Limit repeated log messages, so that neither a part of the agent nor a user can fill the journal. Pure."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

REPEATS_PER_WINDOW = 10
"""Limit of lines with the same message per window; for a message that names a user, per job of the user."""
REPEATS_PER_USER = 30
"""Limit of lines with the same message per window for all jobs of a user together: a user can invent job ids."""
WINDOW_SECONDS = 60.0
MAX_MESSAGES = 1024
"""Limit of windows, one per (logger, level, message, user, job); a new window evicts the oldest."""

MessageKey: TypeAlias = tuple[str, int, str]
"""(logger, level, message)."""
_CountedKey: TypeAlias = tuple[MessageKey, str, str | None]


class _Window(NamedTuple):
    start: float
    passed: int
    held_back: int


class RepeatLimit:
    """Admits a message REPEATS_PER_WINDOW times per WINDOW_SECONDS.

    If a message names a user, this limit holds for each job of the user, and REPEATS_PER_USER limits all jobs of the
    user together.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._windows: dict[_CountedKey, _Window] = {}
        self.forgotten = 0

    def admit(self, key: MessageKey, user: str = "", job_id: str = "") -> int | None:
        """Return how many messages of ``key`` were suppressed since the last logged one; None: suppress this message.

        ``forgotten`` counts suppressed messages of evicted windows.
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
        """Count an admitted message. If it starts a window, return how many messages the previous window suppressed."""
        window = self._windows.get(counted)
        if window is not None and now - window.start < WINDOW_SECONDS:
            self._windows[counted] = window._replace(passed=window.passed + 1)
            return 0
        self._windows.pop(counted, None)  # inserted again below, so the dict stays ordered by the windows' starts
        if len(self._windows) >= MAX_MESSAGES:
            self.forgotten += self._windows.pop(next(iter(self._windows))).held_back
        self._windows[counted] = _Window(now, 1, 0)
        return 0 if window is None else window.held_back
