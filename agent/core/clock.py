"""Time as a parameter, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the agent takes time from."""

    def monotonic(self) -> float:
        """Seconds since the boot (CLOCK_BOOTTIME): the same for every process of one boot, also after a restart."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_BOOTTIME, the clock of processes' start times."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()
