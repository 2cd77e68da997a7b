"""Passes in a file, for plugins that do not report what their rings dropped. Pure.

Each pass of the plugin empties the rings: the lines of one ring are written together, at times that follow each other
closely. A pass with as many lines as the ring holds has found it full, which shows only at the pass' end.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from exporters.inspector.format.records import (
    HeaderId,
    Hostname,
    InspectorRecord,
    Pid,
    Rank,
    TimestampUs,
)
from exporters.inspector.format.series import Total

MAX_STEP_US = 5000
"""Between two lines of one pass; a pass interrupted for longer is taken for two, and its loss for one of no cause."""


class Run(msgspec.Struct):
    """Lines of one ring that were written together."""

    header_id: HeaderId
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
    """Cut ``records`` where the runs begin and end that have at least ``ring_lines`` lines, or may come to have them.

    ``run`` is the one that the last records left open. Each piece comes with its run, whose ``lines`` and ``last_us``
    are those at the piece's end; None where no run is of interest.
    """
    done = 0
    if run is not None and records and _continues(run, records[0]):
        done = _edge(records, 0, len(records)) + 1
        run.lines += done
        run.last_us = _written_us(records[done - 1])
        yield records[:done], run
    for first, end in _runs(records, done, ring_lines):
        if done < first:
            yield records[done:first], None
        done = end
        yield records[first:end], _run_of(records[first:end])
    if done < len(records):
        yield records[done:], None


def _runs(records: list[InspectorRecord], start: int, ring_lines: int) -> list[tuple[int, int]]:
    """First line and end of the runs from ``start`` on that have ``ring_lines`` lines, and of the one still open.

    Read from the end, so that of records which cannot hold a whole ring only the open run is looked at.
    """
    found = []
    end = len(records)
    while end > start:
        first = _edge(records, end - 1, start - 1)
        if end == len(records) or end - first >= ring_lines:
            found.append((first, end))
        if first - start < ring_lines:
            break
        end = first
    return found[::-1]


def _edge(records: list[InspectorRecord], position: int, beyond: int) -> int:
    """The last of the lines written together with the one at ``position``, on the way to, and before, ``beyond``."""
    header, metadata = records[position].header, records[position].metadata
    if header is None or metadata is None:
        return position
    header_id, rank, pid, last_us = header.id, header.rank, metadata.pid, metadata.dump_timestamp_us
    p2p = records[position].coll_perf is None
    step = 1 if beyond > position else -1
    # The hot loop of batched files: as much as possible in local names, no calls.
    for there in range(position + step, beyond, step):
        record = records[there]
        header, metadata = record.header, record.metadata
        if header is None or metadata is None or (record.coll_perf is None) is not p2p:
            return there - step
        now_us = metadata.dump_timestamp_us
        same = header.rank == rank and header.id == header_id and metadata.pid == pid
        if not same or not 0 <= (now_us - last_us) * step <= MAX_STEP_US:
            return there - step
        last_us = now_us
    return beyond - step


def _continues(run: Run, record: InspectorRecord) -> bool:
    """Return whether ``record`` was written together with the run's last line."""
    header, metadata = record.header, record.metadata
    if header is None or metadata is None or (record.coll_perf is None) is not run.p2p:
        return False
    same = header.rank == run.rank and header.id == run.header_id and metadata.pid == run.pid
    return same and 0 <= metadata.dump_timestamp_us - run.last_us <= MAX_STEP_US


def _run_of(records: list[InspectorRecord]) -> Run | None:
    header, metadata = records[0].header, records[0].metadata
    if header is None or metadata is None:
        return None
    p2p, last_us = records[0].coll_perf is None, _written_us(records[-1])
    return Run(header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, len(records), last_us)


def _written_us(record: InspectorRecord) -> int:
    return 0 if record.metadata is None else record.metadata.dump_timestamp_us
