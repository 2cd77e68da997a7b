"""Counts one writer's missing records by cause, and for each rank the records that exist or lack a GPU time. Pure.

Only a gap's size is known, not its cause. The line that begins a batch (`dump_stats`) says how many records a ring
dropped. Without such lines, a pass with as many lines as the ring holds shows an overflow (``passes``). Both add to the
ring's credit: a credit of N attributes the next N missing records to overflow. Further missing records have no known
cause.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated

import msgspec

from exporters.inspector.format.records import MAX_SEQUENCE_NUMBER, MAX_TOTAL, Total

COLLECTIVE_RING = "collective"
P2P_RING = "p2p"

SequenceKey = tuple[str, int, str]
"""Communicator, rank in it, and the collective or P2P_RING: both directions of P2P share their numbers."""
RingKey = tuple[str, int, str]  # Communicator, rank in it, and COLLECTIVE_RING or P2P_RING


REORDER = 1024
"""How far `coll_sn` may fall below its highest value (one ring of the plugin). Below that, numbering restarted."""


class Sequence(msgspec.Struct, gc=False, array_like=True):
    """The sequence numbers (`coll_sn`) of one (communicator, rank, collective), to count the numbers without a record.

    ``first`` is None before the first record, unless the first number is known. ``missing`` never falls: a late record
    lowers what the next gap adds.
    """

    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE_NUMBER)] | None
    highest: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE_NUMBER)] = -1
    seen: Total = 0
    missing_before: Total = 0
    missing: Total = 0
    seen_before: Total = 0

    def add(self, lowest: int, highest: int, count: int) -> None:
        """Add the numbers of ``count`` records, in any order."""
        if highest + REORDER < self.highest:  # the numbers began again
            self.seen_before = self.seen_in_all()
            self.missing_before, self.first, self.highest, self.seen = self.missing, lowest, highest, 0
        self.first = lowest if self.first is None else min(self.first, lowest)
        self.highest = max(self.highest, highest)
        self.seen = min(MAX_TOTAL, self.seen + count)

    def seen_in_all(self) -> int:
        """Return the number of records since the first."""
        return min(MAX_TOTAL, self.seen_before + self.seen)

    def gaps(self) -> int:
        """Return how many records are missing at present; a later record may fill a gap."""
        if self.first is None or self.highest < 0:
            return self.missing
        return min(MAX_TOTAL, max(self.missing, self.missing_before + self.highest - self.first + 1 - self.seen))


class Tally(StrEnum):
    """The counts of a rank over all its communicators."""

    SEEN = "seen"
    MISSING_OVERFLOW = "missing_overflow"
    MISSING_ONE_SLOT = "missing_one_slot"
    MISSING_OTHERWISE = "missing_otherwise"
    UNTIMED_KERNEL_CPU = "untimed_kernel_cpu"
    UNTIMED_COLLECTIVE_CPU = "untimed_collective_cpu"
    UNTIMED_ZERO = "untimed_zero"
    UNTIMED_OTHER = "untimed_other"


UNTIMED = {"kernel_cpu": Tally.UNTIMED_KERNEL_CPU, "collective_cpu": Tally.UNTIMED_COLLECTIVE_CPU}
"""By timing source. A source that is neither listed nor the GPU's own time is UNTIMED_OTHER."""


class Loss(msgspec.Struct, gc=False, array_like=True):
    """Gaps of one ring by cause. ``is_reported``: the plugin reports lost records (`dump_stats`).

    ``gaps_before_pass``: gaps counted later have no cause yet.
    """

    credit: Total = 0
    overflow: Total = 0
    otherwise: Total = 0
    is_reported: bool = False
    gaps_before_pass: Total | None = None

    def attribute(self, gaps: int) -> None:
        """Attribute the gaps since the last call to causes. ``gaps``: the total so far."""
        known = gaps if self.gaps_before_pass is None else min(gaps, self.gaps_before_pass)
        new = known - self.overflow - self.otherwise
        if new > 0:
            overflow = min(new, self.credit)
            self.credit -= overflow
            self.overflow += overflow
            self.otherwise += new - overflow


class SavedLosses(msgspec.Struct, array_like=True):
    """The checkpoint of WriterLosses."""

    one_slot: bool | None = None
    losses: list[tuple[RingKey, Loss]] = []
    untimed: list[tuple[str, int, Tally, Total]] = []


