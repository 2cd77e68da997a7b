"""A clock that a test sets."""

from __future__ import annotations


class FakeClock:
    """A clock that starts at 1000 monotonic seconds and 1.7e9 wall seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.epoch = 1_699_999_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.epoch

    def advance(self, seconds: float) -> None:
        self.now += seconds
