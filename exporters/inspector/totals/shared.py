"""What all writers that are read by one reader share."""

from __future__ import annotations

from agent.sdk.metrics import FairBudget
from exporters.inspector.format.plausibility import Plausibility
from exporters.inspector.lateness.matching import Matching
from exporters.inspector.transfers.pairs import MAX_MEASURED_IN_ALL

MAX_PLACES_IN_ALL = 8192
"""Places and memberships of all writers of one reader: each place may have an accumulator per collective."""


class Shared:
    """The room for places and memberships, and for pairs, the bound of what is plausible, operations to be matched.

    ``histograms``: durations are counted, too.
    """

    def __init__(self, plausibility: Plausibility | None = None, *, histograms: bool = False) -> None:
        self.room = FairBudget(MAX_PLACES_IN_ALL)
        self.pairs = FairBudget(MAX_MEASURED_IN_ALL)
        self.plausibility = plausibility or Plausibility()
        self.matching = Matching()
        self.histograms = histograms

    def refused(self) -> dict[str, int]:
        """Return how often there was no room, by what for."""
        return {
            "place_limit": self.room.refused,
            "match_limit": self.matching.room.refused,
            "pair_limit": self.pairs.refused,
        }
