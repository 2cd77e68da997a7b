"""Communicators that a live writer has done with: their series end after hours, and no sum falls. Pure.

A process that goes on for days makes and destroys communicators. Nothing in the lines says that one is gone, so one of
which no record came for IDLE_SECONDS is let go: what it leaves in the rank's `other` and missing records goes to the
inheritance, as that of a writer that is gone.
"""

from __future__ import annotations

from collections import Counter

from exporters.inspector.format.records import OTHER
from exporters.inspector.totals.aggregate import Aggregate

IDLE_SECONDS = 21_600.0
"""Six hours: longer than any checkpoint, evaluation or queue between two uses of a communicator should take."""
LOOK_SECONDS = 300.0


class IdleWatch:
    """Watches one writer's communicators; the time begins anew when the agent restarts."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def look(self, aggregate: Aggregate, now: float) -> frozenset[str]:
        """Return the communicators without a record for IDLE_SECONDS, and forget them."""
        activity = activity_of(aggregate)
        seen = {}
        for comm, count in activity.items():
            before = self._seen.get(comm)
            seen[comm] = before if before is not None and before[0] == count else (count, now)
        idle = frozenset(comm for comm, (_, since) in seen.items() if now - since >= IDLE_SECONDS and comm != OTHER)
        self._seen = {comm: entry for comm, entry in seen.items() if comm not in idle}
        return idle


def activity_of(aggregate: Aggregate) -> Counter[str]:
    """A number by communicator that changes with each of its records."""
    counts: Counter[str] = Counter()
    for key, accumulator in aggregate.accumulators.items():
        counts[key.comm] += accumulator.operations
    for (comm, _, _), sequence in aggregate.sequences.items():
        counts[comm] += sequence.seen_in_all()
    return counts
