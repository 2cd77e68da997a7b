"""What goes wrong in made-up jobs: ranks that are late, links that are slow, each from when to when.

Times are seconds since the job's begin. A trouble is asked once for each step of the job, by its time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

TRANSFER = 1.0
"""The factor of a transfer on links that are well."""


class Delay(NamedTuple):
    """A rank computes so much longer in a step: before each operation alike, or all of it before the first."""

    rank: int
    seconds: float
    spread: bool


Lateness = Callable[[float, float, random.Random], list[Delay]]
"""Takes the time, how long a healthy step takes, and chance; returns the delays of the step that begins then."""


def seconds_of(share: float, step_seconds: float) -> float:
    """Return the delay per step that takes ``share`` of wall time, itself included."""
    return step_seconds * share / (1.0 - share)


class Straggler(NamedTuple):
    """One rank, late by a share of wall time for good."""

    rank: int
    share: float
    onset: float
    spread: bool

    def __call__(self, now: float, step_seconds: float, _: random.Random) -> list[Delay]:
        """Return its delay."""
        return [Delay(self.rank, seconds_of(self.share, step_seconds), self.spread)] if now >= self.onset else []


class Turns(NamedTuple):
    """Every rank of ``order`` in turn, each for ``seconds``."""

    order: tuple[int, ...]
    share: float
    onset: float
    seconds: float

    def __call__(self, now: float, step_seconds: float, _: random.Random) -> list[Delay]:
        """Return the delay of the rank whose turn it is."""
        if now < self.onset:
            return []
        rank = self.order[int((now - self.onset) / self.seconds) % len(self.order)]
        return [Delay(rank, seconds_of(self.share, step_seconds), spread=True)]


class Pause:
    """One rank stands still once, for ``seconds``."""

    def __init__(self, rank: int, onset: float, seconds: float) -> None:
        self.rank, self.onset, self.seconds = rank, onset, seconds
        self._over = False

    def __call__(self, now: float, _step_seconds: float, _: random.Random) -> list[Delay]:
        """Return the pause, once."""
        if self._over or now < self.onset:
            return []
        self._over = True
        return [Delay(self.rank, self.seconds, spread=False)]


class SlowWhile(NamedTuple):
    """One rank is late by a share of wall time, but only for ``seconds``."""

    rank: int
    share: float
    onset: float
    seconds: float

    def __call__(self, now: float, step_seconds: float, _: random.Random) -> list[Delay]:
        """Return its delay while that lasts."""
        if not self.onset <= now < self.onset + self.seconds:
            return []
        return [Delay(self.rank, seconds_of(self.share, step_seconds), spread=True)]


class Uneven(NamedTuple):
    """In each step another rank, by chance, loads its data for a share of wall time longer."""

    ranks: int
    share: float

    def __call__(self, _now: float, step_seconds: float, chance: random.Random) -> list[Delay]:
        """Return the delay of the rank that it is in this step."""
        return [Delay(chance.randrange(self.ranks), seconds_of(self.share, step_seconds), spread=False)]


class Slowness(Protocol):
    """Tells how much longer a communicator's transfer takes that begins at a time."""

    def __call__(self, number: int, now: float) -> float:
        """Return the factor for communicator ``number`` of the layout."""


class SlowLinks(NamedTuple):
    """Transfers of some communicators take ``factor`` times as long: for good, or every other ``period`` seconds."""

    numbers: frozenset[int]
    factor: float
    onset: float
    period: float | None = None

    def __call__(self, number: int, now: float) -> float:
        """Return the factor."""
        if number not in self.numbers or now < self.onset:
            return TRANSFER
        if self.period is not None and int((now - self.onset) / self.period) % 2 == 1:
            return TRANSFER
        return self.factor


class Troubles(NamedTuple):
    """All that goes wrong in one job."""

    lateness: tuple[Lateness, ...] = ()
    slowness: tuple[Slowness, ...] = ()
