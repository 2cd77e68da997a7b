"""A clock that tests move."""

from __future__ import annotations


class FakeClock:
    """Monotonic seconds from 1000, wall seconds from 1.7e9."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1_699_999_000.0

    def advance(self, seconds: float) -> None:
        self.now += seconds
