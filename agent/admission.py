"""Who may create a series: a budget per rank and one for all, asked when an accumulator is born."""

from __future__ import annotations

from collections.abc import Hashable

SERIES_PER_OWNER = 400
SERIES_IN_ALL = 50_000


class Admission:
    """Counts series by owner (one rank's stream); what is refused must be gathered under `other` from its birth.

    Folding a series into `other` later would make `other` jump, and the series that vanished look like a reset.
    """

    def __init__(self, per_owner: int = SERIES_PER_OWNER, in_all: int = SERIES_IN_ALL) -> None:
        self._per_owner = per_owner
        self._in_all = in_all
        self._held: dict[Hashable, int] = {}
        self._total = 0
        self.refused = 0

    def admit(self, owner: Hashable, series: int) -> bool:
        """Reserve ``series`` for ``owner``; False (and counted in ``refused``) when a budget is spent."""
        held = self._held.get(owner, 0)
        if held + series > self._per_owner or self._total + series > self._in_all:
            self.refused += 1
            return False
        self._held[owner] = held + series
        self._total += series
        return True

    def release(self, owner: Hashable) -> None:
        """Give back all that ``owner`` holds."""
        self._total -= self._held.pop(owner, 0)
