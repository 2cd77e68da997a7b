"""Batches in a file: the quick search finds what a look at every line finds."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.inspector.format import passes as module
from exporters.inspector.format.passes import MAX_STEP_US, SAMPLE_LINES, Run, pieces
from exporters.inspector.format.records import (
    BROKEN,
    CollectivePerf,
    DumpStats,
    Header,
    InspectorRecord,
    Metadata,
    P2PPerf,
)

RING_LINES = 8
"""In place of the 256 of life, so that few lines make many runs."""
COLLECTIVE = CollectivePerf("AllReduce", 0, 8192, 10, "kernel_gpu")
P2P = P2PPerf("Send", 0, 8192, 10, "kernel_gpu")
BODIES = (
    {"coll_perf": COLLECTIVE},
    {"p2p_perf": P2P},
    {"coll_perf": COLLECTIVE, "p2p_perf": P2P},
    {"dump_stats": DumpStats()},
    {},
)


def begun(record: InspectorRecord) -> Run | None:
    """A run of this one line, if it can begin one."""
    header, metadata, p2p = record.header, record.metadata, record.p2p_perf is not None
    if header is None or metadata is None or not (p2p or record.coll_perf is not None):
        return None
    return Run(
        header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, 1, metadata.dump_timestamp_us
    )


def close(one: InspectorRecord, two: InspectorRecord) -> bool:
    """Whether two lines may be of one pass."""
    if one.metadata is None or two.metadata is None:
        return False
    return 0 <= two.metadata.dump_timestamp_us - one.metadata.dump_timestamp_us <= MAX_STEP_US


def plain_pieces(records: list[InspectorRecord], run: Run | None) -> list[tuple[int, Run | None]]:
    """What ``pieces`` gives, as numbers of lines with their runs, by a look at every line."""
    looked_at = [*pairwise(records[::SAMPLE_LINES]), *pairwise(records[-2:])]
    if run is None and not any(close(one, two) for one, two in looked_at):
        return [(len(records), None)]
    runs: list[tuple[int, Run | None, bool]] = [(0, run, True)]
    for record in records:
        lines, current, inherited = runs[-1]
        if current is not None and current.continues(record) and record.metadata is not None:
            current.lines, current.last_us = current.lines + 1, record.metadata.dump_timestamp_us
            runs[-1] = (lines + 1, current, inherited)
        else:
            runs.append((1, begun(record), False))
    made: list[tuple[int, Run | None]] = []
    for number, (lines, current, inherited) in enumerate(runs):
        least = 1 if inherited else 2 if number == len(runs) - 1 else RING_LINES
        told = current if lines >= least else None
        if told is None and made and made[-1][1] is None:
            made[-1] = (made[-1][0] + lines, None)
        elif lines:
            made.append((lines, told))
    return made


STEPS = st.sampled_from([0, 1, 1, 1, 5, MAX_STEP_US, MAX_STEP_US + 1, -1])
BATCH = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([7, 7, 8]),
    st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    st.one_of(st.lists(STEPS, min_size=1, max_size=4), st.integers(1, 3 * RING_LINES).map(lambda lines: [1] * lines)),
)


@st.composite
def files(draw: st.DrawFn) -> list[list[InspectorRecord]]:
    """The lines of a file as they are read, chunk by chunk: batches, broken lines and clocks set back among them."""
    now_us, records = 1_690_000_000_000_000, []
    for comm, rank, pid, body, steps_us in draw(st.lists(BATCH, max_size=20)):
        for step_us in steps_us:
            now_us += step_us
            records.append(InspectorRecord(Header(comm, rank, 4), Metadata(now_us, "here", pid), **BODIES[body]))  # type: ignore[arg-type]
        if draw(st.integers(0, 5)) == 0:
            records.append(draw(st.sampled_from([BROKEN, InspectorRecord(coll_perf=COLLECTIVE)])))
    cuts = sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)))
    return [records[start:end] for start, end in pairwise([0, *cuts, len(records)])]


@given(files())
@settings(max_examples=500, deadline=None)
def test_the_quick_search_finds_what_a_plain_one_does(chunks: list[list[InspectorRecord]]) -> None:
    """Chunk by chunk, with the run that the one before left open, pieces and runs are those of a look at every line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_RING_LINES", RING_LINES)
        run: Run | None = None
        for chunk in chunks:
            expected = plain_pieces(chunk, copy.copy(run))
            found = []
            for lines, each in pieces(chunk, run):
                found.append((len(lines), copy.copy(each)))
                run = each
            assert found == expected
            assert sum(lines for lines, _ in found) == len(chunk)
