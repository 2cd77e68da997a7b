"""Which ranks have launched less than the others, from the launch counts of a communicator's ranks. Pure.

The counts are of launches by the host, not of completions, and every rank is read at its own instant: in a job that
runs they differ by a few and change all the time. Only counts that differ and do not change mean something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from exporters.ras.report import model

MAX_WAITS = 8  # Communicators named in which one rank waits for others: one would do

Counts = tuple[int, ...]  # Launches by collective, in the order of COLLECTIVES


class RankLaunches(NamedTuple):
    """A rank that answered, and what it has launched."""

    comm_rank: int
    place: model.Place
    counts: Counts


class Spread(NamedTuple):
    """How the launches of a communicator compare; ``ahead``: where the ranks run that wait for others, if any do.

    ``abreast``: what those have launched that answer, by where they run, if others do not answer.
    """

    launches: model.Launches
    ahead: frozenset[model.Place]
    abreast: Mapping[model.Place, Counts]


def compare(ranks: Sequence[RankLaunches], *, some_silent: bool = False) -> Spread | None:
    """Compare the ranks of one communicator; None when none has launched anything yet, which says nothing.

    ``some_silent``: others of the communicator do not answer, so that all that do may wait for them.
    """
    if not any(any(rank.counts) for rank in ranks):
        return None
    extremes = {}
    for number, name in enumerate(model.COLLECTIVES):
        of_ranks = [rank.counts[number] for rank in ranks]
        if max(of_ranks):
            extremes[name] = (min(of_ranks), max(of_ranks))
    marks = model.marks_of((rank.comm_rank, rank.counts) for rank in ranks)
    differ = any(least < most for least, most in extremes.values())
    abreast = {rank.place: rank.counts for rank in ranks} if some_silent else {}
    if not differ:
        return Spread(model.Launches(extremes, marks, differ=False), frozenset(), abreast)
    behind, ahead = _sides(ranks)
    most = [extremes.get(name, (0, 0))[1] for name in model.COLLECTIVES]
    named = tuple(_behind(rank, most) for rank in sorted(behind, key=_far_behind)[: model.MAX_BEHIND])
    launches = model.Launches(extremes, marks, differ=True, behind=named)
    return Spread(launches, frozenset(rank.place for rank in ahead), abreast)


def with_waits(found: Iterable[model.Communicator], spreads: Mapping[str, Spread]) -> tuple[model.Communicator, ...]:
    """Note of every rank that is behind in which other communicators it is ahead, or has silent ranks beside it.

    ``spreads``: by hash.
    """
    return tuple(_with_waits(each, spreads) for each in found)


def _with_waits(each: model.Communicator, spreads: Mapping[str, Spread]) -> model.Communicator:
    if each.launches is None or not each.launches.behind:
        return each
    going_on = spreads[each.hash].ahead if each.hash in spreads else frozenset()
    behind = []
    for rank in each.launches.behind:
        others = [(name, spread) for name, spread in spreads.items() if name != each.hash]
        waits = [name for name, spread in others if rank.place in spread.ahead]
        beside = [(name, spread.abreast) for name, spread in others if rank.place in spread.abreast][:MAX_WAITS]
        overtaken = [name for name, abreast in beside if _is_overtaken(rank.place, abreast, going_on)]
        behind.append(
            msgspec.structs.replace(
                rank,
                waits_in=tuple(waits[:MAX_WAITS]),
                beside_silent=tuple(name for name, _ in beside),
                overtaken_in=tuple(overtaken),
            )
        )
    launches = msgspec.structs.replace(each.launches, behind=tuple(behind))
    return msgspec.structs.replace(each, launches=launches)


def _is_overtaken(place: model.Place, abreast: Mapping[model.Place, Counts], going_on: Iterable[model.Place]) -> bool:
    return any(abreast.get(other) == abreast[place] for other in going_on)


def _sides(ranks: Sequence[RankLaunches]) -> tuple[list[RankLaunches], list[RankLaunches]]:
    """Those behind and those ahead. Where all have launched as many, but not the same, the majority is right.

    The behind are few: when they are more than the others, the others may as well be too far, and no rank is named.
    """
    totals = [sum(rank.counts) for rank in ranks]
    most = max(totals)
    if min(totals) < most:
        ahead = [rank for rank, total in zip(ranks, totals, strict=True) if total == most]
        behind = [rank for rank, total in zip(ranks, totals, strict=True) if total < most]
    else:
        usual, _ = Counter(rank.counts for rank in ranks).most_common(1)[0]
        ahead = [rank for rank in ranks if rank.counts == usual]
        behind = [rank for rank in ranks if rank.counts != usual]
    return (behind if 2 * len(behind) <= len(ranks) else []), ahead


def _far_behind(rank: RankLaunches) -> tuple[int, int]:
    return sum(rank.counts), rank.comm_rank


def _behind(rank: RankLaunches, most: Sequence[int]) -> model.BehindRank:
    lags = {name: most[n] - rank.counts[n] for n, name in enumerate(model.COLLECTIVES) if rank.counts[n] < most[n]}
    return model.BehindRank(rank.comm_rank, rank.place, lags=lags)


Rank = TypeVar("Rank", model.MissingRank, model.TroubledRank, model.BehindRank)


class World:
    """Remembers the largest communicator of a report."""

    def __init__(self) -> None:
        self._size = 0
        self._ranks: dict[model.Place, int] = {}

    def see(self, size: int, members: Iterable[tuple[model.Place, int]]) -> None:
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

    def name(self, found: Iterable[model.Communicator]) -> tuple[model.Communicator, ...]:
        """Give every named rank its rank in the largest communicator."""
        return tuple(self._name(each) for each in found)

    def _name(self, each: model.Communicator) -> model.Communicator:
        return _renamed(each, lambda rank: self._ranks.get(rank.place))


def as_world(each: model.Communicator) -> model.Communicator:
    """A communicator that is the whole job: its ranks are the job's, wherever they run."""
    return _renamed(each, lambda rank: rank.comm_rank)


def named_in(each: model.Communicator) -> list[tuple[model.Place, int]]:
    """Return the ranks that a communicator names: what they run on, and their numbers."""
    behind = each.launches.behind if each.launches is not None else ()
    return [(rank.place, rank.comm_rank) for rank in (*each.named, *each.troubled, *behind)]


def _renamed(each: model.Communicator, number: Callable[[model.NamedRank], int | None]) -> model.Communicator:
    def renamed(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
        return tuple(msgspec.structs.replace(rank, rank=number(rank)) for rank in ranks)

    launches = each.launches
    if launches is not None and launches.behind:
        launches = msgspec.structs.replace(launches, behind=renamed(launches.behind))
    return msgspec.structs.replace(each, named=renamed(each.named), troubled=renamed(each.troubled), launches=launches)
