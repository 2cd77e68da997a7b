from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec
import pytest
from inspector_records import line

from agent.sdk.metrics import Group
from agent.sdk.ranks import WriterKey
from exporters.inspector.format.passes import FileContext
from exporters.inspector.format.records import MAX_SEQUENCE_NUMBER, Result, SeriesKey
from exporters.inspector.reading.intake import finish_run, take
from exporters.inspector.totals import bindings as module, shared as shared_module
from exporters.inspector.totals.accumulators import Accumulator
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.losses import REORDER, Sequence
from exporters.inspector.totals.matching import Arrivals
from exporters.inspector.totals.shared import MAX_COMMUNICATORS, MAX_PLACES, MAX_RANKS_PER_WRITER

WRITER_KEY = WriterKey(1, 2, 0, "gpu-node-00", 7)


def feed(lines: Iterable[bytes], aggregate: Aggregate) -> Counter[Result]:
    """Add records to one aggregate, whichever writer they name."""
    results: Counter[Result] = Counter()
    context = FileContext()
    take(b"".join(lines), lambda _: aggregate, results, context)
    finish_run(context, lambda _: aggregate)
    return results


def fresh(*, admitted: int = 10**9, from_start: bool = True) -> Aggregate:
    """Return an aggregate with a budget of ``admitted`` series."""
    held = 0

    def admit(_: Hashable, series: int, ranks: int, group: Group) -> bool:
        nonlocal held
        if held + series > admitted:
            return False
        held += series
        return True

    return Aggregate(WRITER_KEY, admit, from_start=from_start)


def test_each_rank_of_a_writer_has_its_budget() -> None:
    """A writer of three ranks has the series budget of three ranks; at most MAX_RANKS_PER_WRITER ranks count."""
    requests: list[int] = []
    aggregate = Aggregate(
        WRITER_KEY, lambda _owner, _series, ranks, _group: requests.append(ranks) is None, from_start=True
    )
    feed([line(), line(rank=2), line(rank=0), line(id="0xdef", rank=3)], aggregate)
    assert max(requests) == 3
    feed([line(rank=rank, n_ranks=64) for rank in range(MAX_RANKS_PER_WRITER + 1)], aggregate)
    assert max(requests) == MAX_RANKS_PER_WRITER


@pytest.mark.parametrize(("changes", "result"), [
    ({}, Result.ACCEPTED),
    ({"coll_msg_size_bytes": 2**63 - 1, "coll_exec_time_us": 86_400_000_000, "coll": "All2All"}, Result.ACCEPTED),
    ({"coll_msg_size_bytes": 2**63}, Result.GARBAGE),
    ({"coll_msg_size_bytes": -1}, Result.GARBAGE),
    ({"coll_exec_time_us": 86_400_000_001}, Result.GARBAGE),
    ({"coll_exec_time_us": -1}, Result.GARBAGE),
    ({"coll_exec_time_us": 0}, Result.ZERO_TIME),
    ({"coll_sn": -1}, Result.GARBAGE),
    ({"coll_sn": MAX_SEQUENCE_NUMBER + 1}, Result.GARBAGE),
    ({"rank": 4}, Result.GARBAGE),
    ({"n_ranks": 2**20 + 1}, Result.MALFORMED),
    ({"id": "world"}, Result.GARBAGE),
    ({"id": "0x" + "f" * 16}, Result.ACCEPTED),
    ({"id": "0x" + "f" * 17}, Result.MALFORMED),
    ({"hostname": ""}, Result.MALFORMED),
    ({"hostname": "h" * 255}, Result.ACCEPTED),
    ({"hostname": "h" * 256}, Result.MALFORMED),
    ({"pid": 0}, Result.MALFORMED),
    ({"pid": 2**31 - 1}, Result.ACCEPTED),
    ({"pid": 2**31}, Result.MALFORMED),
    ({"comm_name": "n" * 255}, Result.ACCEPTED),
    ({"comm_name": "n" * 256}, Result.MALFORMED),
    ({"coll": "x" * 64}, Result.ACCEPTED),
    ({"coll": "x" * 65}, Result.MALFORMED),
    ({"coll_timing_source": "x" * 64}, Result.NOT_KERNEL_TIMED),
    ({"coll_timing_source": "x" * 65}, Result.MALFORMED),
    ({"dump_timestamp_us": -1}, Result.MALFORMED),
    ({"dump_timestamp_us": 2**63}, Result.MALFORMED),
    ({"coll_sn": 2**63}, Result.MALFORMED),
    # 4 ranks, AllReduce: 1.5 times the size on the bus; 1e5 GB/s is 1e8 bytes per microsecond.
    ({"coll_msg_size_bytes": 200_000_000, "coll_exec_time_us": 3}, Result.ACCEPTED),
    ({"coll_msg_size_bytes": 200_000_002, "coll_exec_time_us": 3}, Result.GARBAGE),
    ({"coll": "Invalid"}, Result.ACCEPTED),
])  # fmt: skip
def test_what_becomes_of_a_line(changes: dict[str, Any], result: Result) -> None:
    """Each record has exactly one result, and only accepted records are added up."""
    aggregate = fresh()
    assert +feed([line(**changes)], aggregate) == {result: 1}
    assert sum(sums.operations for sums in aggregate.accumulators.values()) == (result is Result.ACCEPTED)


