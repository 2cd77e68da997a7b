"""The transfer time: the duration of operations without waiting."""

import random
from statistics import quantiles

import pytest
from inspector_reading import rendered
from inspector_records import line
from test_inspector_aggregate import WRITER_KEY, feed, fresh

from exporters.inspector.families import TRANSFER
from exporters.inspector.totals.accumulators import MAX_ROLLS, MAX_SAMPLES, MIN_SAMPLES, ROLLS, TransferWindow
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.shared import Shared


def rolled(times: list[int], rolls: int = ROLLS) -> TransferWindow:
    """Return a window with ``times`` after ``rolls`` rolls of the reader."""
    window = TransferWindow()
    window.add(times)
    for _ in range(rolls):
        window.roll()
    return window


@pytest.mark.parametrize(("times", "rolls", "more", "microseconds"), [
    ([*range(5_000, 5_089), *[300] * 11], ROLLS, [], 300),  # nine in ten operations wait and are left out
    ([1, *[300] * 19], ROLLS, [], 300),  # one odd record has no effect
    ([300] * MIN_SAMPLES, ROLLS, [], 300),
    ([300] * (MIN_SAMPLES - 1), ROLLS, [], None),
    ([300] * (MIN_SAMPLES - 1), ROLLS, [300], 300),  # the window goes on with its times
    ([300] * (MIN_SAMPLES - 1), MAX_ROLLS, [300], None),  # the window ends after a minute
])  # fmt: skip
def test_the_length_of_a_window(times: list[int], rolls: int, more: list[int], microseconds: int | None) -> None:
    """A window of ten seconds with enough operations gives the tenth percentile; otherwise it lasts up to a minute."""
    window = rolled(times, rolls)
    if more:
        window.add(more)
        window.roll()
        window.roll()
    assert window.last_us == microseconds


def test_what_is_old_is_forgotten() -> None:
    """A window's value is dropped a minute after its end."""
    window = rolled([300] * MIN_SAMPLES)
    for _ in range(MAX_ROLLS - 1):
        window.roll()
    assert window.last_us == 300
    window.roll()
    assert window.last_us is None


@pytest.mark.parametrize("batch", [1, 7, 64, 1000, 20_000])
def test_many_operations(batch: int) -> None:
    """The tenth percentile is exact within the error of the samples, for any number of operations."""
    chance = random.Random(7)  # noqa: S311  the same times every time
    times = [chance.randrange(1000, 2000) for _ in range(20_000)]
    window = TransferWindow()
    for begin in range(0, len(times), batch):
        window.add(times[begin : begin + batch])
        assert len(window.times) <= MAX_SAMPLES
    window.roll()
    window.roll()
    assert window.last_us == pytest.approx(quantiles(times, n=10)[0], abs=60)


def of_rank(comm_rank: int, microseconds: int, **changes: str | int) -> Aggregate:
    """Return the totals of a rank with operations of this duration, after ten seconds."""
    aggregate = fresh()
    feed((line(sn, coll_exec_time_us=microseconds, rank=comm_rank, **changes) for sn in range(MIN_SAMPLES)), aggregate)
    for _ in range(ROLLS):
        aggregate.roll_windows()
    return aggregate


def test_the_shortest_of_a_node_is_shown() -> None:
    """The series has the shorter time, in seconds, of two ranks whose communicator has members on other nodes."""
    ranks = of_rank(1, 900), of_rank(2, 400)
    assert rendered(TRANSFER, *ranks) == {("7", "abc", "AllReduce", "8192"): 0.0004}
    assert rendered(TRANSFER, *ranks, withheld=True) == {}


def test_not_where_all_members_are_here() -> None:
    """A communicator with all members on this node has no transfer time, because its operations are matched."""
    shared = Shared()
    aggregate = Aggregate(WRITER_KEY, lambda *_: True, from_start=True, shared=shared)
    feed([line(coll_sn=n, rank=rank, n_ranks=2) for rank in (0, 1) for n in range(MIN_SAMPLES)], aggregate)
    for _ in range(ROLLS):
        aggregate.roll_windows()
    assert rendered(TRANSFER, aggregate) == {("7", "abc", "AllReduce", "8192"): 0.00001}
    shared.matching.settle()
    assert rendered(TRANSFER, aggregate) == {}
