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
        self._seen: dict[str, tuple[int, float]] = {}
        self._made: dict[str, float] = {}
        self._refused: Counter[str] = Counter()
        self._evictions = 1
        self.first: str | None = None

    def look(self, aggregate: Aggregate, now: float) -> frozenset[str]:
        """Return the communicators that end at monotonic time ``now``, and forget them."""
        activity, refused = _counts(aggregate)
        seen = {}
        for comm, count in activity.items():
            before = self._seen.get(comm)
            seen[comm] = before if before is not None and before[0] == count else (count, now)
            self._made.setdefault(comm, now)
        still = {comm: since for comm, (_, since) in seen.items() if comm != OTHER}
        over = {comm for comm, since in still.items() if now - since >= IDLE_SECONDS}
        over |= self._succeeded(aggregate, still, now)
        waiting = [comm for comm, since in still.items() if now - since >= SUCCEEDED_SECONDS and comm not in over]
        without_room = [comm for comm in refused if refused[comm] > self._refused[comm]]
        if without_room and waiting:
            over.update(sorted(waiting, key=lambda comm: still[comm])[: self._evictions])
            self._evictions = min(MAX_COMMUNICATORS, 2 * self._evictions)
        else:
            self._evictions = 1
        known = (comm for comm in without_room if comm != OTHER and comm not in over)
        self.first = min(known, key=lambda comm: self._made[comm], default=None)
        self._refused = refused
        self._seen = {comm: entry for comm, entry in seen.items() if comm not in over}
        self._made = {comm: made for comm, made in self._made.items() if comm in self._seen}
        return frozenset(over)

    def _succeeded(self, aggregate: Aggregate, still: dict[str, float], now: float) -> set[str]:
        """Return the communicators without a record for SUCCEEDED_SECONDS that a newer, used communicator replaced."""
        newest: dict[tuple[int, int, str], float] = {}
        members = [membership for membership in aggregate.memberships.values() if membership.comm in still]
        for membership in members:
            if now - still[membership.comm] < SUCCEEDED_SECONDS:
                shape = (membership.comm_rank, membership.size, membership.name)
                newest[shape] = max(newest.get(shape, self._made[membership.comm]), self._made[membership.comm])
        return {
            membership.comm
            for membership in members
            if now - still[membership.comm] >= SUCCEEDED_SECONDS
            and newest.get((membership.comm_rank, membership.size, membership.name), still[membership.comm])
            > still[membership.comm]
        }


def _counts(aggregate: Aggregate) -> tuple[Counter[str], Counter[str]]:
    """Return two counts by communicator: a number that changes with each record, and the operations that a limit
    refused.

    Communicators beyond the limit of places count under `other`.
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