def test_totals_stop_where_a_checkpoint_can_hold_them() -> None:
    """Huge but valid records never make a total that a checkpoint refuses."""
    aggregate = fresh()
    feed([line(coll="All2All", coll_msg_size_bytes=2**63 - 1, coll_sn=sn * 2**51) for sn in range(5)], aggregate)
    [sums] = aggregate.accumulators.values()
    assert (sums.operations, sums.message_bytes) == (5, 2**62)
    msgspec.msgpack.encode(aggregate.save())


def test_unknown_collective_is_other() -> None:
    """A collective's name becomes a label only if NCCL defines it, so that a job cannot invent labels."""
    aggregate = fresh()
    feed([line(coll=f"made_up_{number}") for number in range(100)], aggregate)
    [(key, sums)] = aggregate.accumulators.items()
    assert (key.collective, sums.operations, sums.bus_bytes) == ("other", 100, 0)
    assert feed([line(coll="Unheard", coll_exec_time_us=0)], fresh()) == {Result.ZERO_TIME: 1}


def test_communicators_are_bounded() -> None:
    """Communicators above MAX_COMMUNICATORS are added up as `other`, and their sequence numbers are not tracked."""
    aggregate = fresh()
    feed([line(id=hex(number + 1)) for number in range(MAX_COMMUNICATORS + 1)], aggregate)
    assert len({key.comm for key in aggregate.accumulators} - {"other"}) == MAX_COMMUNICATORS
    assert aggregate.accumulators[SeriesKey("other", 0, "AllReduce", "other")].operations == 1
    assert len(aggregate.sequences) == MAX_COMMUNICATORS


def test_places_and_memberships_are_bounded() -> None:
    """Ranks of a writer above the limit are added up together, and are not reported as members."""
    aggregate = fresh()
    feed([line(rank=rank, n_ranks=1000) for rank in range(MAX_PLACES + 1)], aggregate)
    assert (len(aggregate.new_memberships()), len(aggregate.accumulators)) == (MAX_PLACES, MAX_PLACES + 1)


