"""How long collectives took, counted in buckets: what a job's ranks on this node did together. Pure.

Counted since the agent's start, as nothing of it is in the checkpoint: after a restart all counters begin at 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from agent.sdk.ranks import RankLabel, WriterKey
from exporters.inspector.format.series import SeriesKey

BOUNDS_US = tuple(digit * 10**power for power in range(1, 7) for digit in (1, 2, 5))
"""Upper bounds of the buckets in microseconds, inclusive: 10 us to 5 s in steps of 1, 2, 5."""
BOUND_LABELS = (*(repr(bound / 1_000_000) for bound in BOUNDS_US), "+Inf")
"""The same in seconds, as the label `le` has them."""
MAX_HISTOGRAMS = 256
"""Shown of one node; of all collectives in all size classes a job could have 126."""


class JobSeries(NamedTuple):
    """What ranks' durations are added up under."""

    job_id: str
    collective: str
    size: str


class Durations:
    """Operations by bucket, each without those of the buckets before, and their time."""

    __slots__ = ("counts", "microseconds")

    def __init__(self) -> None:
        self.counts = [0] * len(BOUND_LABELS)
        self.microseconds = 0

    def add(self, times: Iterable[int]) -> None:
        """Add operations that took ``times`` microseconds."""
        for time in times:
            self.counts[bisect_left(BOUNDS_US, time)] += 1
            self.microseconds += time

    def add_all(self, other: Durations) -> None:
        """Take in what others add up to."""
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.microseconds += other.microseconds

    def copy(self) -> Durations:
        """A copy that later operations do not reach."""
        made = Durations()
        made.add_all(self)
        return made

    def cumulative(self) -> list[int]:
        """Operations up to each bound; the last are all."""
        return list(accumulate(self.counts))


class JobDurations:
    """Durations of all ranks of each job."""

    def __init__(self) -> None:
        self.by_series: dict[JobSeries, Durations] = {}

    def take(
        self,
        writer_key: WriterKey,
        durations: Iterable[tuple[SeriesKey, Durations]],
        labels: dict[tuple[WriterKey, str, int], RankLabel],
    ) -> None:
        """Add a writer's."""
        for key, own in durations:
            if (label := labels.get((writer_key, key.comm, key.comm_rank))) is not None:
                series = JobSeries(label.job_id, key.collective, key.size)
                self.by_series.setdefault(series, Durations()).add_all(own)

    def keep(self, job_ids: frozenset[str]) -> None:
        """Drop those of all other jobs."""
        self.by_series = {series: own for series, own in self.by_series.items() if series.job_id in job_ids}

    def copy(self) -> JobDurations:
        """A copy that later changes do not reach."""
        made = JobDurations()
        made.by_series = {series: own.copy() for series, own in self.by_series.items()}
        return made

    def shown(self) -> list[tuple[JobSeries, Durations]]:
        """MAX_HISTOGRAMS of them at most, in a fixed order."""
        return sorted(self.by_series.items())[:MAX_HISTOGRAMS]
