"""The ranks of a whole job as its largest communicator numbers them, for those of all others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from exporters.ras.report.model import BehindRank, Communicator, MissingRank, NamedRank, Place, TroubledRank

Rank = TypeVar("Rank", MissingRank, TroubledRank, BehindRank)


class World:
    """Remembers the largest communicator of a report."""

    def __init__(self) -> None:
        self._size = 0
        self._ranks: dict[Place, int] = {}

    def see(self, size: int, members: Iterable[tuple[Place, int]]) -> None:
        """Take note of a communicator. Two of the same size that number ranks differently: the order is not told."""
        if size < self._size:
            return
        ranks = {place: number for place, number in members if place.host and place.pid > 0}
        if size > self._size:
            self._size, self._ranks = size, ranks
            return
        self._ranks = {
            place: number for place, number in (ranks | self._ranks).items() if ranks.get(place, number) == number
        }

    def name(self, found: Iterable[Communicator]) -> tuple[Communicator, ...]:
        """Give every named rank its rank in the largest communicator."""
        return tuple(self._name(each) for each in found)

    def _name(self, each: Communicator) -> Communicator:
        return _renamed(each, lambda rank: self._ranks.get(rank.place))


def as_world(each: Communicator) -> Communicator:
    """A communicator that is the whole job: its ranks are the job's, wherever they run."""
    return _renamed(each, lambda rank: rank.comm_rank)


def named_in(each: Communicator) -> list[tuple[Place, int]]:
    """Return the ranks that a communicator names: what they run on, and their numbers."""
    behind = each.launches.behind if each.launches is not None else ()
    return [(rank.place, rank.comm_rank) for rank in (*each.named, *each.troubled, *behind)]


def _renamed(each: Communicator, number: Callable[[NamedRank], int | None]) -> Communicator:
    def renamed(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
        return tuple(msgspec.structs.replace(rank, rank=number(rank)) for rank in ranks)

    launches = each.launches
    if launches is not None and launches.behind:
        launches = msgspec.structs.replace(launches, behind=renamed(launches.behind))
    return msgspec.structs.replace(each, named=renamed(each.named), troubled=renamed(each.troubled), launches=launches)
