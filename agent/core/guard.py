"""Pieces of a source, each by itself: what goes wrong with one record, process or device costs that one alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.core.log import Logger

T = TypeVar("T")


class Guard:
    """Runs the work on one piece at a time. ``skipped`` counts the pieces whose work failed; each is logged.

    May be used by several threads of one exporter: a count that is one too low after a race is no harm.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self.skipped = 0

    def attempt(self, what: str, work: Callable[[], T], **which: object) -> T | None:
        """Return what ``work`` returns, or None when it raised; ``what`` and ``which`` name the piece in the log."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001  # whatever an odd piece causes; counted and logged
            self.skipped += 1
            self._log.error(f"{what} left out: looking at it failed", error=error, **which)
            return None
