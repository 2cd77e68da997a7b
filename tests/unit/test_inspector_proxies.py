"""Traces of the network proxy: times, connections and limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from inspector_reading import rendered
from inspector_records import line
from test_inspector_aggregate import feed, fresh
from test_inspector_formats import PROXY_STEP, dumped, marker

from agent.sdk.ranks import RankLabel
from exporters.inspector.families import PROXY_SECONDS
from exporters.inspector.format.records import MAX_EXEC_TIME_US, MAX_TOTAL, Result, decode_lines
from exporters.inspector.reading.intake import take
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import Inheritance
from exporters.inspector.totals.since_start import MAX_PEERS, Counted, add_proxy

FLAT_SEND = {"record_type": "proxy_step", "peer": 3, "direction": "send", "gpu_produce_us": 1, "peer_credit_us": 2,
             "wire_us": 4, "total_us": 99}  # fmt: skip
FLAT_RECV = {"record_type": "proxy_step", "peer": 2, "direction": "recv", "wire_us": 8, "flush_us": 16,
             "gpu_consume_us": 32}  # fmt: skip


KEY = ("abc", 1, Counted.PROXY, ("send", "3"))


def traced(*traces: dict[str, Any], aggregate: Aggregate | None = None) -> tuple[Aggregate, Counter[Result]]:
    """Return the totals of a batch of rank 1 of 4 (communicator abc) with these traces, and the lines' results."""
    aggregate, results = aggregate or fresh(), Counter[Result]()
    batch = marker(0, proxy_records=len(traces)) + b"".join(dumped(proxy_trace=trace) for trace in traces)
    take(batch, lambda _: aggregate, results)
    return aggregate, results - Counter({Result.DUMP_STATS: 1})


def sums(*traces: dict[str, Any], aggregate: Aggregate | None = None) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return the microseconds of the three phases, by direction and peer."""
    times = traced(*traces, aggregate=aggregate)[0].since_start
    return {(direction, peer): own for (_, _, _, (direction, peer)), own in times.items()}


def test_steps_add_up_by_peer_and_phase() -> None:
    """Steps count in a flat line, a segment and an operation's final line; lines without steps add nothing."""
    segment = PROXY_STEP | {"record_type": "proxy_op_segment", "steps": [{"wire_us": 5}, {"wire_us": 7}]}
    empty = PROXY_STEP | {"record_type": "proxy_op_start", "steps": []}
    assert sums(FLAT_SEND, segment, PROXY_STEP, empty, FLAT_RECV, FLAT_RECV) == {
        ("send", "3"): (1 + 10, 2 + 10, 4 + 5 + 7 + 10),
        ("recv", "2"): (2 * 8, 2 * 16, 2 * 32),
    }


@pytest.mark.parametrize(
    "changes",
    [{"peer": 4}, {"peer": -1}, {"direction": "up"}, {"wire_us": -1}, {"wire_us": MAX_EXEC_TIME_US + 1},
     {"steps": [{"wire_us": -1}]}],
)  # fmt: skip
def test_what_cannot_be_true_is_garbage(changes: dict[str, Any]) -> None:
    """A peer outside of the communicator, an unknown direction, or an invalid time makes only that line garbage."""
    aggregate, results = traced(FLAT_SEND | changes, FLAT_SEND | {"wire_us": MAX_EXEC_TIME_US})
    assert results == {Result.GARBAGE: 1, Result.PROXY_TRACE: 1}
    assert list(aggregate.since_start.values()) == [(1, 2, MAX_EXEC_TIME_US)]


def test_bounds() -> None:
    """Peers above MAX_PEERS and refused peers share the connection `other`; a total stops at MAX_TOTAL."""
    aggregate = fresh()
    for peer in range(MAX_PEERS + 2):
        trace = _decoded(FLAT_SEND | {"peer": peer})
        add_proxy(aggregate.since_start, ("abc", 1), 64, trace, aggregate.series.reserve)
    peers = [labels[-1] for *_, labels in aggregate.since_start]
    assert peers == [*map(str, range(MAX_PEERS)), "other"]
    assert aggregate.since_start["abc", 1, Counted.PROXY, ("send", "other")] == (2, 4, 8)
    assert sums(FLAT_SEND, aggregate=fresh(admitted=2)) == {("send", "other"): (1, 2, 4)}
    full = fresh()
    full.since_start[KEY] = (MAX_TOTAL, MAX_TOTAL - 1, 0)
    assert sums(FLAT_SEND, aggregate=full) == {("send", "3"): (MAX_TOTAL, MAX_TOTAL, 4)}


def _decoded(trace: dict[str, Any]) -> Any:
    return decode_lines(dumped(proxy_trace=trace))[0].proxy_trace


def test_an_expired_writer_leaves_its_times_to_the_next_of_its_rank() -> None:
    """An expired writer's times stay while a later writer of its rank has the connection, and are then removed."""
    totals = WriterTotals.of(traced(FLAT_SEND)[0], caught_up=True)
    writer = WriterTotals(totals.writer_key, True, 0, frozenset({("abc", 1)}), {}, since_start=totals.since_start)  # noqa: FBT003
    labels = {(writer.writer_key, "abc", 1): RankLabel("7", "42")}
    inherited, key = Inheritance(), ("7", Counted.PROXY, ("42", "abc", "send", "3"))
    inherited.take(writer, labels)
    inherited.take(writer, labels)
    inherited.prune([writer], labels)
    assert inherited.copy().since_start == {key: (2, 4, 8)}
    inherited.prune([], labels)
    assert inherited.since_start == {}
    assert writer.series() == 3


def test_what_is_shown() -> None:
    """The series are seconds by rank, communicator, direction, peer and phase."""
    aggregate, _ = traced(FLAT_RECV)
    feed([line()], aggregate)
    assert rendered(PROXY_SECONDS, aggregate) == {
        ("7", "1", "abc", "recv", "2", phase): pytest.approx(seconds)
        for phase, seconds in (("wire", 8e-6), ("flush", 16e-6), ("gpu_consume", 32e-6))
    }
