"""Who came last to an operation that every member has to reach before any can leave. Pure.

A rank's kernel time runs from its own start until all are done, so the last to arrive has the shortest time, and all
others waited for it: at least as long as the second shortest time is longer. See docs/decisions/0012-who-is-late.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import msgspec

from exporters.inspector.format.records import MAX_TOTAL, Total

SYNCHRONISING = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
"""Collectives whose every output needs every input. From others some members leave early."""
TIE_US = 2  # Times are whole microseconds, rounded down, of timers that often step by one
TIE_PARTS = 100  # A lead of at most the shortest time divided by this is how transfers end, not how they began
CLOCK_TIE_US = 100
"""Start times are when a polling thread saw the kernel: leads below this are left to the kernels' own times."""
CLOCK_DOUBT_US = 1000
"""Start times that differ more than this from what kernel times say are not believed: a clock was set in between."""


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


def judge(times: Sequence[Sequence[int]], starts: Sequence[Sequence[int] | None] | None = None) -> list[Arrivals]:
    """Add up what operations say of each member, by its place in their rows.

    ``times``: a row per operation, the kernel time of each member in microseconds. ``starts``: for each row the wall
    clock times at which the members' kernels were seen to start, in microseconds of one clock, or None.
    """
    members = [Arrivals() for _ in times[0]]
    floor_us = spread_us = 0
    for row, clock in zip(times, starts or repeat(None, len(times)), strict=True):
        ordered = sorted(row)
        shortest = ordered[0]
        floor_us += shortest
        spread_us += ordered[-1] - shortest
        if clock is None and ordered[1] - shortest <= TIE_US:  # as most often: spare the call
            continue
        if (found := latest(row, ordered, clock)) is not None:
            member, lateness_us = found
            members[member].last += 1
            members[member].lateness_us += lateness_us
    members[0].matched, members[0].floor_us, members[0].spread_us = len(times), floor_us, spread_us
    return members


def latest(times: Sequence[int], ordered: Sequence[int], starts: Sequence[int] | None) -> tuple[int, int] | None:
    """Return the last member to arrive and how long all others waited for it alone; None when several came last.

    ``ordered`` are ``times`` in rising order.
    """
    shortest, second = ordered[:2]
    lead_us = second - shortest
    if starts is not None:
        before, last = sorted(starts)[-2:]
        if last - before > CLOCK_TIE_US and abs(last - before - lead_us) <= CLOCK_DOUBT_US:
            return starts.index(last), last - before
    if lead_us <= TIE_US or lead_us * TIE_PARTS <= shortest:
        return None
    return times.index(shortest), lead_us
