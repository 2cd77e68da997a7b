"""Batches in a file, for plugins that do not say what their rings dropped. Pure.

Each pass of the plugin writes what stands in a communicator's ring, at once: lines whose times of writing follow each
other closely. Which pass filled the ring shows only at its end, by a number of lines that is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from exporters.inspector.format.records import InspectorRecord

MIN_RING_LINES = 256
"""Smaller batches of a power of two come about by chance. The plugin's ring holds 1024 unless told otherwise."""
MAX_STEP_US = 5000
"""Between two lines of one pass; a pass interrupted for longer is taken for two, and its loss for one of no cause."""
SAMPLE_LINES = 32
"""Every so many lines are compared to tell a batch from operations that were written one by one."""


class Run(msgspec.Struct):
    """Lines of one ring that were written at once."""

    header_id: str
    rank: int
    n_ranks: int
    hostname: str
    pid: int
    p2p: bool
    lines: int
    last_us: int

    def continues(self, record: InspectorRecord) -> bool:
        """Whether ``record`` was written together with the last line."""
        header, metadata = record.header, record.metadata
        if header is None or metadata is None or (record.p2p_perf is None) == self.p2p:
            return False
        same = header.rank == self.rank and header.id == self.header_id and metadata.pid == self.pid
        return same and 0 <= metadata.dump_timestamp_us - self.last_us <= MAX_STEP_US

    def filled_a_ring(self) -> bool:
        """Whether there are as many lines as a ring may hold."""
        return self.lines >= MIN_RING_LINES and self.lines.bit_count() == 1


def pieces(records: list[InspectorRecord], run: Run | None) -> Iterator[tuple[list[InspectorRecord], Run | None]]:
    """Cut ``records`` where the runs begin and end that may be or become as long as a ring; ``run`` is the open one.

    Each piece comes with its run, ``lines`` and ``last_us`` those at the piece's end.
    """
    if run is None and not _has_batches(records):
        yield records, None
        return
    done = 0
    if run is not None and records and run.continues(records[0]):
        done = _edge(records, 0, len(records)) + 1
        run.lines += done
        run.last_us = _written_us(records[done - 1])
        yield records[:done], run
    for first, last in _long_or_open(records, done):
        if done < first:
            yield records[done:first], None
        done = last + 1
        yield records[first:done], _run_of(records, first, last)
    if done < len(records):
        yield records[done:], None


def _long_or_open(records: list[InspectorRecord], start: int) -> Iterator[tuple[int, int]]:
    """From line ``start`` on, first and last line of the runs as long as a ring, and of the one still open at the end.

    Most lines are not looked at: a long run that begins at ``start`` or later holds the line a ring further on, or
    begins behind those that were not written at once with that line.
    """
    end = len(records) - 1
    while start <= end:
        probe = min(start + MIN_RING_LINES - 1, end)
        first = _edge(records, probe, start - 1)
        if start < first and probe < end:
            start = first
            continue
        last = _edge(records, probe, end + 1)
        start = last + 1
        while first < last and not _is_operation(records[first]):  # a batch's announcement is none of its lines
            first += 1
        # One line alone is no batch yet.
        if last - first + 1 >= (MIN_RING_LINES if last < end else 2):
            yield first, last


def _edge(records: list[InspectorRecord], position: int, beyond: int) -> int:
    """The last of the lines written at once with the one at ``position``, on the way to, and before, ``beyond``."""
    header, metadata = records[position].header, records[position].metadata
    if header is None or metadata is None:
        return position
    header_id, rank, pid, last_us = header.id, header.rank, metadata.pid, metadata.dump_timestamp_us
    collective = records[position].p2p_perf is None
    step = 1 if beyond > position else -1
    # The hot loop of batched files: as much as possible in local names, no calls.
    for there in range(position + step, beyond, step):
        record = records[there]
        header, metadata = record.header, record.metadata
        if header is None or metadata is None or (record.p2p_perf is None) is not collective:
            return there - step
        now_us = metadata.dump_timestamp_us
        same = header.rank == rank and header.id == header_id and metadata.pid == pid
        if not same or not 0 <= (now_us - last_us) * step <= MAX_STEP_US:
            return there - step
        last_us = now_us
    return beyond - step


def _run_of(records: list[InspectorRecord], first: int, last: int) -> Run | None:
    record = records[first]
    header, metadata = record.header, record.metadata
    if header is None or metadata is None:
        return None
    p2p, lines, last_us = record.p2p_perf is not None, last - first + 1, _written_us(records[last])
    return Run(header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, lines, last_us)


def _is_operation(record: InspectorRecord) -> bool:
    return record.coll_perf is not None or record.p2p_perf is not None


def _written_us(record: InspectorRecord) -> int:
    return 0 if record.metadata is None else record.metadata.dump_timestamp_us


def _has_batches(records: list[InspectorRecord]) -> bool:
    """Whether some of the lines were written at once, as far as samples and the last two show."""
    samples = records[::SAMPLE_LINES]
    return any(_are_close(one, two) for one, two in pairwise(samples)) or (
        len(records) > 1 and _are_close(records[-2], records[-1])
    )


def _are_close(one: InspectorRecord, two: InspectorRecord) -> bool:
    if one.metadata is None or two.metadata is None:
        return False
    return 0 <= two.metadata.dump_timestamp_us - one.metadata.dump_timestamp_us <= MAX_STEP_US
