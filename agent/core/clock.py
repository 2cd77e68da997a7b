"""The clock, which tests replace, and the lag of the event loop."""

import asyncio
import time
from collections import deque

PROBE_SECONDS = 0.25  # Each probe wakes the idle loop: few probes, but enough to measure the alert's lag of 1 s
WINDOW_SECONDS = 60.0


class Clock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return seconds since the boot (CLOCK_BOOTTIME), the clock of process start times; equal in every process."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


class LoopLag:
    """Measures how late short timers fire, and keeps the peaks that can become the maximum of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peaks: deque[tuple[float, float]] = deque()

    def begin(self) -> None:
        """Measure from now on, while the loop runs."""
        asyncio.get_running_loop().call_later(PROBE_SECONDS, self._probe, self._clock.monotonic())

    def _probe(self, before: float) -> None:
        now = self._clock.monotonic()
        self.note(now - before - PROBE_SECONDS, now)
        self.begin()

    def note(self, lag_seconds: float, now: float) -> None:
        """Note one measurement from time ``now``."""
        while self._peaks and self._peaks[-1][1] <= lag_seconds:
            self._peaks.pop()
        self._peaks.append((now, max(lag_seconds, 0.0)))

    def seconds(self) -> float:
        """Return the greatest lag of the last minute."""
        horizon = self._clock.monotonic() - WINDOW_SECONDS
        while self._peaks and self._peaks[0][0] < horizon:
            self._peaks.popleft()
        return self._peaks[0][1] if self._peaks else 0.0
