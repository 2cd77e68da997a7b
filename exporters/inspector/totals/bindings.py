"""Decides once for each kind of record which accumulator, sequence, windows and member get its records. Pure.

A series must fit the limit of places (communicator, rank) and the series budget; the operations of a refused series
count in the series `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

from agent.sdk.metrics import Group
from agent.sdk.ranks import WriterKey
from exporters.inspector.format import records
from exporters.inspector.format.records import OTHER, Result, SeriesKey
from exporters.inspector.totals.accumulators import Accumulator, TransferWindow, Window
from exporters.inspector.totals.losses import P2P_RING, UNTIMED, Sequence, SequenceKey, Tally
from exporters.inspector.totals.matching import SYNCHRONISING, Arrivals, PendingMember
from exporters.inspector.totals.pairs import End
from exporters.inspector.totals.shared import (
    SERIES_PER_ACCUMULATOR,
    SERIES_PER_GAUGE,
    Places,
    Shared,
    series_of,
    series_of_arrivals,
)

MAX_BINDINGS = 4096  # Limit of remembered kinds: distinct (communicator, rank, collective, exact size, timing)
P2P_SERIES = frozenset({records.P2P_SEND, records.P2P_RECV})
P2P_FIRST = 1  # The first number of P2P operations; collectives begin at 0

Admit = Callable[[Hashable, int, int, Group], bool]  # Takes owner, series, ranks and group
RecordKey = tuple[str, int, int, str, int, str]
"""Header id, rank, n_ranks, collective, size in bytes and timing source of a record."""


@dataclass(slots=True, eq=False)
class Binding:
    """The totals for records of one RecordKey, and values that these records share. Default totals are in no series."""

    result: Result
    sequence: Sequence = field(default_factory=lambda: Sequence(None))
    accumulator: Accumulator = field(default_factory=Accumulator)
    window: Window | None = None
    transfer: TransferWindow | None = None
    member: PendingMember | None = None
    end: End | None = None
    place: tuple[str, int] = (OTHER, 0)
    series: SeriesKey | None = None
    untimed: Tally | None = None
    size_bytes: int = 0
    bus_bytes: int = 0
    least_us: int = 0
    plausible_us: int = 0

    def add(self, times: list[int]) -> None:
        """Add operations that took ``times`` microseconds."""
        if self.result is not Result.ACCEPTED:
            return
        count, microseconds = len(times), sum(times)
        bus_bytes = count * self.bus_bytes
        self.accumulator.add(count, count * self.size_bytes, microseconds, bus_bytes)
        if self.window is not None:
            self.window.bus_bytes += bus_bytes
            self.window.microseconds += microseconds
        if self.transfer is not None:
            self.transfer.add(times)


class WriterSeries:
    """The series of one writer. ``from_start``: all its records were read, so each sequence begins at its first number.

    ``shared``: limits that all living writers share; ``group``: the user and directory whose share the writer uses;
    ``bindings``: the decisions by kind of record.
    """

    def __init__(self, writer_key: WriterKey, admit: Admit, shared: Shared, group: Group, *, from_start: bool) -> None:
        self.accumulators: dict[SeriesKey, Accumulator] = {}
        self.sequences: dict[SequenceKey, Sequence] = {}
        self.windows: dict[tuple[str, int, str], Window] = {}
        self.transfers: dict[SeriesKey, TransferWindow] = {}
        self.bindings: dict[RecordKey, Binding] = {}
        self.places = Places(shared.room, group)
        self.from_start = from_start
        self._writer_key = writer_key
        self._admit = admit
        self._shared = shared
        self._group = group
        self._uid = user if isinstance(user := next(iter(group), None), int) else -1
        self._arrivals_at: dict[SeriesKey, Accumulator] = {}
        self._served_first: str | None = None

    def bind(self, key: RecordKey, header: records.Header) -> Binding:
        """Decide which totals get the records of ``key``. ``header``: the header of one record."""
        binding = self._make_binding(key, header)
        if binding.result is not Result.GARBAGE:
            if len(self.bindings) >= MAX_BINDINGS:
                self.bindings.clear()
            self.bindings[key] = binding
        return binding

    def reserve(self, series: int) -> bool:
        """Reserve this number of further series; return False when the budget is spent."""
        return self._admit(self._writer_key, series, self.places.ranks, self._group)

    def keep(self, key: SeriesKey, accumulator: Accumulator) -> None:
        """Restore a series from before the agent's restart, even if the budget is smaller now."""
        self.accumulators[key] = accumulator
        if key.comm != OTHER:
            self.places.keep(key.comm, key.comm_rank)
        if key.size != OTHER:
            self.reserve(series_of(key, accumulator.arrivals))

    def serve_first(self, comm: str | None) -> None:
        """Admit no other communicator's series until ``comm`` has one: short-lived ones would use up the budget."""
        if comm is not None:
            self.bindings.clear()  # refused series may be requested again
        self._served_first = comm

    def forget(self, comms: frozenset[str]) -> None:
        """Forget communicators. A communicator that returns may begin at any sequence number."""
        self.places.leave(comms)
        self._arrivals_at = {key: arrived_at for key, arrived_at in self._arrivals_at.items() if key.comm not in comms}
        self.from_start = False
        self.bindings.clear()

    def credit(self, key: SeriesKey, arrivals: Arrivals) -> None:
        """Add matched operations of one size class; to size `other` if the budget refuses their series."""
        accumulator = self._arrivals_at.get(key)
        if accumulator is None:
            accumulator = self.accumulators.get(key)
            if accumulator is None or (
                accumulator.arrivals is None and not self.reserve(series_of_arrivals(key.comm_rank))
            ):
                accumulator = self.accumulators.setdefault(key._replace(size=OTHER), Accumulator())
            self._arrivals_at[key] = accumulator
        accumulator.arrivals = arrivals.plus(accumulator.arrivals or Arrivals())

    def _make_binding(self, key: RecordKey, header: records.Header) -> Binding:
        _, comm_rank, n_ranks, name, size_bytes, timing = key
        comm = records.communicator(header.id, comm_rank, n_ranks)
        if comm is None:
            return Binding(Result.GARBAGE)
        collective = name if name in records.COLLECTIVES or name in P2P_SERIES else OTHER
        if not self.places.claim(comm, comm_rank):
            comm, comm_rank = OTHER, 0
        is_p2p = name in P2P_SERIES or name == records.P2P_OTHER
        sequence = self._sequence(comm, comm_rank, P2P_RING if is_p2p else collective)
        if name == records.P2P_OTHER or not 0 <= size_bytes <= records.MAX_SIZE_BYTES:
            return Binding(Result.GARBAGE, sequence)
        if timing == records.KERNEL_TIMING:
            binding = Binding(Result.ACCEPTED, sequence)
            binding.size_bytes = size_bytes
            binding.bus_bytes = records.bus_bytes_per_operation(collective, size_bytes, n_ranks)
            binding.least_us = max(1, -(-binding.bus_bytes // records.MAX_BUS_BYTES_PER_US))
            binding.plausible_us = -(-binding.bus_bytes // self._shared.plausible_bytes_per_us)
            self._place(binding, SeriesKey(comm, comm_rank, collective, records.size_label(size_bytes)), n_ranks)
        else:
            binding = Binding(Result.NOT_KERNEL_TIMED, sequence)
            binding.untimed = UNTIMED.get(timing, Tally.UNTIMED_OTHER)
        binding.place = (comm, comm_rank)
        return binding

    def _sequence(self, comm: str, comm_rank: int, name: str) -> Sequence:
        if OTHER in (comm, name):
            return Sequence(None)
        key = (comm, comm_rank, name)
        if key not in self.sequences:
            first = P2P_FIRST if name == P2P_RING else 0
            self.sequences[key] = Sequence(first if self.from_start else None)
        return self.sequences[key]

    def _place(self, binding: Binding, key: SeriesKey, n_ranks: int) -> None:
        """Give a binding its accumulator, windows and members, as far as limits allow."""
        comm, comm_rank, collective, _ = key
        if collective in P2P_SERIES and comm != OTHER:
            binding.end = End(comm, comm_rank, n_ranks, collective)
        if collective in SYNCHRONISING and comm != OTHER:
            credit = partial(self.credit, key)
            binding.member = self._shared.matching.join(self._writer_key, key, n_ranks, credit, self._group, self._uid)
        if key not in self.accumulators and (comm == OTHER or not self._reserve_accumulator(comm)):
            key = key._replace(size=OTHER)
        binding.accumulator = self.accumulators.setdefault(key, Accumulator())
        if collective in P2P_SERIES:
            return
        binding.series = key
        if key.size == OTHER:
            return
        window_key = (comm, comm_rank, collective)
        if window_key not in self.windows and self.reserve(SERIES_PER_GAUGE):
            self.windows[window_key] = Window()
        binding.window = self.windows.get(window_key)
        if collective in SYNCHRONISING and key not in self.transfers and self.reserve(SERIES_PER_GAUGE):
            self.transfers[key] = TransferWindow()
        binding.transfer = self.transfers.get(key)

    def _reserve_accumulator(self, comm: str) -> bool:
        """Reserve an accumulator's series. Fail while another communicator must be served first."""
        if self._served_first not in (None, comm) or not self.reserve(SERIES_PER_ACCUMULATOR):
            return False
        if self._served_first is not None:
            self._served_first = None
            self.bindings.clear()
        return True
