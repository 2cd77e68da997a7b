"""Who came last to an operation that every member has to reach before any can leave. Pure.

A rank's kernel time runs from its own start until all are done, so the last to arrive has the shortest time, and all
others waited for it: at least as long as the second shortest time is longer. See docs/decisions/0012-who-is-late.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from exporters.inspector.format.records import MAX_TOTAL, Total

SYNCHRONISING = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
"""Collectives whose every output needs every input. From others some members leave early."""
TIE_US = 2  # Times are whole microseconds, rounded down, of timers that often step by one
TIE_PARTS = 100  # A lead of at most the shortest time divided by this is how transfers end, not how they began


class Arrivals(msgspec.Struct, gc=False, array_like=True):
    """What matched operations say: of one rank the first two, of its whole communicator the others.

    The communicator's are kept with its rank 0, and 0 with the other ranks.
    """

    last: Total = 0
    lateness_us: Total = 0
    matched: Total = 0
    unmatched: Total = 0
    floor_us: Total = 0
    spread_us: Total = 0

    def plus(self, other: Arrivals) -> Arrivals:
        """Both together."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Arrivals(*(min(MAX_TOTAL, one + another) for one, another in pairs))


def judge(times: Sequence[Sequence[int]]) -> list[Arrivals]:
    """Add up what operations say of each member, by its place in their rows.

    ``times``: a row per operation, the kernel time of each member in microseconds.
    """
    members = [Arrivals() for _ in times[0]]
    floor_us = spread_us = 0
    for row in times:
        ordered = sorted(row)
        shortest, lead_us = ordered[0], ordered[1] - ordered[0]
        floor_us += shortest
        spread_us += ordered[-1] - shortest
        if lead_us > TIE_US and lead_us * TIE_PARTS > shortest:  # else several came last
            last = members[row.index(shortest)]
            last.last += 1
            last.lateness_us += lead_us
    members[0].matched, members[0].floor_us, members[0].spread_us = len(times), floor_us, spread_us
    return members
