"""State that all writers of one reader share: limits of places, members and pairs, and the plausible bandwidth.

100 ticks of 10 ns are a microsecond, but RCCL's first Inspector builds divide the ticks by 1000. So they report a tenth
of the time and ten times the bandwidth. No key of a line shows this. See docs/decisions/0013-implausible-records.md.
"""

from __future__ import annotations

from collections import Counter

from agent.sdk.metrics import FairBudget, Group
from exporters.inspector.format.records import SeriesKey
from exporters.inspector.totals.matching import Arrivals, Matching
from exporters.inspector.totals.pairs import MAX_MEASURED_IN_ALL

MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND = 2000.0
"""More than twice NVLink 5's bandwidth (900 GB/s), less than ten times the bandwidth of a node's slowest links."""
_BYTES_PER_US_PER_GIGABYTE_PER_SECOND = 1000
SERIES_PER_ACCUMULATOR = 4
SERIES_PER_GAUGE = 1
SERIES_PER_RANKS_ARRIVALS = 2
SERIES_PER_COMMUNICATORS_ARRIVALS = 4
MAX_COMMUNICATORS = 64  # Per writer; records of further communicators count under `other`
MAX_PLACES = 256  # Per writer; further places get no membership
MAX_RANKS_PER_WRITER = 16  # No process drives more GPUs: a writer with more ranks gets no larger budget
MAX_PLACES_IN_ALL = 4096
"""Limit of places (communicator, rank in it) of one reader; each place can have an accumulator per collective."""


def series_of_arrivals(comm_rank: int) -> int:
    """Return how many series of the budget a rank's matched operations of one kind take, shown or not."""
    return SERIES_PER_RANKS_ARRIVALS + (SERIES_PER_COMMUNICATORS_ARRIVALS if comm_rank == 0 else 0)


def series_of(key: SeriesKey, arrivals: Arrivals | None) -> int:
    """Return how many series an admitted accumulator takes."""
    return SERIES_PER_ACCUMULATOR + (0 if arrivals is None else series_of_arrivals(key.comm_rank))


class Places:
    """The places (communicator, rank in it) of one writer that get accumulators of their own.

    A broken writer can invent millions of places. ``ranks``: the writer's largest number of ranks in one communicator;
    each rank has a series budget. ``group``: the writer's user and directory.
    """

    def __init__(self, room: FairBudget, group: Group = ()) -> None:
        self.ranks = 1
        self._group = group
        self._room = room
        self._places: set[tuple[str, int]] = set()
        self._of_communicator: Counter[str] = Counter()

    def claim(self, comm: str, comm_rank: int) -> bool:
        """Return True if the writer has this place or gets it now; False when no place is left."""
        if (comm, comm_rank) in self._places:
            return True
        is_full = len(self._places) >= MAX_PLACES
        is_full |= comm not in self._of_communicator and len(self._of_communicator) >= MAX_COMMUNICATORS
        if is_full or not self._room.take(self._group):
            return False
        self._note(comm, comm_rank)
        return True

    def keep(self, comm: str, comm_rank: int) -> None:
        """Restore a place from before the agent's restart, even beyond the limit."""
        if (comm, comm_rank) not in self._places:
            self._room.keep(self._group, 1)
            self._note(comm, comm_rank)

    def _note(self, comm: str, comm_rank: int) -> None:
        self._places.add((comm, comm_rank))
        self._of_communicator[comm] += 1
        self.ranks = min(MAX_RANKS_PER_WRITER, max(self.ranks, self._of_communicator[comm]))

    def leave(self, comms: frozenset[str] | None = None) -> None:
        """Release the places of the communicators ``comms``, or of all."""
        released = {place for place in self._places if comms is None or place[0] in comms}
        self._places -= released
        self._room.give_back(self._group, len(released))
        for comm in {comm for comm, _ in released}:
            del self._of_communicator[comm]


class Shared:
    """The limits of places, pairs and matched operations, and the bound of plausible bandwidth.

    ``implausible``: number of records above the bound. ``histograms``: count operations by duration. ``by_algorithm``:
    count operations by algorithm and protocol.
    """

    def __init__(
        self,
        gigabytes_per_second: float = MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND,
        *,
        histograms: bool = False,
        by_algorithm: bool = False,
    ) -> None:
        self.room = FairBudget(MAX_PLACES_IN_ALL)
        self.pairs = FairBudget(MAX_MEASURED_IN_ALL)
        self.matching = Matching()
        self.histograms, self.by_algorithm = histograms, by_algorithm
        self.plausible_bytes_per_us = max(1, int(gigabytes_per_second * _BYTES_PER_US_PER_GIGABYTE_PER_SECOND))
        self.implausible = 0

    def refused(self) -> dict[str, int]:
        """Return how often each limit refused something, by the limit's name."""
        rooms = {"place_limit": self.room, "match_limit": self.matching.room, "pair_limit": self.pairs}
        return {name: room.refused for name, room in rooms.items()}
