"""Where the records of one kind go: found once, so that each of them costs little. Pure."""

from __future__ import annotations

from exporters.inspector.format.records import MAX_TOTAL, OTHER, Result
from exporters.inspector.totals.accumulators import Accumulator, Durations, Sequence, TransferWindow, Window
from exporters.inspector.totals.losses import Tally
from exporters.inspector.totals.matching import BoardMember
from exporters.inspector.totals.pairs import End

RecordKey = tuple[str, int, int, str, int, str]
"""Of a record: header id, rank, n_ranks, collective, size in bytes, timing source."""


class Binding:
    """Where the records of one RecordKey go, and what each of them counts."""

    __slots__ = (
        "accumulator", "bus_bytes", "durations", "end", "least_us", "member", "place", "plausible_us", "result",
        "sequence", "size_bytes", "transfer", "untimed", "window",
    )  # fmt: skip

    def __init__(self, result: Result, sequence: Sequence | None = None) -> None:
        self.result = result
        self.sequence = sequence
        self.accumulator = Accumulator()
        self.window: Window | None = None
        self.transfer: TransferWindow | None = None
        self.member: BoardMember | None = None
        self.end: End | None = None
        self.durations: Durations | None = None
        self.place = (OTHER, 0)
        self.untimed: Tally | None = None
        self.size_bytes = self.bus_bytes = 0
        self.least_us = 1 if result is Result.ACCEPTED else 0
        self.plausible_us = 0

    def see(self, lowest: int, highest: int, count: int) -> None:
        """Note that records with these numbers were there."""
        if self.sequence is not None:
            self.sequence.add(lowest, highest, count)

    def fill(self) -> None:
        """Note that a record was there whose number cannot be true."""
        if self.sequence is not None:
            self.sequence.seen = min(MAX_TOTAL, self.sequence.seen + 1)

    def add(self, lowest: int, highest: int, times: list[int]) -> None:
        """Add operations numbered from ``lowest`` to ``highest`` that took ``times`` microseconds."""
        count = len(times)
        self.see(lowest, highest, count)
        if self.result is not Result.ACCEPTED:
            return
        microseconds = sum(times)
        bus_bytes = count * self.bus_bytes
        self.accumulator.add(count, count * self.size_bytes, microseconds, bus_bytes)
        if self.durations is not None:
            self.durations.add(times)
        if self.window is not None:
            self.window.bus_bytes += bus_bytes
            self.window.microseconds += microseconds
        if self.transfer is not None:
            self.transfer.add(times)
