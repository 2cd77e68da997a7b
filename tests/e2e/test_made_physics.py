"""Made-up jobs are what they say they are: sums worked out anew from their records."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections import defaultdict
from itertools import islice
from statistics import fmean
from typing import Any

import pytest
from inspector_records import BUS_FACTORS, DATA
from made_jobs import Habits, Job, Recorded
from made_kinds import KINDS, Made, make
from made_layouts import Layout, Shape, Shares, make_layout
from made_lines import Done, Losses, Plugin, Written
from made_troubles import SlowLinks, Straggler, Troubles, Turns

EVEN = Habits(0.005, (1.0,) * 8)
EPOCH_US = 1_700_000_000_000_000


def layout_of(tp: int, *, pipeline: bool = False) -> Layout:
    """Return two nodes of four ranks, four operations a second, steps of a second."""
    shape = Shape(2, 4, tp, pipeline)
    return make_layout(shape, Shares(0.03, 0.1, 0.06), 1.0, 4.0, random.Random(1))  # noqa: S311  the same every time


def operations(done: list[Done]) -> dict[tuple[int, str, int], list[Done]]:
    """Return the members' parts of each collective, by their place in it."""
    found: dict[tuple[int, str, int], list[Done]] = defaultdict(list)
    for each in done:
        if each.collective not in ("Send", "Recv"):
            found[each.number, each.collective, each.sequence].append(each)
    return found


def recorded(made: Made) -> Recorded:
    """Return the job with hosts and pids of its own."""
    hosts = [f"gpu-node-{rank // made.layout.shape.ranks_per_node:02}" for rank in range(made.layout.shape.world)]
    plugin = Plugin(made.layout.communicators, hosts, list(range(100, 100 + len(hosts))), named=made.named)
    return Recorded(made.job(), made.losses, plugin, EPOCH_US, made.seed)


def written(made: Made, seconds: int) -> list[Written]:
    """Return what is written in so many seconds."""
    job = recorded(made)
    return [line for second in range(seconds) for line in job.next_second(second)]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_last_to_arrive_has_the_transfer_alone(tp: int) -> None:
    """All members of an operation end at once, and the shortest kernel is the bus bytes over the links' bandwidth."""
    layout = layout_of(tp)
    found = operations(Job(layout, EVEN, Troubles(), 3).until(60))
    assert len(found) > 100
    for (number, collective, _), parts in found.items():
        communicator = layout.communicators[number]
        assert len(parts) == len(communicator.members)
        assert len({each.end_us for each in parts}) == 1
        moved = float(BUS_FACTORS[collective](len(parts)) * parts[0].size_bytes)
        seconds = 30e-6 + moved / (350e9 if communicator.nodes == 1 else 45e9)
        assert seconds * 1e6 - 2 <= min(each.kernel_us for each in parts) <= seconds * 1.05e6 + 2


@pytest.mark.parametrize(("tp", "spread"), [(1, True), (4, False), (2, True)])
def test_a_straggler_costs_the_share_of_wall_time_that_it_is_said_to(tp: int, spread: bool) -> None:
    """What the others of its DP group wait for it adds up to its share; one without a group has none."""
    layout = layout_of(tp)
    waited: dict[int, float] = defaultdict(float)
    job = Job(layout, EVEN, Troubles((Straggler(5, 0.2, 0.0, spread),)), 4)
    for (number, _, _), parts in operations(job.until(300)).items():
        first, second = sorted(parts, key=lambda each: each.kernel_us)[:2]
        if layout.communicators[number].kind == "dp":
            waited[first.rank] += (second.kernel_us - first.kernel_us) / 300e6
    held_up = {
        rank for each in layout.communicators if 5 in each.members and each.kind == "tp" for rank in each.members
    }
    assert waited.pop(5) == pytest.approx(0.2, abs=0.01)
    assert max((share for rank, share in waited.items() if rank not in held_up), default=0.0) < 0.01


def test_a_slow_link_costs_its_transfers_alone() -> None:
    """From the onset on, and only in the communicator that it is of, the shortest kernels are 2.5 times as long."""
    layout = layout_of(4)
    number = next(number for number, each in enumerate(layout.communicators) if each.kind == "dp")
    slow = SlowLinks(frozenset({number}), 2.5, 100.0)
    shortest: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for (found, collective, _), parts in operations(Job(layout, EVEN, Troubles((), (slow,)), 5).until(200)).items():
        if collective == "AllGather":
            shortest[found, parts[0].end_us > 101e6].append(min(each.kernel_us for each in parts))
    for found in {found for found, _ in shortest}:
        ratio = fmean(shortest[found, True]) / fmean(shortest[found, False])
        assert ratio == pytest.approx(2.5 if found == number else 1.0, rel=0.03)


def test_a_link_may_be_slow_half_of_the_time() -> None:
    """It is slow for a period and well for as long, in turn, from its onset on."""
    slow = SlowLinks(frozenset({3}), 2.5, 100.0, 60.0)
    assert [slow(3, now) for now in (99, 100, 159, 160, 219, 220)] == [1.0, 2.5, 2.5, 1.0, 1.0, 2.5]
    assert slow(2, 100) == 1.0


def test_turns_are_fair() -> None:
    """Each rank of the order is late for as long as any other, one after the other."""
    turns = Turns((2, 0, 1), 0.5, 10.0, 20.0)
    chance = random.Random(0)  # noqa: S311  not used here
    ranks = [[delay.rank for delay in turns(now, 1.0, chance)] for now in (9.9, 10, 29.9, 30, 50, 70)]
    assert ranks == [[], [2], [2], [0], [1], [2]]
    assert turns(10, 2.0, chance)[0].seconds == pytest.approx(2.0)