class WriterLosses:
    """The losses of one writer, computed from the gaps in ``sequences``.

    ``one_slot``: the plugin keeps one operation per communicator between two passes, so gaps are normal.
    """

    def __init__(self, sequences: dict[SequenceKey, Sequence], *, from_start: bool, saved: SavedLosses) -> None:
        self._sequences = sequences
        self._from_start = from_start
        self._one_slot = saved.one_slot
        self._losses: dict[RingKey, Loss] = dict(saved.losses)
        self._untimed: Counter[tuple[str, int, Tally]] = Counter()
        self._untimed.update({(comm, comm_rank, tally): count for comm, comm_rank, tally, count in saved.untimed})

    def note_format(self, *, named: bool) -> None:
        """Note whether headers have `comm_name`; a writer's first header decides."""
        if self._one_slot is None:
            self._one_slot = not named

    def note_dropped(self, ring: RingKey, dropped: int) -> None:
        """Add the number of records that, as the plugin reports, were dropped before this batch."""
        loss = self._losses.setdefault(ring, Loss())
        loss.is_reported = True
        if dropped and (gaps := self._gaps(ring)) is not None:
            loss.attribute(gaps)
            loss.credit = min(MAX_TOTAL, loss.credit + dropped)

    def begin_pass(self, ring: RingKey) -> None:
        """Begin a pass, which can find the ring full: store the number of gaps so far for ``end_pass``."""
        gaps = self._gaps(ring)
        if gaps is not None and not self._one_slot:
            self._losses.setdefault(ring, Loss()).gaps_before_pass = gaps

    def end_pass(self, ring: RingKey, *, full: bool) -> None:
        """End the pass. ``full``: the ring was full, so it lost the records that are missing since ``begin_pass``."""
        loss = self._losses.get(ring)
        if loss is None or loss.gaps_before_pass is None:
            return
        new_gaps = (self._gaps(ring) or 0) - loss.gaps_before_pass  # below 0 after late records
        if full and new_gaps > 0 and not loss.is_reported and not self._one_slot:
            loss.attribute(loss.gaps_before_pass)
            loss.credit = min(MAX_TOTAL, loss.credit + new_gaps)
        loss.gaps_before_pass = None

    def note_untimed(self, comm: str, comm_rank: int, tally: Tally, count: int) -> None:
        """Count operations recorded without the GPU's own time."""
        _add(self._untimed, (comm, comm_rank), tally, count)

    def tallies(self) -> dict[tuple[str, int, Tally], int]:
        """Return all counts by communicator and rank in it."""
        gaps: Counter[RingKey] = Counter()
        totals = self._untimed.copy()
        for key, sequence in self._sequences.items():
            ring = ring_of(key)
            sequence.missing = sequence.gaps()  # all records that were read are counted now
            gaps[ring] = min(MAX_TOTAL, gaps[ring] + sequence.missing)
            _add(totals, ring[:2], Tally.SEEN, sequence.seen_in_all())
        cause = Tally.MISSING_ONE_SLOT if self._one_slot else Tally.MISSING_OTHERWISE
        for ring, total in gaps.items():
            loss = self._losses.setdefault(ring, Loss())
            loss.attribute(total)
            _add(totals, ring[:2], Tally.MISSING_OVERFLOW, loss.overflow)
            _add(totals, ring[:2], cause, loss.otherwise)
        return totals

    def lost(self) -> dict[tuple[str, int], int]:
        """Return the collective operations that the ring or the one slot lost, by communicator and rank in it.

        Uses the causes that the last call of ``tallies`` found.
        """
        return {
            ring[:2]: min(MAX_TOTAL, loss.overflow + (loss.otherwise if self._one_slot else 0))
            for ring, loss in self._losses.items()
            if ring[2] == COLLECTIVE_RING
        }

    def end(self, comms: frozenset[str], ended: WriterLosses) -> None:
        """Move the counts of ``comms`` to ``ended``. A communicator that returns may begin at any sequence number."""
        ended._one_slot = self._one_slot
        for ring in [ring for ring in self._losses if ring[0] in comms]:
            ended._losses[ring] = self._losses.pop(ring)
        for key in [key for key in self._untimed if key[0] in comms]:
            ended._untimed[key] = self._untimed.pop(key)
        self._from_start = False

    def save(self) -> SavedLosses:
        """Return all that the checkpoint must hold."""
        untimed = [(*key, count) for key, count in self._untimed.items()]
        return SavedLosses(self._one_slot, list(self._losses.items()), untimed)

    def _gaps(self, ring: RingKey) -> int | None:
        """Return the gaps of a ring; None before the first record, unless all records were read from the start."""
        of_ring = [sequence for key, sequence in self._sequences.items() if ring_of(key) == ring]
        return min(MAX_TOTAL, sum(sequence.gaps() for sequence in of_ring)) if of_ring or self._from_start else None


def ring_of(key: SequenceKey) -> RingKey:
    """Return the ring that holds the operations of a sequence."""
    return key[0], key[1], P2P_RING if key[2] == P2P_RING else COLLECTIVE_RING


def _add(totals: Counter[tuple[str, int, Tally]], ring: tuple[str, int], tally: Tally, count: int) -> None:
    totals[*ring, tally] = min(MAX_TOTAL, totals[*ring, tally] + count)
