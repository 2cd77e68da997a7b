"""Finds the plugin's passes in a file, and the header for lines that have none: newer formats write it once per batch,
in the `dump_stats` line. Pure.

In each pass the plugin empties its rings. The lines of one ring are written together, within milliseconds of each
other. A pass that wrote as many lines as the ring holds found the ring full, which is known only at the end of the
pass. If the plugin does not report dropped records, a full ring is the only sign of loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.files import strtoll
from exporters.inspector.format.records import (
    DumpStats,
    Header,
    HeaderId,
    Hostname,
    InspectorRecord,
    Metadata,
    Pid,
    Rank,
    TimestampUs,
    Total,
)

DEFAULT_RING_LINES = 1024
MAX_RING_LINES = (1 << 32) - 1
MIN_WATCHED_LINES = 64
"""Smaller rings are not watched, though any job may set them: cutting a file into such small passes makes reading ten
times as costly. Records that such rings lose count as `filtered_or_lost`."""


class RingSizes(NamedTuple):
    """The sizes of one process's rings in records. For each ring, one pass writes at most this number of lines."""

    collective: int = DEFAULT_RING_LINES
    p2p: int = DEFAULT_RING_LINES

    def smallest_watched(self) -> int:
        """Return the smaller size among the watched rings."""
        return min((lines for lines in self if lines >= MIN_WATCHED_LINES), default=MAX_RING_LINES)


def ring_sizes(settings: Mapping[str, str]) -> RingSizes:
    """Return the ring sizes of a process with these environment variables."""
    return RingSizes(
        _ring_lines(settings.get("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE")),
        _ring_lines(settings.get("NCCL_INSPECTOR_DUMP_P2P_RING_SIZE")),
    )


def _ring_lines(text: str | None) -> int:
    """Return a ring size as the plugin parses it: a negative number gives the maximum, 0 or other text gives 1."""
    if text is None:
        return DEFAULT_RING_LINES
    lines = strtoll(text)
    return MAX_RING_LINES if lines < 0 else min(MAX_RING_LINES, max(1, lines))


MAX_STEP_US = 5000
"""Longest time between two lines of one pass. If a longer pause splits a pass, a loss has no known cause."""


class Run(msgspec.Struct, rename={"id": "header_id"}):
    """Consecutive lines of one ring that were written together."""

    id: HeaderId
    rank: Rank
    n_ranks: Rank
    hostname: Hostname
    pid: Pid
    p2p: bool
    lines: Total
    last_us: TimestampUs


def pieces(
    records: list[InspectorRecord], run: Run | None, ring_lines: int
) -> Iterator[tuple[list[InspectorRecord], Run | None]]:
    """Cut ``records`` into pieces at the ends of runs, and yield each piece with its run.

    A run of at least ``ring_lines`` lines is a piece, and so is the last run, which more lines may continue. The
    records between these runs are pieces with None. ``run``: the open run of earlier records. A run's ``lines`` and
    ``last_us`` are its values at the piece's end.
    """
    start = 0
    if run is not None and records and _continues(run, records[0]):
        start = _edge(records, 0, len(records)) + 1
        run.lines += start
        run.last_us = _written_us(records[start - 1])
        yield records[:start], run
    for first, end in _runs(records, start, ring_lines):
        if start < first:
            yield records[start:first], None
        start = end
        yield records[first:end], _run_of(records[first:end])
    if start < len(records):
        yield records[start:], None


def _runs(records: list[InspectorRecord], start: int, ring_lines: int) -> list[tuple[int, int]]:
    """Return (first line, end) of each run of at least ``ring_lines`` lines after ``start``, and of the last run.

    The search goes backwards and stops when fewer records than a full ring are left.
    """
    runs = []
    end = len(records)
    while end > start:
        first = _edge(records, end - 1, start - 1)
        if end == len(records) or end - first >= ring_lines:
            runs.append((first, end))
        if first - start < ring_lines:
            break
        end = first
    return runs[::-1]


def _edge(records: list[InspectorRecord], position: int, limit: int) -> int:
    """Go from ``position`` towards ``limit`` (exclusive); return the last position written together with it."""
    header, metadata = records[position].header, records[position].metadata
    if header is None or metadata is None:
        return position
    header_id, rank, pid, last_us = header.id, header.rank, metadata.pid, metadata.dump_timestamp_us
    p2p = records[position].coll_perf is None
    step = 1 if limit > position else -1
    # The hot loop of batched files: local names, no calls.
    for index in range(position + step, limit, step):
        record = records[index]
        header, metadata = record.header, record.metadata
        if header is None or metadata is None or (record.coll_perf is None) is not p2p:
            return index - step
        now_us = metadata.dump_timestamp_us
        same = header.rank == rank and header.id == header_id and metadata.pid == pid
        if not same or not 0 <= (now_us - last_us) * step <= MAX_STEP_US:
            return index - step
        last_us = now_us
    return limit - step


def _continues(run: Run, record: InspectorRecord) -> bool:
    """Return True when ``record`` was written together with the run's last line."""
    header, metadata = record.header, record.metadata
    if header is None or metadata is None or (record.coll_perf is None) is not run.p2p:
        return False
    same = header.rank == run.rank and header.id == run.id and metadata.pid == run.pid
    return same and 0 <= metadata.dump_timestamp_us - run.last_us <= MAX_STEP_US


def _run_of(records: list[InspectorRecord]) -> Run | None:
    header, metadata = records[0].header, records[0].metadata
    if header is None or metadata is None:
        return None
    p2p, last_us = records[0].coll_perf is None, _written_us(records[-1])
    return Run(header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, len(records), last_us)


def _written_us(record: InspectorRecord) -> int:
    return 0 if record.metadata is None else record.metadata.dump_timestamp_us


MAX_BATCH_LINES = 1 << 20  # A batch that announces more lines of one kind of record is implausible


class FileContext(msgspec.Struct):
    """The header and metadata for a batch's lines: new formats give them once, in the `dump_stats` line.

    ``lines``: how many of the announced lines are still to come. ``run``: the run whose end is not read yet.
    """

    header: Header | None = None
    metadata: Metadata | None = None
    lines: Annotated[int, msgspec.Meta(ge=0, le=3 * MAX_BATCH_LINES)] = 0
    run: Run | None = None

    def begin(self, header: Header, metadata: Metadata, stats: DumpStats) -> bool:
        """Begin a batch; return False when its first line is implausible."""
        announced = (stats.coll_records, stats.p2p_records, stats.proxy_records)
        is_plausible = all(0 <= lines <= MAX_BATCH_LINES for lines in announced)
        self.end()
        if is_plausible and any(announced):
            self.header, self.metadata, self.lines = header, metadata, sum(announced)
        return is_plausible

    def next(self) -> tuple[Header, Metadata] | None:
        """Return header and metadata for a line that has none; None when no batch announced the line."""
        if self.header is None or self.metadata is None:
            return None
        parts = self.header, self.metadata
        self.lines -= 1
        if self.lines <= 0:
            self.end()
        return parts

    def end(self) -> None:
        """End the batch, as after lost lines: later lines may be of another batch and get no header from this one."""
        self.header = self.metadata = None
        self.lines = 0
