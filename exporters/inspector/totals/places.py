"""The places (communicator, rank in it) of one writer that get accumulators of their own. Pure."""

from __future__ import annotations

from collections import Counter

from exporters.inspector.totals.shared import PlaceBudget

MAX_COMMUNICATORS = 64
"""Per writer; records of further ones are added up under `other`."""
MAX_PLACES = 256
"""Per writer, and as many memberships."""
MAX_RANKS_PER_WRITER = 16
"""More GPUs than this no process drives: a writer that names more ranks gets no larger budget."""


class Places:
    """A broken writer may make up millions. ``ranks``: as many as it has in one communicator have a budget each."""

    def __init__(self, room: PlaceBudget) -> None:
        self.ranks = 1
        self._room = room
        self._places: set[tuple[str, int]] = set()
        self._of_communicator: Counter[str] = Counter()

    def have(self, comm: str, comm_rank: int) -> bool:
        """Whether this is one of the places; a new one is, while there is room."""
        if (comm, comm_rank) in self._places:
            return True
        known = comm in self._of_communicator
        if len(self._places) >= MAX_PLACES or (not known and len(self._of_communicator) >= MAX_COMMUNICATORS):
            return False
        if not self._room.take():
            return False
        self._places.add((comm, comm_rank))
        self._of_communicator[comm] += 1
        self.ranks = min(MAX_RANKS_PER_WRITER, max(self.ranks, self._of_communicator[comm]))
        return True

    def leave(self, comms: frozenset[str] | None = None) -> None:
        """Give back the room of some communicators' places, or of all."""
        gone = {place for place in self._places if comms is None or place[0] in comms}
        self._places -= gone
        self._room.taken -= len(gone)
        for comm in {comm for comm, _ in gone}:
            del self._of_communicator[comm]
