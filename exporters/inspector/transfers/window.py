"""How long operations take without any waiting: a low percentile over a short window. Pure.

An operation's time on a rank holds its wait for the last one. Means over minutes are made of these waits; of a few
seconds' operations on one rank, the shortest has (nearly) no wait, and that of all ranks is the fabric's.
"""

from __future__ import annotations

from array import array
from itertools import islice

QUANTILE = 0.1
"""Low enough to leave out waits, high enough that a single odd record of ten and more says nothing."""
MAX_SAMPLES = 256
"""Times kept of a window, 2 KiB: of more operations every second, fourth ... is taken."""
ROLLS = 2
"""The reader's windows (5 s) that one of these lasts at least ..."""
MIN_SAMPLES = 3
"""... and until it has this number of operations ..."""
MAX_ROLLS = 12
"""... but no longer than these (60 s): fewer operations give no value."""


class TransferWindow:
    """The times of one rank's operations of one kind; ``last_us`` is the percentile of the last window, if recent."""

    __slots__ = ("_rolls", "_skip", "_step", "_times", "_told", "last_us")

    def __init__(self) -> None:
        self._times: array[int] = array("q")
        self._step = 1
        self._skip = 0
        self._rolls = 0
        self._told = 0
        self.last_us: int | None = None

    def add(self, times: list[int]) -> None:
        """Take in the times of operations in microseconds."""
        if self._step == 1:
            self._times.extend(times)
        else:
            self._times.extend(islice(times, self._skip, None, self._step))
            self._skip = (self._skip - len(times)) % self._step
        while len(self._times) > MAX_SAMPLES:
            self._times = self._times[::2]
            self._step *= 2

    def kept(self) -> int:
        """Return how many times are kept."""
        return len(self._times)

    def roll(self) -> None:
        """Five seconds are over: end the window if it is long enough, and forget the last one when it is old."""
        self._rolls += 1
        self._told += 1
        count = len(self._times)
        if self._rolls >= ROLLS and count >= MIN_SAMPLES:
            self.last_us = sorted(self._times)[int(QUANTILE * count)]
            self._told = 0
            self._clear()
        elif self._rolls >= MAX_ROLLS:
            self._clear()
        if self._told >= MAX_ROLLS:
            self.last_us = None

    def _clear(self) -> None:
        self._times = array("q")
        self._step = 1
        self._skip = self._rolls = 0
