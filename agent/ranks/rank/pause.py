"""Whether a process has fallen silent: it had completed operations and completes none any more. Pure."""

from __future__ import annotations


class Pauses:
    """The pauses of one process between operations, from look to look; times in seconds since the epoch."""

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
