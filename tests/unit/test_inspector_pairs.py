"""Pairs of ranks: their bandwidth, the shown pairs, and the limits."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from inspector_reading import rendered
from test_inspector_aggregate import WRITER_KEY
from test_inspector_formats import Sink, p2p

from agent.sdk.metrics import FairBudget
from exporters.inspector.families import SLOW_PAIRS
from exporters.inspector.format.records import KERNEL_TIMING, P2P_SEND, P2PPerf
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.pairs import (
    IDLE_ROLLS,
    LEAST_BYTES,
    MAX_PAIRS,
    MAX_PEERS,
    MAX_SAMPLES,
    MIN_OPERATIONS,
    TURN_ROLLS,
    WINDOW_ROLLS,
    End,
    Pair,
    Pairs,
)
from exporters.inspector.totals.shared import Shared

SIZE = 1_000_000
SIZE_CLASS = "2097152"
GIGABYTES_PER_SECOND = 1e9


def made(*, room: int = 10**6, admitted: int = 10**6) -> Pairs:
    """Return the pairs of a writer with this limit of series."""
    remaining = admitted

    def admit(series: int) -> bool:
        nonlocal remaining
        remaining -= series
        return remaining >= 0

    return Pairs(FairBudget(room), (), admit)


def operations(peer: int, times: Iterable[int]) -> list[P2PPerf]:
    """Return records of operations with a peer, with these durations in microseconds."""
    return [P2PPerf("p2p_send", number, SIZE, time, KERNEL_TIMING, peer=peer) for number, time in enumerate(times)]


def end(n_ranks: int = 64) -> End:
    """Return rank 0's end of a pair."""
    return End("abc", 0, n_ranks, P2P_SEND)


def window(pairs: Pairs, times: dict[int, int], own: End | None = None, ranks: int = 1) -> None:
    """Fill one window with operations of this duration (microseconds) for each peer."""
    for peer, time in times.items():
        pairs.note(own or end(), SIZE, operations(peer, [time] * MIN_OPERATIONS))
    for _ in range(WINDOW_ROLLS):
        pairs.roll(ranks)


def shown(pairs: Pairs) -> dict[int, float]:
    """Return GB/s by peer."""
    return {key[4]: bandwidth / GIGABYTES_PER_SECOND for key, bandwidth in pairs.shown().items()}


def test_what_is_shown_survives_waiting_for_the_peer() -> None:
    """The bandwidth is right even if seven of eight operations wait for the peer; a slow link still shows."""
    rng = random.Random(7)  # noqa: S311
    waits = [0 if number % 8 == 0 else rng.randrange(1_000, 50_000) for number in range(40)]
    pairs = made()
    for transfer_us, gigabytes in ((100, 10.0), (400, 2.5)):
        pairs.note(end(), SIZE, operations(1, [transfer_us + wait for wait in waits]))
        for _ in range(WINDOW_ROLLS):
            pairs.roll(1)
        assert shown(pairs) == {1: pytest.approx(gigabytes)}


def test_a_window_has_enough_time_and_operations() -> None:
    """A window needs ten seconds and MIN_OPERATIONS operations before its bandwidth is shown."""
    pairs = made()
    pairs.note(end(), SIZE, operations(1, [100] * (MIN_OPERATIONS - 1)))
    for _ in range(WINDOW_ROLLS):
        pairs.roll(1)
    assert shown(pairs) == {}
    pairs.note(end(), SIZE, operations(1, [100]))
    pairs.roll(1)
    assert shown(pairs) == {1: 10.0}
    pairs = made()
    pairs.note(end(), SIZE, operations(1, [100] * 100))
    for number in range(WINDOW_ROLLS):
        assert shown(pairs) == {}, number
        pairs.roll(1)
    assert shown(pairs) == {1: 10.0}


def test_only_large_messages_tell() -> None:
    """Only messages above LEAST_BYTES between two different ranks count."""
    pairs = made()
    pairs.note(end(), LEAST_BYTES, operations(1, [100] * MIN_OPERATIONS))
    for peer in (0, -1, 64, 2**62):
        pairs.note(end(), SIZE, operations(peer, [100] * MIN_OPERATIONS))
    for _ in range(WINDOW_ROLLS):
        pairs.roll(1)
    assert shown(pairs) == {}
    pairs.note(end(), LEAST_BYTES + 1, operations(1, [100] * MIN_OPERATIONS))
    for _ in range(WINDOW_ROLLS):
        pairs.roll(1)
    assert list(shown(pairs)) == [1]


def test_the_slowest_and_those_that_fell_most_are_shown() -> None:
    """Of nine pairs eight are shown: the four slowest, and the four furthest below their own best bandwidth."""
    pairs = made()
    times = {peer: 10 * peer if peer < 6 else 100 * peer for peer in range(1, MAX_PAIRS + 2)}
    window(pairs, times)
    assert set(shown(pairs)) == {*range(6, 10)} | {*range(1, 5)}  # none fell, so any four
    window(pairs, times | {5: 150})
    assert (len(shown(pairs)), shown(pairs)[5]) == (MAX_PAIRS, pytest.approx(1e3 / 150))


