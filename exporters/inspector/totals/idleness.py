"""Communicators that a live writer has done with: their series end, and no sum falls. Pure.

A process that goes on for days makes and destroys communicators. Nothing in the lines says that one is gone, so one of
which no record came for IDLE_SECONDS is let go; sooner where another took its place, or where there is no room for one
that is used. What it leaves in the rank's `other` and missing records goes to the inheritance, as that of a writer that
is gone.
"""

from __future__ import annotations

from collections import Counter

from exporters.inspector.format.records import OTHER
from exporters.inspector.totals.aggregate import Aggregate

IDLE_SECONDS = 21_600.0
"""Six hours: longer than any checkpoint, evaluation or queue between two uses of a communicator should take."""
SUCCEEDED_SECONDS = 600.0
"""After this long without a record a communicator is over if a newer one has the same place, size and name, or if
another has no room."""
LOOK_SECONDS = 300.0


class IdleWatch:
    """Watches one writer's communicators; the times start again when the agent restarts."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        self._made: dict[str, float] = {}
        self._refused: Counter[str] = Counter()

    def look(self, aggregate: Aggregate, now: float) -> frozenset[str]:
        """Return the communicators that are over at monotonic time ``now``, and forget them."""
        records, refused = _counts(aggregate)
        before, self._seen = self._seen, {}
        for comm, count in records.items():
            last = before.get(comm, (-1, now))
            self._seen[comm] = last if last[0] == count else (count, now)
            self._made.setdefault(comm, now)
        still = {comm: now - since for comm, (_, since) in self._seen.items() if comm != OTHER}
        resting = {comm for comm, seconds in still.items() if seconds >= SUCCEEDED_SECONDS}
        over = {comm for comm in resting if still[comm] >= IDLE_SECONDS} | self._succeeded(aggregate, resting)
        if any(refused[comm] > self._refused[comm] for comm in refused):
            over |= resting
        self._refused = refused
        self._seen = {comm: last for comm, last in self._seen.items() if comm not in over}
        self._made = {comm: made for comm, made in self._made.items() if comm in self._seen}
        return frozenset(over)

    def _succeeded(self, aggregate: Aggregate, resting: set[str]) -> set[str]:
        """Return the resting communicators that newer, used ones replaced after their last record."""
        newest: dict[tuple[int, int, str], float] = {}
        members = [each for each in aggregate.memberships.values() if each.comm in self._seen]
        for each in members:
            if each.comm not in resting:
                shape = (each.comm_rank, each.size, each.name)
                newest[shape] = max(newest.get(shape, 0.0), self._made[each.comm])
        return {
            each.comm
            for each in members
            if each.comm in resting
            and newest.get((each.comm_rank, each.size, each.name), 0.0) > self._seen[each.comm][1]
        }


def _counts(aggregate: Aggregate) -> tuple[Counter[str], Counter[str]]:
    """Return by communicator a number that changes with each record, and the operations that found no room.

    These are under `other` where the communicator found no place at all.
    """
    records: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for key, accumulator in aggregate.accumulators.items():
        records[key.comm] += accumulator.operations
        if key.size == OTHER:
            refused[key.comm] += accumulator.operations
    for (comm, _, _), sequence in aggregate.sequences.items():
        records[comm] += sequence.seen_in_all()
    return records, refused
