"""Records whose bandwidth could be a wire's and yet can hardly be true: counted apart, and exported as they are. Pure.

RCCL's first Inspector builds divide 10 ns ticks by 1000 and show a tenth of the time, so ten times the bandwidth. No
key of a line tells. See docs/decisions/0013-implausible-records.md.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND = 2000.0
"""More than twice an NVLink 5 (900 GB/s), less than ten times the slowest of the links inside a node."""
_BYTES_PER_US_PER_GIGABYTE_PER_SECOND = 1000


class Plausibility:
    """The bound, and how many records of one reader were beyond it."""

    def __init__(self, gigabytes_per_second: float = MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND) -> None:
        self._bytes_per_us = max(1, int(gigabytes_per_second * _BYTES_PER_US_PER_GIGABYTE_PER_SECOND))
        self.implausible = 0

    def least_us(self, bus_bytes: int) -> int:
        """Return the shortest plausible time (us) of an operation that moves ``bus_bytes`` of bus bandwidth."""
        return -(-bus_bytes // self._bytes_per_us)

    def note(self, times: Sequence[int], least_us: int) -> None:
        """Count the operations that took less than ``least_us``."""
        self.implausible += sum(time < least_us for time in times)
