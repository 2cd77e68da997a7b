"""The accumulators for records: totals, windows, transfer times. Pure.

An operation's time on a rank includes its wait for the latest rank. Means over minutes mostly show these waits. Within
a few seconds, a rank's shortest operation has almost no wait; the shortest time of all ranks is the fabric's own time.
"""

from __future__ import annotations

import copy
from array import array
from dataclasses import dataclass
from itertools import islice

import msgspec

from agent.sdk.ranks import WriterKey
from exporters.inspector.format.records import MAX_TOTAL, Total
from exporters.inspector.totals.matching import Arrivals

Member = tuple[WriterKey, str, int]  # A writer, a communicator, and a rank in it


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

    def plus(self, other: Accumulator) -> Accumulator:
        """Return the sum of both."""
        total = copy.copy(self)
        total.add(other.operations, other.message_bytes, other.microseconds, other.bus_bytes)
        if other.arrivals is not None:
            total.arrivals = other.arrivals if self.arrivals is None else self.arrivals.plus(other.arrivals)
        return total


@dataclass(slots=True, eq=False)
class Window:
    """Bus bandwidth of one (communicator, rank, collective) over the last window with data."""

    last: tuple[int, int] | None = None
    bus_bytes: int = 0
    microseconds: int = 0

    def roll(self) -> None:
        """End the window; if it has no data, keep the last window."""
        if self.microseconds:
            self.last = (self.bus_bytes, self.microseconds)
            self.bus_bytes = self.microseconds = 0

    def latest(self) -> tuple[int, int] | None:
        """Return bus bytes and microseconds of the last window with data, else of the running window, else None."""
        return (self.bus_bytes, self.microseconds) if self.last is None and self.microseconds else self.last


QUANTILE = 0.1  # Low enough to leave out waits, high enough that one odd record among ten or more has no effect
MAX_SAMPLES = 256  # Limit of times per window, 2 KiB; above it, only every second time is kept, then every fourth
ROLLS = 2  # A transfer window lasts at least this number of the reader's windows (5 s) ...
MIN_SAMPLES = 3  # ... and until it has this number of operations ...
MAX_ROLLS = 12  # ... but no longer than this (60 s): with fewer operations it has no value


class TransferWindow:
    """The times of one rank's operations of one kind. ``last_us``: last window's percentile; None if it is old."""

    __slots__ = ("_age", "_rolls", "_skip", "_step", "last_us", "times")

    def __init__(self) -> None:
        self.last_us: int | None = None
        self._age = 0
        self._reset()

    def _reset(self) -> None:
        self.times: array[int] = array("q")
        self._step = 1
        self._skip = self._rolls = 0

    def add(self, times: list[int]) -> None:
        """Add the times of operations in microseconds."""
        if self._step == 1:
            self.times.extend(times)
        else:
            self.times.extend(islice(times, self._skip, None, self._step))
            self._skip = (self._skip - len(times)) % self._step
        while len(self.times) > MAX_SAMPLES:
            self.times = self.times[::2]
            self._step *= 2

    def roll(self) -> None:
        """Count one more roll (5 s): end the window if it is long enough, and drop ``last_us`` when it is old."""
        self._rolls += 1
        self._age += 1
        count = len(self.times)
        if self._rolls >= ROLLS and count >= MIN_SAMPLES:
            self.last_us = sorted(self.times)[int(QUANTILE * count)]
            self._age = 0
            self._reset()
        elif self._rolls >= MAX_ROLLS:
            self._reset()
        if self._age >= MAX_ROLLS:
            self.last_us = None
