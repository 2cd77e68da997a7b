"""Records added up: per writer, communicator, rank in it, collective and size class, in integers. Pure.

Only operations timed by the GPU are added: the four counters of a series must speak of the same operations, or a mean
made of two of them would name the wrong rank as the late one. The others are counted by result. A P2P operation is
added up like a collective one, under its direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from agent.sdk.metrics import Group
from agent.sdk.ranks import Membership, WriterKey
from exporters.inspector.format import records
from exporters.inspector.format.passes import RingSizes, Run
from exporters.inspector.totals.accumulators import Accumulator, Binding, Durations, RecordKey, TransferWindow, Window
from exporters.inspector.totals.losses import (
    COLLECTIVE_RING,
    P2P_RING,
    UNTIMED,
    LossBook,
    RingKey,
    SavedLosses,
    Sequence,
    Tally,
)
from exporters.inspector.totals.matching import SYNCHRONISING, Arrivals
from exporters.inspector.totals.pairs import End, Pairs
from exporters.inspector.totals.shared import (
    MAX_PLACES,
    SERIES_PER_ACCUMULATOR,
    SERIES_PER_GAUGE,
    Places,
    Shared,
    series_of,
    series_of_arrivals,
)

MAX_BINDINGS = 4096  # Distinct (communicator, rank, collective, exact size, timing) whose accumulator is remembered
P2P_SERIES = frozenset({records.P2P_SEND, records.P2P_RECV})
P2P_FIRST = 1  # Where numbers of P2P operations begin; those of collective ones begin at 0

Place = TypeVar(
    "Place", records.SeriesKey, tuple[str, int, str], tuple[str, int]
)  # A key that begins with the communicator
T = TypeVar("T")
Admit = Callable[[Hashable, int, int, Group], bool]  # Asked by owner, series, ranks and group


class Saved(msgspec.Struct, array_like=True):
    """One writer's totals in the checkpoint."""

    writer_key: WriterKey
    from_start: bool
    last_progress_us: records.TimestampUs
    memberships: list[Membership]
    accumulators: list[tuple[records.SeriesKey, Accumulator]]
    sequences: list[tuple[str, int, str, Sequence]]
    losses: SavedLosses = msgspec.field(default_factory=SavedLosses)