def test_series_do_not_come_and_go_by_chance() -> None:
    """While times vary by a fifth, the shown pairs stay; a much slower pair replaces one of them."""
    pairs = made()
    rng = random.Random(3)  # noqa: S311
    window(pairs, dict.fromkeys(range(1, 31), 100))
    first = set(shown(pairs))
    for _ in range(20):
        window(pairs, {peer: rng.randrange(100, 120) for peer in range(1, 31)})
        assert set(shown(pairs)) == first
    window(pairs, dict.fromkeys(range(1, 31), 110) | {30: 200})
    assert 30 in shown(pairs)
    assert len(shown(pairs)) == MAX_PAIRS
    pairs.roll(2)  # a second rank
    assert len(shown(pairs)) == 2 * MAX_PAIRS


def test_no_more_series_than_are_admitted() -> None:
    """Refused series are not shown; admitted series stay."""
    pairs = made(admitted=3)
    window(pairs, {1: 100, 2: 100})
    window(pairs, dict.fromkeys(range(1, 6), 100))
    assert len(pairs.shown()) == 3
    pairs.roll(1)
    assert len(pairs.shown()) == 3


def test_no_more_peers_than_the_bound_are_measured() -> None:
    """At most MAX_PEERS peers and the shown pairs are measured at once; two periods measure all MAX_PEERS + 1 peers."""
    pairs, n_ranks = made(), MAX_PEERS + 2
    times, seen = dict.fromkeys(range(1, n_ranks), 100), set()
    for _ in range(2 * TURN_ROLLS // WINDOW_ROLLS):
        window(pairs, times, end(n_ranks))
        measured = {key.peer for key in pairs.measured()}
        assert len(measured) <= MAX_PEERS + MAX_PAIRS
        seen |= measured
    assert seen == set(times)


def test_no_more_samples_than_the_bound() -> None:
    """A window keeps at most MAX_SAMPLES samples, spread over the whole window."""
    pair = Pair()
    for _ in range(MAX_SAMPLES):
        pair.add(1.0)
    assert len(pair.sample) == MAX_SAMPLES
    pair.add(1.0)
    assert len(pair.sample) == MAX_SAMPLES // 2 + 1
    pair = Pair()
    for number in range(10_000):
        pair.add(float(number))
        assert len(pair.sample) <= MAX_SAMPLES
    for _ in range(WINDOW_ROLLS):
        pair.roll()
    assert pair.bandwidth == pytest.approx(9_000, rel=0.03)


def test_a_pair_that_rests_has_no_series() -> None:
    """A pair without operations keeps its last value for five minutes, and is then forgotten."""
    pairs = made()
    window(pairs, {1: 100})
    for _ in range(IDLE_ROLLS - WINDOW_ROLLS):
        pairs.roll(1)
    assert shown(pairs) == {1: 10.0}
    pairs.roll(1)
    assert shown(pairs) == {}
    assert not pairs.measured()


def test_series_of_records() -> None:
    """The series name sender and receiver by their ranks in the communicator, with the same labels at both ends."""
    sink = Sink()
    for sn in range(MIN_OPERATIONS):
        sink.take(p2p(2 * sn + 1, p2p_msg_size_bytes=SIZE), p2p(2 * sn + 2, "Recv", p2p_msg_size_bytes=SIZE))
    for _ in range(WINDOW_ROLLS):
        sink.aggregate.roll_windows()
    assert rendered(SLOW_PAIRS, sink.aggregate) == {
        ("7", "1", "abc", "send", "1", "2", SIZE_CLASS): SIZE * 1e6 / 10,
        ("7", "1", "abc", "recv", "2", "1", SIZE_CLASS): SIZE * 1e6 / 10,
    }
    assert rendered(SLOW_PAIRS, sink.aggregate, withheld=True) == {}


def test_pairs_end_with_their_communicator_and_their_writer() -> None:
    """A pair frees its part of the limit when its communicator or its writer ends."""
    shared = Shared()
    aggregate = Aggregate(WRITER_KEY, lambda *_: True, from_start=True, shared=shared)
    sink = Sink()
    sink.aggregate = aggregate
    for leave in (lambda: aggregate.end(frozenset({"abc"})), aggregate.leave):
        sink.take(p2p(1, p2p_msg_size_bytes=SIZE))
        assert shared.pairs.taken == 1
        leave()
        assert shared.pairs.taken == 0
    shared.pairs.refused = 3
    assert shared.refused()["pair_limit"] == 3


def test_ends_without_a_pair_take_no_memory() -> None:
    """Operations without a measurable pair use no memory."""
    pairs = made(room=1)
    for n_ranks in range(2, 100):
        pairs.note(end(n_ranks), SIZE, operations(peer=-1, times=[100]))
        pairs.note(end(n_ranks), SIZE, operations(peer=1, times=[100]))
    assert len(pairs._pairs) == 1
