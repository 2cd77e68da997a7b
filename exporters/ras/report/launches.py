"""Which ranks have launched less than the others, from the launch counts of a communicator's ranks. Pure.

The counts are of launches by the host, not of completions, and RAS reads the ranks' counts at different moments. In a
running job the counts differ by a few and change all the time. Only constant differences between ranks are evidence.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from exporters.ras.report import model

MAX_WAITS = 8  # Limit of recorded communicators in which a rank waits for others; one would suffice

Counts = tuple[int, ...]  # Launches by collective, in the order of COLLECTIVES


class RankLaunches(NamedTuple):
    """A rank that answered, and its launches."""

    comm_rank: int
    location: model.RankLocation
    counts: Counts


class Spread(NamedTuple):
    """A comparison of a communicator's launches. ``ahead``: locations of the ranks that have launched the most; empty
    if all have launched the same.

    ``abreast``: launches of the ranks that answer, by location; empty if all ranks answer.
    """

    launches: model.Launches
    ahead: frozenset[model.RankLocation]
    abreast: Mapping[model.RankLocation, Counts]


def compare(ranks: Sequence[RankLaunches], *, some_silent: bool = False) -> Spread | None:
    """Compare the ranks of one communicator; None before the first launch.

    ``some_silent``: other ranks do not answer, so all ranks that answer may wait for them.
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
    abreast = {rank.location: rank.counts for rank in ranks} if some_silent else {}
    if not differ:
        return Spread(model.Launches(extremes, marks, differ=False), frozenset(), abreast)
    behind, ahead = _sides(ranks)
    named = []
    for rank in sorted(behind, key=lambda rank: (sum(rank.counts), rank.comm_rank))[: model.MAX_BEHIND]:
        launched = dict(zip(model.COLLECTIVES, rank.counts, strict=True))
        lags = {name: most - launched[name] for name, (_, most) in extremes.items() if launched[name] < most}
        named.append(model.BehindRank(rank.comm_rank, rank.location, lags=lags))
    launches = model.Launches(extremes, marks, differ=True, behind=tuple(named))
    return Spread(launches, frozenset(rank.location for rank in ahead), abreast)


def note_waits(communicators: Iterable[model.Communicator], spreads: Mapping[str, Spread]) -> None:
    """Set, for each rank that is behind, the other communicators in which it may wait for other ranks.

    ``spreads``: by communicator hash.
    """
    ahead_in = _names_by_location((name, spread.ahead) for name, spread in spreads.items())
    beside_in = _names_by_location((name, spread.abreast) for name, spread in spreads.items())
    for communicator in communicators:
        going_on = spreads[communicator.hash].ahead if communicator.hash in spreads else frozenset()
        for rank in communicator.launches.behind if communicator.launches is not None else ():
            waits, beside = (
                tuple(name for name in names.get(rank.location, ()) if name != communicator.hash)[:MAX_WAITS]
                for names in (ahead_in, beside_in)
            )
            rank.waits_in, rank.beside_silent = waits, beside
            rank.overtaken_in = tuple(
                name
                for name in beside
                if any(spreads[name].abreast.get(other) == spreads[name].abreast[rank.location] for other in going_on)
            )


def _names_by_location(
    named: Iterable[tuple[str, Iterable[model.RankLocation]]],
) -> dict[model.RankLocation, list[str]]:
    """Return by location the first MAX_WAITS + 1 communicators: the current communicator may be among them."""
    names: dict[model.RankLocation, list[str]] = {}
    for name, locations in named:
        for location in locations:
            of_location = names.setdefault(location, [])
            if len(of_location) <= MAX_WAITS:
                of_location.append(name)
    return names


def _sides(ranks: Sequence[RankLaunches]) -> tuple[list[RankLaunches], list[RankLaunches]]:
    """Return the ranks behind and the ranks ahead.

    If all ranks have launched the same number of operations, but of different collectives, the majority is ahead. If
    more than half of the ranks would be behind, no rank counts as behind: the others may be too far ahead.
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


class World:
    """The largest communicator of a report, with the rank at each location."""

    def __init__(self) -> None:
        self._size = 0
        self._is_part = False
        self._ranks: dict[model.RankLocation, int] = {}

    def add(self, size: int, members: Iterable[tuple[model.RankLocation, int]]) -> None:
        """Add a communicator. A location gets no rank if the largest communicators give it different ranks.

        If the largest communicators have different members, the job is larger, and no location gets a rank.
        """
        if size < self._size or (size == self._size and self._is_part):
            return
        ranks = {location: number for location, number in members if location.host and location.pid > 0}
        if size > self._size:
            self._size, self._ranks, self._is_part = size, ranks, False
            return
        both = ranks | self._ranks
        self._is_part |= len(both) > size
        self._ranks = {at: number for at, number in both.items() if ranks.get(at, number) == number}

    def name(self, communicators: Iterable[model.Communicator]) -> None:
        """Set every named rank's rank in the largest communicator."""
        for rank in (rank for communicator in communicators for rank in communicator.ranks()):
            rank.rank = None if self._is_part else self._ranks.get(rank.location)
