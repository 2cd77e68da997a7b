"""Adds the lines of one file to the aggregates of its writers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from exporters.inspector.format.passes import DEFAULT_RING_LINES, FileContext, Run, pieces
from exporters.inspector.format.records import (
    BROKEN,
    P2P_NAMES,
    P2P_OTHER,
    CollectivePerf,
    DumpStats,
    Header,
    InspectorRecord,
    Metadata,
    Result,
    decode_lines,
    kind,
)
from exporters.inspector.totals.aggregate import Aggregate


class WriterName(NamedTuple):
    """The writer of a record, as the record names it."""

    hostname: str
    pid: int


GroupKey = tuple[str, int, int, str, int, str, int]
"""A RecordKey and the writer's pid. The host is not needed: a rank of a communicator is on one host."""
AggregateOf = Callable[[WriterName], Aggregate | None]  # Returns None when the writer limit is reached


def take(
    data: bytes,
    aggregate_of: AggregateOf,
    results: Counter[Result],
    context: FileContext | None = None,
    ring_lines: int = DEFAULT_RING_LINES,
) -> None:
    """Add whole lines to the aggregates of their writers; count each line's result in ``results``.

    ``context``: the file's open batch and run, which the lines update. ``ring_lines``: size of the smallest ring of the
    file's writers. If adding a group of records fails, only the group is lost (Result.FAILED). `take` raises the error.
    """
    intake = _Intake(aggregate_of, results, context or FileContext())
    for records, run in pieces(decode_lines(data), intake.context.run, ring_lines):
        if run is not intake.context.run:
            finish_run(intake.context, aggregate_of)
            intake.begin_run(run)
        intake.take(records)
        if intake.context.run is not None:  # a run longer than the ring is no single pass
            _end_pass(intake.context.run, aggregate_of, longer=True)
    if intake.error is not None:
        raise intake.error


def finish_run(context: FileContext, aggregate_of: AggregateOf) -> None:
    """End the open run, if any: its pass is over."""
    run, context.run = context.run, None
    if run is not None:
        _end_pass(run, aggregate_of)


def _end_pass(run: Run, aggregate_of: AggregateOf, *, longer: bool = False) -> None:
    """End a pass. A run with as many lines as the ring holds found the ring full. ``longer``: end only a longer run."""
    aggregate = aggregate_of(WriterName(run.hostname, run.pid))
    if aggregate is None:
        return
    ring, sizes = aggregate.ring(run, p2p=run.p2p), aggregate.rings
    ring_lines = sizes.p2p if run.p2p else sizes.collective
    if ring is not None and (run.lines > ring_lines or not longer):
        aggregate.losses.end_pass(ring, full=run.lines == ring_lines)


class _Intake:
    """The lines of one read, grouped by GroupKey."""

    def __init__(self, aggregate_of: AggregateOf, results: Counter[Result], context: FileContext) -> None:
        self.context = context
        self.error: Exception | None = None
        self._aggregate_of = aggregate_of
        self._results = results
        self._groups: dict[GroupKey, list[CollectivePerf]] = {}
        self._first_lines: list[tuple[Header, Metadata]] = []

    def begin_run(self, run: Run | None) -> None:
        """Begin a run of lines that may turn out to be a full ring."""
        self.context.run = run
        aggregate = None if run is None else self._aggregate_of(WriterName(run.hostname, run.pid))
        if run is not None and aggregate is not None and (ring := aggregate.ring(run, p2p=run.p2p)) is not None:
            aggregate.losses.begin_pass(ring)

    def take(self, records: list[InspectorRecord]) -> None:
        """Add records to their aggregates."""
        groups, first_lines = self._groups, self._first_lines
        latest: Metadata | None = None
        # The hot loop: most lines of a chunk share a few keys, so each line takes one look-up and one append.
        for record in records:
            perf, header, metadata = record.coll_perf, record.header, record.metadata
            if perf is None or header is None or metadata is None:
                parts = self._other(record)
                if parts is None:
                    continue
                perf, header, metadata = parts
            latest = metadata
            key = (
                header.id, header.rank, header.n_ranks,
                perf.coll, perf.coll_msg_size_bytes, perf.coll_timing_source, metadata.pid,
            )  # fmt: skip
            try:
                groups[key].append(perf)
            except KeyError:
                groups[key] = [perf]
                first_lines.append((header, metadata))
        self._flush()
        aggregate = None if latest is None else self._aggregate_of(WriterName(latest.hostname, latest.pid))
        if latest is not None and aggregate is not None:
            aggregate.last_progress_us = max(aggregate.last_progress_us, latest.dump_timestamp_us)

    def _flush(self) -> None:
        for (key, perfs), (header, metadata) in zip(self._groups.items(), self._first_lines, strict=True):
            try:
                aggregate = self._aggregate_of(WriterName(metadata.hostname, metadata.pid))
                if aggregate is None:
                    self._results[Result.ORIGIN_LIMIT] += len(perfs)
                else:
                    aggregate.add(key[:6], header, perfs, self._results)
            except Exception as error:  # noqa: BLE001  # whatever it is: counted here, raised by `take`
                self._results[Result.FAILED] += len(perfs)
                self.error = self.error or error
        self._groups.clear()
        self._first_lines.clear()

    def _other(self, record: InspectorRecord) -> tuple[CollectivePerf, Header, Metadata] | None:
        """Handle a line that is no collective with its own header and metadata; return the line's operation, if any."""
        header, metadata, perf = record.header, record.metadata, record.p2p_perf
        result = kind(record)
        if header is None and metadata is None and record is not BROKEN and (parts := self.context.next()) is not None:
            header, metadata = parts
            if record.coll_perf is not None:
                return record.coll_perf, header, metadata
        if perf is not None and header is not None and metadata is not None:
            perf.coll = P2P_NAMES.get(perf.coll, P2P_OTHER)
            return perf, header, metadata
        if record is BROKEN:
            self.context.end()
        if record.dump_stats is not None and header is not None and metadata is not None:
            result = self._begin_batch(header, metadata, record.dump_stats)
        elif record.proxy_trace is not None and header is not None and metadata is not None:
            aggregate = self._aggregate_of(WriterName(metadata.hostname, metadata.pid))
            if aggregate is None:
                result = Result.ORIGIN_LIMIT
            elif not aggregate.note_proxy(header, record.proxy_trace):
                result = Result.GARBAGE
        self._results[result] += 1
        return None

    def _begin_batch(self, header: Header, metadata: Metadata, stats: DumpStats) -> Result:
        """Begin a batch: store the membership of its rank, and the number of records that the rank's rings dropped."""
        if not self.context.begin(header, metadata, stats):
            return Result.GARBAGE
        aggregate = self._aggregate_of(WriterName(metadata.hostname, metadata.pid))
        if aggregate is None:
            return Result.ORIGIN_LIMIT
        if not aggregate.note_member(header):
            return Result.GARBAGE
        dropped = stats.coll_dropped_since_last_dump, stats.p2p_dropped_since_last_dump
        if any(dropped):
            self._flush()  # gaps before this line are not part of this loss
        for p2p, count in enumerate(dropped):
            if (ring := aggregate.ring(header, p2p=bool(p2p))) is not None:
                aggregate.losses.note_dropped(ring, max(0, count))
        return Result.DUMP_STATS
