"""Passes in a file: the quick search finds what a look at every line finds."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from exporters.inspector.format.passes import MAX_STEP_US, Run, pieces
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
"""In place of the 1024 of life, so that few lines make many runs."""
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
    header, metadata, p2p = record.header, record.metadata, record.coll_perf is None
    if header is None or metadata is None:
        return None
    return Run(
        header.id, header.rank, header.n_ranks, metadata.hostname, metadata.pid, p2p, 1, metadata.dump_timestamp_us
    )


def together(run: Run | None, record: InspectorRecord) -> bool:
    """Whether a line is of the run, by every one of its members."""
    one = begun(record)
    if run is None or one is None:
        return False
    same = (run.id, run.rank, run.pid, run.p2p) == (one.id, one.rank, one.pid, one.p2p)
    return same and 0 <= one.last_us - run.last_us <= MAX_STEP_US


def plain_pieces(records: list[InspectorRecord], run: Run | None) -> list[tuple[int, Run | None]]:
    """What ``pieces`` gives, as numbers of lines with their runs, by a look at every line."""
    runs: list[tuple[int, Run | None, bool]] = [(0, run, True)]
    for record in records:
        lines, current, inherited = runs[-1]
        if current is not None and record.metadata is not None and together(current, record):
            current.lines, current.last_us = current.lines + 1, record.metadata.dump_timestamp_us
            runs[-1] = (lines + 1, current, inherited)
        else:
            runs.append((1, begun(record), False))
    made: list[tuple[int, Run | None, bool]] = []
    for number, (lines, current, inherited) in enumerate(runs):
        told = current if inherited or number == len(runs) - 1 or lines >= RING_LINES else None
        plain = told is None and not inherited and number != len(runs) - 1
        if plain and made and made[-1][2]:
            made[-1] = (made[-1][0] + lines, None, True)
        elif lines:
            made.append((lines, told, plain))
    return [(lines, told) for lines, told, _ in made]


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


@pytest.mark.slow
@given(files())
@settings(max_examples=500, deadline=None)
def test_the_quick_search_finds_what_a_plain_one_does(chunks: list[list[InspectorRecord]]) -> None:
    """Chunk by chunk, with the run that the one before left open, pieces and runs are those of a look at every line."""
    run: Run | None = None
    for chunk in chunks:
        expected, found = plain_pieces(chunk, copy.copy(run)), []
        for lines, each in pieces(chunk, run, RING_LINES):
            found.append((len(lines), copy.copy(each)))
            run = each
        assert (found, sum(lines for lines, _ in found)) == (expected, len(chunk))