def test_forgotten_bindings_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are more sizes than MAX_BINDINGS, the totals are still exact."""
    monkeypatch.setattr(module, "MAX_BINDINGS", 3)
    aggregate = fresh()
    for _ in range(2):
        feed([line(coll_msg_size_bytes=size) for size in range(1, 9)], aggregate)
    [sums] = aggregate.accumulators.values()
    assert (sums.operations, sums.message_bytes) == (16, 2 * sum(range(1, 9)))
    assert len(aggregate.bindings) <= 3


@pytest.mark.parametrize(("first", "batches", "missing"), [
    (0, [[0, 1, 2, 3]], 0),
    (0, [[2, 3]], 2),
    (None, [[2, 3]], 0),
    (None, [[5], [8]], 2),
    (0, [[0, 5, 1, 2]], 2),
    (0, [[0, 2], [1]], 1),
    (0, [[0, 2], [1], [4]], 1),
    (0, [[0, 1, 1, 1]], 0),
    (0, [[0, 10], [0, 1]], 9),
    (0, [[0, REORDER + 50], [0, 3]], REORDER + 49 + 2),
])  # fmt: skip
def test_missing_records(first: int | None, batches: list[list[int]], missing: int) -> None:
    """Each gap counts once; late records and restarted numbers are no gap, and the count never falls."""
    sequence, counts = Sequence(first), []
    for batch in batches:
        sequence.add(min(batch), max(batch), len(batch))
        sequence.missing = sequence.gaps()
        counts.append(sequence.missing)
    assert (counts[-1], counts) == (missing, sorted(counts))


def test_window_keeps_the_last_value() -> None:
    """``latest`` returns the sums of the last ended window with data, or of the current window if none has ended."""
    aggregate = fresh()
    feed([line(), line(coll_sn=1, coll_exec_time_us=30)], aggregate)
    [window] = aggregate.series.windows.values()
    assert window.latest() == (2 * 12_288, 40)  # the current window
    aggregate.roll_windows()
    feed([line(coll_sn=2, coll_exec_time_us=60)], aggregate)
    assert window.latest() == (2 * 12_288, 40)
    aggregate.roll_windows()
    aggregate.roll_windows()
    assert window.latest() == (12_288, 60)


def test_writers_share_one_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit for the ranks of all writers, records count as `other`; a writer that ends frees its part."""
    monkeypatch.setattr(shared_module, "MAX_PLACES_IN_ALL", 3)
    shared = shared_module.Shared()
    first, second, third = (Aggregate(WRITER_KEY, lambda *_: True, from_start=True, shared=shared) for _ in range(3))
    feed([line(id="0x1"), line(id="0x2")], first)
    feed([line(id="0x3"), line(id="0x4")], second)
    assert {key.comm for key in second.accumulators} == {"3", "other"}
    assert sum(total.operations for total in second.accumulators.values()) == 2
    restored = Aggregate.restore(second.save(), lambda *_: True, shared)
    assert sum(total.operations for total in restored.accumulators.values()) == 2
    first.leave()
    feed([line(id="0x5")], third)
    assert {key.comm for key in third.accumulators} == {"5"}


@pytest.mark.parametrize("lost", ["memberships", "accumulators"])
def test_restored_places_keep_their_room(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """After a restart, a rank with a saved membership or saved totals still has its part of the limit."""
    monkeypatch.setattr(shared_module, "MAX_PLACES_IN_ALL", 1)
    before = fresh()
    feed([line(id="0x1")], before)
    saved = before.save()
    getattr(saved, lost).clear()
    shared = shared_module.Shared()
    again = Aggregate.restore(saved, lambda *_: True, shared)
    other = Aggregate(WRITER_KEY, lambda *_: True, from_start=True, shared=shared)
    feed([line(id="0x2")], other)
    feed([line(id="0x1", coll_sn=1)], again)
    assert {key.comm for key in other.accumulators} == {"other"}
    assert {key.comm for key in again.accumulators} == {"1"}


def match(first: Aggregate, second: Aggregate, number: int, shared: shared_module.Shared) -> None:
    """Match both ranks' records of an operation; the second rank's record is 60 us shorter."""
    feed([line(rank=0, n_ranks=2, coll_sn=number, coll_exec_time_us=100)], first)
    feed([line(rank=1, n_ranks=2, coll_sn=number, coll_exec_time_us=40)], second)
    shared.matching.settle()


def test_matched_operations_need_a_budget_too() -> None:
    """Matched operations go to `other` if the budget admits only the totals."""
    shared = shared_module.Shared()
    requests: list[int] = []

    def admit(_: Hashable, series: int, ranks: int, group: Group) -> bool:
        requests.append(series)
        return series <= 4

    first, second = (Aggregate(WRITER_KEY._replace(inode=n), admit, from_start=True, shared=shared) for n in (1, 2))
    match(first, second, 0, shared)
    match(first, second, 1, shared)
    assert requests == [4, 1, 1, 4, 1, 1, 6, 2]
    sized, other = (SeriesKey("abc", 0, "AllReduce", size) for size in ("8192", "other"))
    assert first.accumulators[sized] == Accumulator(2, 16_384, 200, 16_384, None)
    assert first.accumulators[other] == Accumulator(0, 0, 0, 0, Arrivals(0, 0, 2, 0, 80))
    sized, other = sized._replace(comm_rank=1), other._replace(comm_rank=1)
    assert second.accumulators[sized].arrivals == Arrivals(2, 120)
    assert other not in second.accumulators
