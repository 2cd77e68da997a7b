"""The accumulators that records are added up in. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from exporters.inspector.format.records import MAX_SEQUENCE_NUMBER
from exporters.inspector.format.series import MAX_TOTAL, Total
from exporters.inspector.lateness.arrivals import Arrivals

REORDER = 1024
"""How far `coll_sn` may fall behind the highest seen (one ring of the plugin) before it counts as restarted."""


class Accumulator(msgspec.Struct, gc=False, array_like=True):
    """Totals since the first record; each stops at MAX_TOTAL. ``arrivals`` is None until an operation was matched."""

    operations: Total = 0
    message_bytes: Total = 0
    microseconds: Total = 0
    bus_bytes: Total = 0
    arrivals: Arrivals | None = None

    def add(self, operations: int, message_bytes: int, microseconds: int, bus_bytes: int) -> None:
        """Add the sums of some operations."""
        self.operations = min(MAX_TOTAL, self.operations + operations)
        self.message_bytes = min(MAX_TOTAL, self.message_bytes + message_bytes)
        self.microseconds = min(MAX_TOTAL, self.microseconds + microseconds)
        self.bus_bytes = min(MAX_TOTAL, self.bus_bytes + bus_bytes)


class Sequence(msgspec.Struct, gc=False, array_like=True):
    """`coll_sn` of one (communicator, rank, collective): what is not there although a later one is.

    ``first`` is None until a record came, unless the numbers are known to begin at 0. ``missing`` never falls: a record
    that comes late lowers what the next gap adds.
    """

    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE_NUMBER)] | None
    highest: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE_NUMBER)] = -1
    seen: Total = 0
    before: Total = 0
    missing: Total = 0
    seen_before: Total = 0

    def add(self, lowest: int, highest: int, count: int) -> None:
        """Take in the numbers of ``count`` records, in any order."""
        if highest + REORDER < self.highest:  # restarted
            self.seen_before = self.seen_in_all()
            self.before, self.first, self.highest, self.seen = self.missing, lowest, highest, 0
        self.first = lowest if self.first is None else min(self.first, lowest)
        self.highest = max(self.highest, highest)
        self.seen = min(MAX_TOTAL, self.seen + count)

    def fill(self) -> None:
        """Take in a record whose number cannot be true: it fills one of the gaps."""
        self.seen = min(MAX_TOTAL, self.seen + 1)

    def seen_in_all(self) -> int:
        """Records taken in since the first."""
        return min(MAX_TOTAL, self.seen_before + self.seen)

    def gaps(self) -> int:
        """All that is missing as it stands: a record under way may still fill a gap."""
        if self.first is None or self.highest < 0:
            return self.missing
        return min(MAX_TOTAL, max(self.missing, self.before + self.highest - self.first + 1 - self.seen))

    def settle(self) -> int:
        """Count the gaps, when no record is under way; return all that is missing."""
        self.missing = self.gaps()
        return self.missing


class Window:
    """Bus bandwidth over the last window with data, of one (communicator, rank, collective)."""

    __slots__ = ("bus_bytes", "last", "microseconds")

    def __init__(self) -> None:
        self.last: tuple[int, int] | None = None
        self.bus_bytes = 0
        self.microseconds = 0

    def roll(self) -> None:
        """End the window; one without data leaves the last as it is."""
        if self.microseconds:
            self.last = (self.bus_bytes, self.microseconds)
            self.bus_bytes = self.microseconds = 0

    def latest(self) -> tuple[int, int] | None:
        """Bus bytes and microseconds of the last window with data; of the first one while it lasts; None before."""
        if self.last is None and self.microseconds:
            return self.bus_bytes, self.microseconds
        return self.last
