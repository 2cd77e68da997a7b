"""The places (communicator, rank in it) of one writer that get accumulators of their own. Pure."""

from __future__ import annotations

from collections import Counter

from agent.sdk.metrics import FairBudget, Group

MAX_COMMUNICATORS = 64
"""Per writer; records of further ones are added up under `other`."""
MAX_PLACES = 256
"""Per writer, and as many memberships."""
MAX_RANKS_PER_WRITER = 16
"""More GPUs than this no process drives: a writer that names more ranks gets no larger budget."""


class Places:
    """A broken writer may make up millions. ``ranks``: as many as it has in one communicator have a budget each.

    ``group`` says whose writer it is.
    """

    def __init__(self, room: FairBudget, group: Group = ()) -> None:
        self.ranks = 1
        self._group = group
        self._room = room
        self._places: set[tuple[str, int]] = set()
        self._of_communicator: Counter[str] = Counter()

    def have(self, comm: str, comm_rank: int) -> bool:
        """Return whether this is one of the places; a new one is, while there is room."""
        if (comm, comm_rank) in self._places:
            return True
        known = comm in self._of_communicator
        if len(self._places) >= MAX_PLACES or (not known and len(self._of_communicator) >= MAX_COMMUNICATORS):
            return False
        if not self._room.take(self._group):
            return False
        self._note(comm, comm_rank)
        return True

    def keep(self, comm: str, comm_rank: int) -> None:
        """Take back one that it had before the agent's restart, however little room there is now."""
        if (comm, comm_rank) not in self._places:
            self._room.keep(self._group, 1)
            self._note(comm, comm_rank)

    def _note(self, comm: str, comm_rank: int) -> None:
        self._places.add((comm, comm_rank))
        self._of_communicator[comm] += 1
        self.ranks = min(MAX_RANKS_PER_WRITER, max(self.ranks, self._of_communicator[comm]))

    def leave(self, comms: frozenset[str] | None = None) -> None:
        """Give back the room of some communicators' places, or of all."""
        gone = {place for place in self._places if comms is None or place[0] in comms}
        self._places -= gone
        self._room.give_back(self._group, len(gone))
        for comm in {comm for comm, _ in gone}:
            del self._of_communicator[comm]