def test_pairs_send_and_receive_at_once() -> None:
    """Of a pair one sends what the other receives, each counts its own from 1, and both end at once."""
    layout = layout_of(2, pipeline=True)
    parts: dict[tuple[int, int], list[Done]] = defaultdict(list)
    for each in Job(layout, EVEN, Troubles(), 6).until(30):
        if each.collective in ("Send", "Recv"):
            parts[each.number, each.sequence].append(each)
    assert {sequence for _, sequence in parts} == set(range(1, len({sequence for _, sequence in parts}) + 1))
    for one, other in parts.values():
        assert {one.collective, other.collective} == {"Send", "Recv"}
        assert (one.end_us, one.size_bytes) == (other.end_us, other.size_bytes)


def shape_of(line: str) -> str:
    """Return a line without its numbers and names."""
    return re.sub(r"-?\d+(\.\d{6})?", lambda found: "F" if found[1] else "N", re.sub(r':"[^"]*"', ":S", line))


def test_lines_are_as_the_plugin_writes_them() -> None:
    """Collectives have the keys of a recorded job's lines, in their order, and the bandwidths that belong to them."""
    path = next((DATA / "late_nobody").glob("*.log.xz"))
    with lzma.open(path, "rt") as log:
        real = {shape_of(line) for line in islice(log, 50)}
    assert len(real) == 1
    for line in written(make("straggler", 1), 20):
        assert shape_of(line.line) in real
        record: dict[str, Any] = json.loads(line.line)
        perf, ranks = record["coll_perf"], record["header"]["n_ranks"]
        moved = float(BUS_FACTORS[perf["coll"]](ranks) * perf["coll_msg_size_bytes"])
        assert perf["coll_busbw_gbs"] == pytest.approx(moved / perf["coll_exec_time_us"] / 1e3, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_rank_writes_in_order(kind: str) -> None:
    """A rank's lines come in the order of their times and numbers; without losses there is a line of each operation."""
    made = make(kind, 2)
    numbers: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    last: dict[int, int] = {}
    for time_us, rank, line in written(made, 40):
        record = json.loads(line)
        assert last.get(rank, 0) <= time_us == record["metadata"]["dump_timestamp_us"] - EPOCH_US
        last[rank] = time_us
        perf = record.get("coll_perf") or record["p2p_perf"]
        what = perf.get("coll", "p2p")
        numbers[rank, record["header"]["id"], what].append(perf["p2p_sn" if what == "p2p" else "coll_sn"])
    assert set(last) == set(range(made.layout.shape.world))
    for (_, _, what), seen in numbers.items():
        first = 1 if what == "p2p" else 0
        whole = list(range(first, first + len(seen)))
        assert seen == whole if made.losses == Losses() else seen == sorted(set(seen))


def test_a_seed_makes_the_same_job() -> None:
    """Twice the same, and another with another seed."""
    assert written(make("masked link", 7), 5) == written(make("masked link", 7), 5)
    assert written(make("masked link", 7), 5) != written(make("masked link", 8), 5)


def test_one_slot_keeps_one_operation_per_second() -> None:
    """Of each communicator a rank of plugin 2.28 writes one line a second at most, and no name."""
    made = make("hiccup", 5)._replace(losses=Losses(one_slot=True), named=False)
    lines = written(made, 60)
    per_second: dict[tuple[int, str, int], int] = defaultdict(int)
    operations_of: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for time_us, rank, line in lines:
        record = json.loads(line)
        header, perf = record["header"], record["coll_perf"]
        operations_of[rank, header["id"], perf["coll"]].append(perf["coll_sn"])
        assert "comm_name" not in header
        per_second[rank, header["id"], time_us // 1_000_000] += 1
    assert set(per_second.values()) == {1}
    assert all(seen == sorted(set(seen)) for seen in operations_of.values())
    assert 0.05 < len(lines) / len(written(make("hiccup", 5), 60)) < 0.9


def test_losses_are_of_the_share_and_ranks_that_are_said() -> None:
    """About half of one rank's records are missing, and none of the others'."""
    made = make("straggler", 1)._replace(losses=Losses(0.5, frozenset({2})))
    count: dict[int, int] = defaultdict(int)
    for line in written(made, 120):
        count[line.rank] += 1
    whole = max(count.values())
    assert count.pop(2) == pytest.approx(whole / 2, rel=0.2)
    assert min(count.values()) > whole - 20


def shares_of(made: Made) -> dict[int, list[float]]:
    """Return the shares of wall time, from the onset on, that each communicator waited for a rank, largest first."""
    job, onset = made.job(), made.truth.late_onset
    job.until(onset)
    before = job.waited.copy()
    job.until(onset + 600)
    return {
        number: sorted(((job.waited[number, rank] - before[number, rank]) / 600 for rank in each.members), reverse=True)
        for number, each in enumerate(made.layout.communicators)
    }


@pytest.mark.parametrize("kind", ["straggler", "thin records"])
@pytest.mark.parametrize("seed", range(8))
def test_stragglers_are_clear(kind: str, seed: int) -> None:
    """In some communicator of who is to be named the others wait 3 % of wall time for it, twice as long as for any."""
    made = make(kind, seed)
    (late,) = made.truth.late
    shares = shares_of(made)
    of_it = [shares[number] for number, each in enumerate(made.layout.communicators) if late in each.members]
    assert any(first > 0.03 and first > 2 * second for first, second, *_ in of_it)


@pytest.mark.parametrize("kind", ["healthy", "imbalance"])
@pytest.mark.parametrize("seed", range(8))
def test_innocents_are_clear(kind: str, seed: int) -> None:
    """Where nobody is to be named no rank is waited for by 3 % of wall time and by twice as much as any other."""
    for first, second, *_ in shares_of(make(kind, seed)).values():
        assert first < 0.03 or first < 1.5 * second
