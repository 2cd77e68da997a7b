"""The writers of one directory's files, with the totals of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from agent.sdk.files import FairTable, Share
from agent.sdk.ranks import WriterKey
from exporters.inspector.format.passes import DEFAULT_RING_LINES, RingSizes
from exporters.inspector.format.records import SeriesKey
from exporters.inspector.reading.intake import AggregateOf, WriterName
from exporters.inspector.reading.record_files import FileKey, RecordFile
from exporters.inspector.reading.turn import WriterEvidence
from exporters.inspector.totals.aggregate import Aggregate, Saved
from exporters.inspector.totals.bindings import Admit
from exporters.inspector.totals.frozen import WINDOW_SECONDS, WriterTotals
from exporters.inspector.totals.idleness import LOOK_SECONDS, IdleWatch
from exporters.inspector.totals.matching import Credit
from exporters.inspector.totals.shared import Shared

MAX_WRITERS_PER_FILE = 16
MAX_WRITERS = 1024
MAX_BINDINGS_IN_ALL = 65_536  # Limit of remembered bindings after a turn, over all writers: about 50 MB
UNKNOWN = Share(-1, "")  # The share of restored writers whose file is unknown


class Writers:
    """The living writers, at most MAX_WRITERS. At the limit, the user and directory with most writers lose a writer.

    ``retired``: last totals of removed writers; ``ended``: last totals of idle communicators of living writers. The
    next turn returns both. ``shares``: user and directory of the ``saved`` writers' files, by device and inode. Counts
    evicted and refused writers in ``skipped``.
    """

    def __init__(
        self,
        admit: Admit,
        shared: Shared,
        saved: Iterable[Saved],
        now: float,
        shares: Mapping[tuple[int, int], Share],
        skipped: Counter[str],
    ) -> None:
        self._admit = admit
        self._shared = shared
        self._skipped = skipped
        self._aggregates: FairTable[WriterKey, Aggregate] = FairTable()
        self._record_files: dict[WriterKey, RecordFile] = {}
        for saved_writer in saved:
            share = shares.get((saved_writer.writer_key.device, saved_writer.writer_key.inode), UNKNOWN)
            self._aggregates.put(saved_writer.writer_key, Aggregate.restore(saved_writer, admit, shared, share), share)
        self._reported: dict[WriterKey, int] = {}
        self._idle: dict[WriterKey, IdleWatch] = {}
        self._idle_at = float("-inf")
        self._rolled_at = now
        self.retired: list[WriterTotals] = []
        self.ended: list[WriterTotals] = []

    def __iter__(self) -> Iterator[Aggregate]:
        """Iterate over all writers."""
        return iter(self._aggregates.values())

    def learn_ring_sizes(self, rings: Mapping[WriterKey, RingSizes]) -> None:
        """Store the ring sizes of some writers."""
        for writer_key, sizes in rings.items():
            if (aggregate := self._aggregates.get(writer_key)) is not None:
                aggregate.rings = sizes

    def of(self, record_file: RecordFile, writer: WriterName) -> Aggregate | None:
        """Return the totals of one writer of a file; None when the writer limit is reached."""
        aggregate = record_file.writers.get(writer)
        if aggregate is not None:
            return aggregate
        new = writer not in record_file.known
        writer_key = WriterKey(*record_file.key, *writer)
        aggregate = self._aggregates.get(writer_key)
        if aggregate is None:
            share = record_file.file.share
            if (new and len(record_file.known) >= MAX_WRITERS_PER_FILE) or not self._reserve_writer(share):
                return None
            from_start = record_file.file.from_start and new
            aggregate = Aggregate(writer_key, self._admit, from_start=from_start, shared=self._shared, group=share)
            self._aggregates.put(writer_key, aggregate, share)
        record_file.known.add(writer)
        record_file.writers[writer] = aggregate
        self._record_files[writer_key] = record_file
        return aggregate

    def _reserve_writer(self, share: Share) -> bool:
        """Return True if ``share`` can have one more writer; at the limit, evict a writer of the largest share.

        The writer with the oldest last record is evicted. Its totals are published like those of an ended writer.
        """
        if len(self._aggregates) < MAX_WRITERS:
            return True
        self._skipped["writer_limit"] += 1
        losing_share = self._aggregates.losing_share(share)
        if losing_share == share:
            return False
        aggregates = [self._aggregates[writer_key] for writer_key in self._aggregates.of(losing_share)]
        self.retire([min(aggregates, key=lambda aggregate: aggregate.last_progress_us).writer_key])
        return True

    def smallest_ring(self, record_file: RecordFile) -> int:
        """Return the size in lines of the smallest watched ring among a file's writers, as far as known."""
        aggregates = record_file.writers.values() or [
            aggregate for aggregate in self if aggregate.writer_key[:3] == record_file.key
        ]
        return min((aggregate.rings.smallest_watched() for aggregate in aggregates), default=DEFAULT_RING_LINES)

    def known(self, key: FileKey) -> AggregateOf:
        """Return a function that looks up the totals of a file's existing writers."""
        return lambda writer: self._aggregates.get(WriterKey(*key, *writer))

    def credit_of(self, writer_key: WriterKey, key: SeriesKey) -> Credit | None:
        """Return the function that adds matched operations to a writer's totals; None without that writer."""
        aggregate = self._aggregates.get(writer_key)
        return None if aggregate is None else partial(aggregate.series.credit, key)

    def retire(self, writer_keys: Iterable[WriterKey]) -> None:
        """End writers and keep their last totals for publication."""
        for writer_key in writer_keys:
            aggregate = self._aggregates.pop(writer_key)
            self._reported.pop(writer_key, None)
            if aggregate is None:
                continue
            aggregate.leave()
            self.retired.append(WriterTotals.of(aggregate, caught_up=True))
            record_file = self._record_files.pop(writer_key, None)
            if record_file is not None and record_file.generation == writer_key.generation:
                record_file.writers.pop(WriterName(writer_key.hostname, writer_key.pid), None)

    def end_idle(self, now: float) -> None:
        """End the communicators that living writers have stopped using."""
        if now < self._idle_at:
            return
        self._idle_at = now + LOOK_SECONDS
        former, self._idle = self._idle, {}
        for writer_key, aggregate in self._aggregates.items():
            watch = self._idle[writer_key] = former.get(writer_key) or IdleWatch()
            record_file = self._record_files.get(writer_key)
            if record_file is not None and not record_file.file.drained:
                continue  # its unread lines may be of any communicator
            if comms := watch.look(aggregate, now):
                self.ended.append(WriterTotals.of(aggregate.end(comms), caught_up=True))
            aggregate.series.serve_first(watch.first)

    def tidy(self, now: float, now_us: int) -> None:
        """Limit the bindings, end the gauges' windows, and replace future record times of writers by the present."""
        self._bound_bindings()
        if now - self._rolled_at >= WINDOW_SECONDS:
            self._rolled_at = now
            for aggregate in self:
                aggregate.roll_windows()
        for aggregate in self:
            aggregate.last_progress_us = min(aggregate.last_progress_us, now_us)

    def _bound_bindings(self) -> None:
        """Clear the bindings of whole writers, the writer with the most bindings first, until the limit is kept."""
        bindings = sum(len(aggregate.bindings) for aggregate in self)
        while bindings > MAX_BINDINGS_IN_ALL:
            aggregate = max(self, key=lambda aggregate: len(aggregate.bindings))
            self._skipped["binding_limit"] += 1
            bindings -= len(aggregate.bindings)
            aggregate.bindings.clear()

    def evidence(self) -> tuple[WriterEvidence, ...]:
        """Return the writers' evidence that no turn has returned yet."""
        evidence = []
        for writer_key, aggregate in self._aggregates.items():
            memberships = aggregate.new_memberships()
            progress_us = aggregate.last_progress_us
            if memberships or self._reported.get(writer_key) != progress_us:
                self._reported[writer_key] = progress_us
                progress_seconds = progress_us / 1_000_000 if progress_us else None
                uid = self._aggregates.share_of(writer_key).uid
                evidence.append(WriterEvidence(writer_key, memberships, progress_seconds, None if uid < 0 else uid))
        return tuple(evidence)
