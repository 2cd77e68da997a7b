"""Ends the series of communicators that a living writer no longer uses, without lowering any sum. Pure.

A process that runs for days makes and destroys communicators. The plugin reports no communicator's end. So a
communicator counts as gone after IDLE_SECONDS without a record; sooner if a newer communicator replaced it, or if a
limit refuses a communicator in use. Inheritance keeps the communicator's part of the rank's series `other`, and the
rank's missing records.
"""

from __future__ import annotations

from collections import Counter

from exporters.inspector.format.records import OTHER
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.shared import MAX_COMMUNICATORS

IDLE_SECONDS = 21_600.0
"""Six hours: no checkpoint or evaluation between two uses of a communicator should take longer."""
SUCCEEDED_SECONDS = 600.0
"""After this long without a record a communicator ends if a newer communicator has the same rank, size and name. If a
limit refuses a communicator at a check, the communicator that is idle for longest (at least this long) ends, too. If
the limit refuses again at the next check, two communicators end, then four."""
LOOK_SECONDS = 300.0


class IdleWatch:
    """Watches one writer's communicators. Idle times begin again when the agent restarts.

    ``first``: the oldest communicator with a series refused since the last check; it gets the next free series.
    """

    def __init__(self) -> None:
        self._records: dict[str, tuple[int, float, float]] = {}  # Count, when it changed, and when it was first seen
        self._refused: Counter[str] = Counter()
        self._evictions = 1
        self.first: str | None = None

    def look(self, aggregate: Aggregate, now: float) -> frozenset[str]:
        """Return the communicators that end at monotonic time ``now``, and forget them."""
        counts, refused = _counts(aggregate)
        former, self._records = self._records, {}
        for comm, count in counts.items():
            former_count, since, created_at = former.get(comm, (None, now, now))
            self._records[comm] = count, since if count == former_count else now, created_at
        idle_since = {comm: since for comm, (_, since, _) in self._records.items() if comm != OTHER}
        ended = {comm for comm, since in idle_since.items() if now - since >= IDLE_SECONDS}
        ended |= self._succeeded(aggregate, idle_since, now)
        idle = [comm for comm, since in idle_since.items() if now - since >= SUCCEEDED_SECONDS and comm not in ended]
        refused_comms = [comm for comm in refused if refused[comm] > self._refused[comm]]
        if refused_comms and idle:
            ended.update(sorted(idle, key=lambda comm: idle_since[comm])[: self._evictions])
            self._evictions = min(MAX_COMMUNICATORS, 2 * self._evictions)
        else:
            self._evictions = 1
        candidates = (comm for comm in refused_comms if comm != OTHER and comm not in ended)
        self.first = min(candidates, key=lambda comm: self._records[comm][2], default=None)
        self._refused = refused
        self._records = {comm: record for comm, record in self._records.items() if comm not in ended}
        return frozenset(ended)

    def _succeeded(self, aggregate: Aggregate, idle_since: dict[str, float], now: float) -> set[str]:
        """Return the communicators without a record for SUCCEEDED_SECONDS that a newer, used communicator replaced."""
        newest: dict[tuple[int, int, str], float] = {}
        members = [membership for membership in aggregate.memberships.values() if membership.comm in idle_since]
        for membership in members:
            if now - idle_since[membership.comm] < SUCCEEDED_SECONDS:
                shape = (membership.comm_rank, membership.size, membership.name)
                newest[shape] = max(newest.get(shape, 0.0), self._records[membership.comm][2])
        return {
            membership.comm
            for membership in members
            if now - idle_since[membership.comm] >= SUCCEEDED_SECONDS
            and newest.get((membership.comm_rank, membership.size, membership.name), 0.0) > idle_since[membership.comm]
        }


def _counts(aggregate: Aggregate) -> tuple[Counter[str], Counter[str]]:
    """Return two counts by communicator: a number that changes with each record, and the operations that a limit
    refused.

    Communicators beyond the limit of places count under `other`. A communicator can have a place and no operation.
    """
    records: Counter[str] = Counter({comm: 0 for comm, _ in aggregate.memberships})
    refused: Counter[str] = Counter()
    for key, accumulator in aggregate.accumulators.items():
        records[key.comm] += accumulator.operations
        if key.size == OTHER:
            refused[key.comm] += accumulator.operations
    for (comm, _, _), sequence in aggregate.sequences.items():
        records[comm] += sequence.seen_in_all()
    for (comm, *_), counts in aggregate.since_start.items():
        records[comm] += sum(counts)
    return records, refused
