"""What all writers that are read by one reader share."""

from __future__ import annotations

from exporters.inspector.format.plausibility import Plausibility
from exporters.inspector.lateness.matching import Matching

MAX_PLACES_IN_ALL = 8192
"""Places and memberships of all writers of one reader: each place may have an accumulator per collective."""


class PlaceBudget:
    """How many places and memberships all writers of one reader hold; ``take`` refuses beyond MAX_PLACES_IN_ALL."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> bool:
        """Reserve one."""
        if self.taken >= MAX_PLACES_IN_ALL:
            return False
        self.taken += 1
        return True


class Shared:
    """The room for places, the bound of what is plausible, and the operations that wait to be matched."""

    def __init__(self, plausibility: Plausibility | None = None) -> None:
        self.room = PlaceBudget()
        self.plausibility = plausibility or Plausibility()
        self.matching = Matching()
