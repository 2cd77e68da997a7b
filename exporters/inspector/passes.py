"""Batches in a file, for plugins that do not say what their rings dropped. Pure.

Each pass of the plugin writes what stands in a communicator's ring, at once: lines whose times of writing follow each
other closely. Which pass filled the ring shows only at its end, by a number of lines that is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from exporters.inspector.records import Record

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

    def continues(self, record: Record) -> bool:
        """Whether ``record`` was written together with the last line."""
        header, metadata = record.header, record.metadata
        if header is None or metadata is None or (record.p2p_perf is None) == self.p2p:
            return False
        same = header.rank == self.rank and header.id == self.header_id and metadata.pid == self.pid
        return same and 0 <= metadata.dump_timestamp_us - self.last_us <= MAX_STEP_US

    def filled_a_ring(self) -> bool:
        """Whether there are as many lines as a ring may hold."""
        return self.lines >= MIN_RING_LINES and self.lines.bit_count() == 1


def pieces(records: list[Record], run: Run | None) -> Iterator[tuple[list[Record], Run | None]]:
    """Cut ``records`` where the runs begin and end that may be or become as long as a ring; ``run`` is the open one.

    Each piece comes with its run, ``lines`` and ``last_us`` those at the piece's end.
    """
    if run is None and not _has_batches(records):
        yield records, None
        return
    done = start = 0
    current = run
    first_lines = 0 if run is None else run.lines
    for position, record in enumerate(records):
        if current is not None and current.continues(record):
            current.lines += 1
            current.last_us = record.metadata.dump_timestamp_us if record.metadata is not None else current.last_us
            continue
        if current is not None and (first_lines or current.lines >= MIN_RING_LINES):
            if done < start:
                yield records[done:start], None
            if start < position:
                yield records[start:position], current
            done = position
        start, first_lines, current = position, 0, _begun(record)
    if current is None or (current.lines == 1 and not first_lines):  # one line is no batch yet
        start = len(records)
    if done < start:
        yield records[done:start], None
    if start < len(records):
        yield records[start:], current


def _begun(record: Record) -> Run | None:
    header, metadata = record.header, record.metadata
    if header is None or metadata is None or (record.coll_perf is None and record.p2p_perf is None):
        return None
    p2p = record.p2p_perf is not None
    return Run(
        header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, 1, metadata.dump_timestamp_us
    )


def _has_batches(records: list[Record]) -> bool:
    """Whether some of the lines were written at once, as far as samples and the last two show."""
    samples = records[::SAMPLE_LINES]
    return any(_are_close(one, two) for one, two in pairwise(samples)) or (
        len(records) > 1 and _are_close(records[-2], records[-1])
    )


def _are_close(one: Record, two: Record) -> bool:
    if one.metadata is None or two.metadata is None:
        return False
    return 0 <= two.metadata.dump_timestamp_us - one.metadata.dump_timestamp_us <= MAX_STEP_US
