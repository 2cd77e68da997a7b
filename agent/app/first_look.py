"""When the agent has looked at the node's processes for the first time: before that its page lacks ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.core.clock import Clock
from agent.ranks.rank.process import RankProcess

FIRST_LOOK_SECONDS = 30.0
"""The longest that a start holds the page back: a process that hangs in /proc must not hide its node. The alert
RankwatchLate follows then, as the look passes its deadline."""
LOOKER = "process"
"""The exporter that finds rank processes, and confirms those of the checkpoint."""


class FirstLook:
    """``has_looked``: whether LOOKER has ended a look, or there is none; ``processes``: the ranks' that run."""

    def __init__(
        self, clock: Clock, has_looked: Callable[[], bool], processes: Callable[[], Iterable[RankProcess]]
    ) -> None:
        self._clock = clock
        self._has_looked = has_looked
        self._processes = processes
        self._until = clock.monotonic() + FIRST_LOOK_SECONDS
        self._is_over = False

    def is_over(self) -> bool:
        """True from the time on when the first look was made and the ranks that their environment names are shown.

        True in any case FIRST_LOOK_SECONDS after the start. A reload does not change it.
        """
        if not self._is_over:
            is_late = self._clock.monotonic() >= self._until
            self._is_over = is_late or (self._has_looked() and not any(map(_is_to_be_named, self._processes())))
        return self._is_over


def _is_to_be_named(process: RankProcess) -> bool:
    return process.slots is None and process.claim.rank is not None
