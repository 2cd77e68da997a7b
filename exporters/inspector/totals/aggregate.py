"""The totals of one writer's records by communicator, rank in it, collective and size class, in integers. Pure.

Only operations timed by the GPU are added: the four counters of a series must cover the same operations. Otherwise a
quotient of two counters would name the wrong rank as late. Other operations are counted by result. A P2P operation is
added like a collective, under its direction (send or receive).
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TypeVar

import msgspec

from agent.sdk.metrics import Group
from agent.sdk.ranks import Membership, WriterKey
from exporters.inspector.format import records
from exporters.inspector.format.passes import RingSizes, Run
from exporters.inspector.totals.accumulators import Accumulator
from exporters.inspector.totals.bindings import Admit, Binding, RecordKey, WriterSeries
from exporters.inspector.totals.losses import (
    COLLECTIVE_RING,
    P2P_RING,
    RingKey,
    SavedLosses,
    Sequence,
    Tally,
    WriterLosses,
)
from exporters.inspector.totals.pairs import Pairs
from exporters.inspector.totals.shared import Shared
from exporters.inspector.totals.since_start import Counted, WriterCount, add, add_proxy, durations

K = TypeVar("K", bound=tuple[object, ...])  # A key that begins with the communicator
T = TypeVar("T")


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
    """The totals of one writer's records. ``from_start``: the agent read all of them.

    ``shared``: limits of all living writers (None: this writer has its own limits); ``group``: user and directory of
    its share.
    """

    def __init__(
        self, writer_key: WriterKey, admit: Admit, *, from_start: bool, shared: Shared | None = None, group: Group = ()
    ) -> None:
        self.writer_key = writer_key
        self.group = group
        self._admit = admit
        self._shared = shared or Shared()
        self.series = series = WriterSeries(writer_key, admit, self._shared, group, from_start=from_start)
        self.accumulators, self.sequences, self.bindings = series.accumulators, series.sequences, series.bindings
        self.memberships: dict[tuple[str, int], Membership] = {}
        self.losses = WriterLosses(self.sequences, from_start=from_start, saved=SavedLosses())
        self.algorithms: dict[records.SeriesKey, tuple[str, str]] = {}  # The latest algorithm and protocol
        self.since_start: dict[WriterCount, tuple[int, ...]] = {}
        self.pairs = Pairs(self._shared.pairs, group, series.reserve)
        self.rings = RingSizes()
        self.last_progress_us = 0
        self._reported = 0

    def add(
        self,
        key: RecordKey,
        header: records.Header,
        perfs: list[records.CollectivePerf],
        results: Counter[records.Result],
    ) -> None:
        """Add records that share ``key``, and count their results. ``header``: the header of one record."""
        binding = self.bindings.get(key)
        if binding is None:
            self.note_member(header)
            binding = self.series.bind(key, header)
        times = [perf.coll_exec_time_us for perf in perfs]
        numbers = [perf.coll_sn for perf in perfs]
        least, lowest, highest = min(times), min(numbers), max(numbers)
        if (
            least < binding.least_us
            or max(times) > records.MAX_EXEC_TIME_US
            or lowest < 0
            or highest > records.MAX_SEQUENCE_NUMBER
        ):
            perfs = self._plausible(binding, perfs, results)
            if not perfs:
                return
            times, numbers = [perf.coll_exec_time_us for perf in perfs], [perf.coll_sn for perf in perfs]
            least, highest = min(times), max(numbers)
        else:
            binding.sequence.add(lowest, highest, len(times))
        binding.add(times)
        if binding.member is not None:
            binding.member.note(numbers, highest, times)
        if binding.end is not None:
            self.pairs.note(binding.end, binding.size_bytes, perfs)
        elif binding.series is not None:
            self._count(binding.series, times, perfs)
        results[binding.result] += len(times)
        if least < binding.plausible_us:
            self._shared.implausible += sum(time < binding.plausible_us for time in times)
        if binding.untimed is not None:
            self.losses.note_untimed(*binding.place, binding.untimed, len(times))

    def _plausible(
        self, binding: Binding, perfs: list[records.CollectivePerf], results: Counter[records.Result]
    ) -> list[records.CollectivePerf]:
        """Return the plausible records, and count the others. Add all records' numbers to the sequence, in order."""
        plausible = []
        for perf in perfs:
            number, microseconds = perf.coll_sn, perf.coll_exec_time_us
            known = 0 <= number <= records.MAX_SEQUENCE_NUMBER
            if known:
                binding.sequence.add(number, number, 1)
            else:
                binding.sequence.seen = min(records.MAX_TOTAL, binding.sequence.seen + 1)
            if known and binding.least_us <= microseconds <= records.MAX_EXEC_TIME_US:
                plausible.append(perf)
            elif known and not microseconds:
                results[records.Result.ZERO_TIME] += 1
                self.losses.note_untimed(*binding.place, Tally.UNTIMED_ZERO, 1)
            else:
                results[records.Result.GARBAGE] += 1
        return plausible

    def _count(self, key: records.SeriesKey, times: list[int], perfs: list[records.CollectivePerf]) -> None:
        """Count timed collectives by duration and, if their records name them, by algorithm and protocol."""
        place, labels = key[:2], key[2:]
        if self._shared.histograms:
            add(self.since_start, (*place, Counted.DURATIONS, labels), durations(times))
        if key.size != records.OTHER and perfs[-1].coll_algo:
            self.algorithms[key] = perfs[-1].coll_algo, perfs[-1].coll_proto
        if key.size != records.OTHER and self._shared.by_algorithm:
            chosen = Counter(records.choice(perf.coll_algo, perf.coll_proto) for perf in perfs if perf.coll_algo)
            for names, count in chosen.items():
                add(self.since_start, (*place, Counted.ALGORITHMS, (*labels, *names)), (count,))

    def note_member(self, header: records.Header) -> bool:
        """Store the membership in a header; return False when it is implausible."""
        comm = records.communicator(header.id, header.rank, header.n_ranks)
        if comm is None:
            return False
        place = (comm, header.rank)
        self.losses.note_format(named=header.comm_name is not None)
        if place not in self.memberships and self.series.places.claim(*place):
            nodes = max(0, min(header.nnodes, header.n_ranks))
            self.memberships[place] = Membership(comm, header.rank, header.n_ranks, header.comm_name or "", nodes)
        return True

    def note_proxy(self, header: records.Header, trace: records.ProxyTrace) -> bool:
        """Add a line of the network proxy; return False when it is implausible."""
        comm = records.communicator(header.id, header.rank, header.n_ranks)
        if comm is None or not self.series.places.claim(comm, header.rank):
            return comm is not None
        return add_proxy(self.since_start, (comm, header.rank), header.n_ranks, trace, self.series.reserve)

    def ring(self, header: records.Header | Run, *, p2p: bool) -> RingKey | None:
        """Return the key of a communicator's ring; None when the header is implausible or no place is left."""
        comm = records.communicator(header.id, header.rank, header.n_ranks)
        if comm is None or not self.series.places.claim(comm, header.rank):
            return None
        return comm, header.rank, P2P_RING if p2p else COLLECTIVE_RING

    def leave(self) -> None:
        """Release the writer's share of the limits; nothing is added afterwards."""
        self._shared.matching.leave(self.writer_key)
        self.series.places.leave()
        self.pairs.leave()

    def end(self, comms: frozenset[str]) -> Aggregate:
        """End communicators and return their totals. A communicator that returns starts at zero."""
        self._shared.matching.leave(self.writer_key, comms)  # operations that wait for a match still count
        ended = Aggregate(self.writer_key, self._admit, from_start=False)
        series, ended_series = self.series, ended.series
        _move(series.accumulators, ended_series.accumulators, comms)
        _move(series.sequences, ended_series.sequences, comms)
        _move(series.windows, ended_series.windows, comms)
        _move(series.transfers, ended_series.transfers, comms)
        _move(self.algorithms, ended.algorithms, comms)
        _move(self.since_start, ended.since_start, comms)
        self.losses.end(comms, ended.losses)
        reported = [place for place in islice(self.memberships, self._reported) if place[0] in comms]
        self._reported -= len(reported)
        series.forget(comms)
        self.pairs.leave(comms)
        _move(self.memberships, ended.memberships, comms)
        return ended

    def new_memberships(self) -> tuple[Membership, ...]:
        """Return the memberships that were not returned before."""
        new = tuple(islice(self.memberships.values(), self._reported, None))
        self._reported += len(new)
        return new

    def roll_windows(self) -> None:
        """End the window of every gauge."""
        for window in self.series.windows.values():
            window.roll()
        for transfer in self.series.transfers.values():
            transfer.roll()
        self.pairs.roll(self.series.places.ranks)

    def save(self) -> Saved:
        """Return all that the checkpoint must hold."""
        sequences = [(*place, sequence) for place, sequence in self.sequences.items()]
        return Saved(
            self.writer_key,
            self.series.from_start,
            self.last_progress_us,
            list(self.memberships.values()),
            list(self.accumulators.items()),
            sequences,
            self.losses.save(),
        )

    @classmethod
    def restore(cls, saved: Saved, admit: Admit, shared: Shared | None = None, group: Group = ()) -> Aggregate:
        """Restore the result of ``save``. Its series are kept even if the budget is smaller now."""
        aggregate = cls(saved.writer_key, admit, from_start=saved.from_start, shared=shared, group=group)
        aggregate.last_progress_us = saved.last_progress_us
        for comm, comm_rank, name, sequence in saved.sequences:
            aggregate.sequences[comm, comm_rank, name] = sequence
        aggregate.losses = WriterLosses(aggregate.sequences, from_start=saved.from_start, saved=saved.losses)
        for membership in saved.memberships:
            aggregate.memberships[membership.comm, membership.comm_rank] = membership
            aggregate.series.places.keep(membership.comm, membership.comm_rank)
        for key, accumulator in saved.accumulators:
            aggregate.series.keep(key, accumulator)
        return aggregate


def _move(living: dict[K, T], ended: dict[K, T], comms: frozenset[str]) -> None:
    for key in [key for key in living if key[0] in comms]:
        ended[key] = living.pop(key)