class Aggregate:
    """All that one writer's records add up to. ``from_start``: its records were read from the first one on.

    ``shared`` is that of all writers which live together (None: its own), ``group`` whose share of it this one takes.
    """

    def __init__(
        self,
        writer_key: WriterKey,
        admit: Admit,
        *,
        from_start: bool,
        shared: Shared | None = None,
        saved: Saved | None = None,
        group: Group = (),
    ) -> None:
        self.writer_key = writer_key
        self.group = group
        self._uid = user if isinstance(user := next(iter(group), None), int) else -1
        self.memberships: dict[tuple[str, int], Membership] = {}
        self.accumulators: dict[records.SeriesKey, Accumulator] = {}
        self.sequences: dict[tuple[str, int, str], Sequence] = {}
        if saved is not None:
            self.sequences.update(((comm, comm_rank, name), own) for comm, comm_rank, name, own in saved.sequences)
        self.losses = LossBook(self.sequences, from_start=from_start, saved=saved.losses if saved else SavedLosses())
        self.windows: dict[tuple[str, int, str], Window] = {}
        self.transfers: dict[records.SeriesKey, TransferWindow] = {}
        self.durations: dict[records.SeriesKey, Durations] = {}
        self.algorithms: dict[records.SeriesKey, tuple[str, str]] = {}  # The latest algorithm and protocol
        self.rings = RingSizes()
        self.last_progress_us = 0
        self._admit = admit
        self._shared = shared or Shared()
        self._from_start = from_start
        self._places = Places(self._shared.room, group)
        self.pairs = Pairs(self._shared.pairs, group, self._admitted)
        self.bindings: dict[RecordKey, Binding] = {}
        self._arrivals_at: dict[records.SeriesKey, Accumulator] = {}
        self._reported = 0
        self._first: str | None = None

    def add(
        self,
        key: RecordKey,
        header: records.Header,
        perfs: list[records.CollectivePerf],
        results: Counter[records.Result],
    ) -> None:
        """Add records that share ``key``; ``header`` is that of one of them. Counts what became of each."""
        binding = self.bindings.get(key)
        if binding is None:
            binding = self._bind(key, header)
        times = [perf.coll_exec_time_us for perf in perfs]
        numbers = [perf.coll_sn for perf in perfs]
        lowest, highest = min(numbers), max(numbers)
        least = min(times)
        if (
            least < binding.least_us
            or max(times) > records.MAX_EXEC_TIME_US
            or lowest < 0
            or highest > records.MAX_SEQUENCE_NUMBER
        ):
            self._add_each(binding, perfs, results)
            return
        binding.add(lowest, highest, times)
        if binding.member is not None:
            binding.member.note(numbers, highest, times)
        if binding.end is not None:
            self.pairs.note(binding.end, binding.size_bytes, perfs)
        elif binding.series is not None and perfs[-1].coll_algo:
            self.algorithms[binding.series] = perfs[-1].coll_algo, perfs[-1].coll_proto
        results[binding.result] += len(times)
        if least < binding.plausible_us:
            self._shared.implausible += sum(time < binding.plausible_us for time in times)
        if binding.untimed is not None:
            self.losses.note_untimed(*binding.place, binding.untimed, len(times))

    def _add_each(
        self, binding: Binding, perfs: list[records.CollectivePerf], results: Counter[records.Result]
    ) -> None:
        """Add records one by one: some are implausible or have no time."""
        for perf in perfs:
            number, microseconds = perf.coll_sn, perf.coll_exec_time_us
            known = 0 <= number <= records.MAX_SEQUENCE_NUMBER
            result = binding.result
            if not known or not 0 <= microseconds <= records.MAX_EXEC_TIME_US:
                result = records.Result.GARBAGE
            elif microseconds < binding.least_us:
                result = records.Result.GARBAGE if microseconds else records.Result.ZERO_TIME
            results[result] += 1
            untimed = Tally.UNTIMED_ZERO if result is records.Result.ZERO_TIME else binding.untimed
            if untimed is not None and result is not records.Result.GARBAGE:
                self.losses.note_untimed(*binding.place, untimed, 1)
            if not known:
                binding.fill()
            elif result is records.Result.ACCEPTED:
                binding.add(number, number, [microseconds])
                if binding.member is not None:
                    binding.member.note([number], number, [microseconds])
                if binding.end is not None:
                    self.pairs.note(binding.end, binding.size_bytes, [perf])
                self._shared.implausible += microseconds < binding.plausible_us
            else:
                binding.see(number, number, 1)

    def note_member(self, header: records.Header) -> bool:
        """Take in what a header says of memberships; False when it cannot be true."""
        comm = records.communicator(header.id, header.rank, header.n_ranks)
        if comm is None:
            return False
        place = (comm, header.rank)
        self.losses.note_format(named=header.comm_name is not None)
        new = place not in self.memberships and len(self.memberships) < MAX_PLACES
        if new and self._shared.room.take(self.group):
            nodes = max(0, min(header.nnodes, header.n_ranks))
            self.memberships[place] = Membership(comm, header.rank, header.n_ranks, header.comm_name or "", nodes)
        return True

    def ring(self, header: records.Header | Run, *, p2p: bool) -> RingKey | None:
        """Return the ring of a communicator, whose losses are counted; None where it is not true or finds no room."""
        comm = records.communicator(header.id, header.rank, header.n_ranks)
        if comm is None or not self._places.have(comm, header.rank):
            return None
        return comm, header.rank, P2P_RING if p2p else COLLECTIVE_RING

    def _bind(self, key: RecordKey, header: records.Header) -> Binding:
        binding = self._make_binding(key, header)
        if binding.result is not records.Result.GARBAGE:
            if len(self.bindings) >= MAX_BINDINGS:
                self.bindings.clear()
            self.bindings[key] = binding
        return binding

    def leave(self) -> None:
        """Give back its share of the room; nothing is added afterwards."""
        self._shared.matching.leave(self.writer_key)
        self._places.leave()
        self.pairs.leave()
        self._shared.room.give_back(self.group, len(self.memberships))

    def end(self, comms: frozenset[str]) -> Aggregate:
        """Let go of communicators; return what they added up to. One that returns starts at zero."""
        self._shared.matching.leave(self.writer_key, comms)  # what waits is counted here still
        ended = Aggregate(self.writer_key, self._admit, from_start=False)
        _move(self.accumulators, ended.accumulators, comms)
        _move(self.sequences, ended.sequences, comms)
        self.losses.end(comms, ended.losses)
        _move(self.windows, ended.windows, comms)
        _move(self.transfers, ended.transfers, comms)
        _move(self.durations, ended.durations, comms)
        _move(self.algorithms, ended.algorithms, comms)
        reported = [place for place in islice(self.memberships, self._reported) if place[0] in comms]
        self._reported -= len(reported)
        self._places.leave(comms)
        self.pairs.leave(comms)
        self._shared.room.give_back(self.group, _move(self.memberships, ended.memberships, comms))
        self._arrivals_at = {key: own for key, own in self._arrivals_at.items() if key.comm not in comms}
        self._from_start = False  # a sequence that returns does not begin at 0
        self.bindings.clear()
        return ended

    def _make_binding(self, key: RecordKey, header: records.Header) -> Binding:
        _, comm_rank, n_ranks, name, size_bytes, timing = key
        comm = records.communicator(header.id, comm_rank, n_ranks)
        if comm is None:
            return Binding(records.Result.GARBAGE)
        self.note_member(header)
        collective = name if name in records.COLLECTIVES or name in P2P_SERIES else records.OTHER
        if not self._places.have(comm, comm_rank):
            comm, comm_rank = records.OTHER, 0
        sequence = self._sequence(
            comm, comm_rank, P2P_RING if name in P2P_SERIES or name == records.P2P_OTHER else collective
        )
        if name == records.P2P_OTHER or not 0 <= size_bytes <= records.MAX_SIZE_BYTES:
            return Binding(records.Result.GARBAGE, sequence)
        if timing != records.KERNEL_TIMING:
            binding = Binding(records.Result.NOT_KERNEL_TIMED, sequence)
            binding.untimed = UNTIMED.get(timing, Tally.UNTIMED_OTHER)
        else:
            binding = Binding(records.Result.ACCEPTED, sequence)
            binding.size_bytes = size_bytes
            binding.bus_bytes = records.bus_bytes_per_operation(collective, size_bytes, n_ranks)
            binding.least_us = max(1, -(-binding.bus_bytes // records.MAX_BUS_BYTES_PER_US))
            binding.plausible_us = -(-binding.bus_bytes // self._shared.plausible_bytes_per_us)
            self._place(binding, comm, comm_rank, collective)
            if collective in P2P_SERIES and comm != records.OTHER:
                binding.end = End(comm, comm_rank, n_ranks, collective)
            if collective in SYNCHRONISING and comm != records.OTHER:
                series = records.SeriesKey(comm, comm_rank, collective, records.size_label(size_bytes))
                credit = partial(self.credit, series)
                binding.member = self._shared.matching.join(
                    self.writer_key, series, n_ranks, credit, self.group, self._uid
                )
        binding.place = (comm, comm_rank)
        return binding

    def _sequence(self, comm: str, comm_rank: int, name: str) -> Sequence | None:
        if records.OTHER in (comm, name):
            return None
        key = (comm, comm_rank, name)
        if key not in self.sequences:
            first = P2P_FIRST if name == P2P_RING else 0
            self.sequences[key] = Sequence(first if self._from_start else None)
        return self.sequences[key]

    def _place(self, binding: Binding, comm: str, comm_rank: int, collective: str) -> None:
        """Give a binding its accumulator, series, windows and durations, as far as the budget admits them."""
        key = records.SeriesKey(comm, comm_rank, collective, records.size_label(binding.size_bytes))
        if key not in self.accumulators and (comm == records.OTHER or not self._has_room(comm)):
            key = key._replace(size=records.OTHER)
        binding.accumulator = self.accumulators.setdefault(key, Accumulator())
        if self._shared.histograms and collective not in P2P_SERIES:
            binding.durations = self.durations.setdefault(key, Durations())
        if key.size == records.OTHER:
            return
        binding.series = key
        place = (comm, comm_rank, collective)
        if place not in self.windows and self._admitted(SERIES_PER_GAUGE):
            self.windows[place] = Window()
        binding.window = self.windows.get(place)
        if collective in SYNCHRONISING and key not in self.transfers and self._admitted(SERIES_PER_GAUGE):
            self.transfers[key] = TransferWindow()
        binding.transfer = self.transfers.get(key)

    def credit(self, key: records.SeriesKey, arrivals: Arrivals) -> None:
        """Add what matched operations of one size class say, as far as the budget admits it."""
        accumulator = self._arrivals_at.get(key)
        if accumulator is None:
            accumulator = self.accumulators.get(key)
            if accumulator is None or (
                accumulator.arrivals is None and not self._admitted(series_of_arrivals(key.comm_rank))
            ):
                accumulator = self.accumulators.setdefault(key._replace(size=records.OTHER), Accumulator())
            self._arrivals_at[key] = accumulator
        accumulator.arrivals = arrivals.plus(accumulator.arrivals or Arrivals())

    def serve_first(self, comm: str | None) -> None:
        """Give no other communicator a series until this one has a new one: short-lived ones would take them all."""
        if comm is not None:
            self.bindings.clear()  # who was refused may ask again
        self._first = comm

    def _has_room(self, comm: str) -> bool:
        if self._first not in (None, comm) or not self._admitted(SERIES_PER_ACCUMULATOR):
            return False
        if self._first is not None:
            self._first = None
            self.bindings.clear()
        return True

    def _admitted(self, series: int) -> bool:
        return self._admit(self.writer_key, series, self._places.ranks, self.group)

    def new_memberships(self) -> tuple[Membership, ...]:
        """Memberships not returned before."""
        new = tuple(islice(self.memberships.values(), self._reported, None))
        self._reported += len(new)
        return new

    def places(self) -> frozenset[tuple[str, int]]:
        """Each (communicator, rank in it) that has totals or gaps."""
        totals = {(key.comm, key.comm_rank) for key in self.accumulators}
        return frozenset(totals | {(comm, comm_rank) for comm, comm_rank, _ in self.losses.tallies()})

    def roll_windows(self) -> None:
        """End the window of every gauge."""
        for window in self.windows.values():
            window.roll()
        for transfer in self.transfers.values():
            transfer.roll()
        self.pairs.roll(self._places.ranks)

    def save(self) -> Saved:
        """Return all that must survive the agent."""
        sequences = [(*place, sequence) for place, sequence in self.sequences.items()]
        return Saved(
            self.writer_key,
            self._from_start,
            self.last_progress_us,
            list(self.memberships.values()),
            list(self.accumulators.items()),
            sequences,
            self.losses.save(),
        )

    @classmethod
    def restore(cls, saved: Saved, admit: Admit, shared: Shared | None = None, group: Group = ()) -> Aggregate:
        """Take back what ``save`` gave. Its series are kept even if the budget is smaller now."""
        made = cls(saved.writer_key, admit, from_start=saved.from_start, shared=shared, saved=saved, group=group)
        made.last_progress_us = saved.last_progress_us
        made.memberships = {(member.comm, member.comm_rank): member for member in saved.memberships}
        made._shared.room.keep(group, len(made.memberships))  # of this class
        for key, accumulator in saved.accumulators:
            made.accumulators[key] = accumulator
            if key.comm != records.OTHER:
                made._places.keep(key.comm, key.comm_rank)  # of this class
            if key.size != records.OTHER:
                made._admitted(series_of(key, accumulator.arrivals))
        return made


def _move(kept: dict[Place, T], gone: dict[Place, T], comms: frozenset[str]) -> int:
    """Move the entries of ``comms`` from one dict to the other; return how many."""
    for key in [key for key in kept if key[0] in comms]:
        gone[key] = kept.pop(key)
    return len(gone)
