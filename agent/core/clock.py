"""Time as a parameter, so that tests own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the agent takes time from."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC: the same for every process of one boot, so it may be kept over a restart."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()
