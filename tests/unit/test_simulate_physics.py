"""The simulated job's times."""

from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given, strategies as st

from agent.simulate.layout import Operation, SimulatedCommunicator, make_layout
from agent.simulate.physics import Accidents, TimingPlan, bus_factor, make_plan, moved_bytes, step_times, transfer_us

STEPS = 40
TP_OPERATIONS = range(5)
DP_OPERATIONS = (5, 6)


def plan(accidents: Accidents = Accidents(), records_per_second: float = 100.0) -> TimingPlan:  # noqa: B008  # immutable
    """Eight ranks on two hosts, TP 4."""
    return make_plan(make_layout(8, 2, 4, "7", 1), 1, records_per_second, accidents)


def means_us(of: TimingPlan, place: int, first: int = 0) -> list[float]:
    """Return each rank's mean kernel time of the step's operation ``place``."""
    steps = [step_times(of, step).operations[place].kernel_us for step in range(first, first + STEPS)]
    return [mean(kernel_us[rank] for kernel_us in steps) for rank in range(8)]


@pytest.mark.parametrize(("collective", "moved", "factor"), [
    ("AllReduce", 1000, 1.75),  # 2 * 7 / 8
    ("AllGather", 8000, 0.875),  # 7 / 8 of eight parts
    ("ReduceScatter", 8000, 0.875),
])  # fmt: skip
def test_bus_bandwidth_of_eight_ranks(collective: str, moved: int, factor: float) -> None:
    """The numerator and the bus factor are nccl-tests' for 1000 bytes and 8 ranks."""
    assert moved_bytes(collective, 1000, 8) == moved  # type: ignore[arg-type]
    assert bus_factor(collective, 8) == factor  # type: ignore[arg-type]


def test_transfer_time_by_hand() -> None:
    """8 MiB gathered by 4 ranks move 25165824 bus bytes: 71.9 us at 350 GB/s and 12 us latency; network 45 GB/s, 30."""
    gather = Operation("tp", "AllGather", 8388608)
    inside = SimulatedCommunicator("tp", "inside", 1, (0, 1, 2, 3), 1, network=False)
    assert transfer_us(gather, inside) == pytest.approx(12 + 71.902, abs=0.01)
    assert transfer_us(gather, inside._replace(network=True)) == pytest.approx(30 + 559.241, abs=0.01)


def test_the_straggler_has_the_shortest_time() -> None:
    """In its TP group the late rank's kernels are shortest, and its peers wait the whole delay."""
    late = plan(Accidents(straggler=2, straggler_delay_us=2000))
    for place in TP_OPERATIONS:
        means = means_us(late, place)
        assert min(means) == means[2]
        assert all(means[rank] - means[2] == pytest.approx(2000, abs=150) for rank in (0, 1, 3))
        assert max(means[4:]) < 500  # the other host's group waits for nobody


def test_the_stragglers_peers_look_late_in_dp() -> None:
    """Held up in TP, the culprit's TP peers arrive late in their DP groups as well."""
    means = means_us(plan(Accidents(straggler=2, straggler_delay_us=2000)), DP_OPERATIONS[0])
    assert means[4] - means[0] == pytest.approx(5 * 2000, rel=0.1)


def test_a_slow_link_raises_the_floor_of_all_who_use_it() -> None:
    """The DP group of the slow link gets three times the floor, the other groups and all spreads stay."""
    healthy, slow = plan(), plan(Accidents(slow_link=6, slow_link_factor=3.0))
    for place in DP_OPERATIONS:
        before, after = means_us(healthy, place), means_us(slow, place)
        assert [after[rank] / before[rank] > 2 for rank in range(8)] == [False, False, True, False] * 2
    assert means_us(slow, 0) == pytest.approx(means_us(healthy, 0))


def test_accidents_begin_at_their_step() -> None:
    """Before the step the times are those of a healthy job, from it on they are not."""
    late = plan(Accidents(straggler=2, straggler_delay_us=2000, from_step=3))
    assert [step_times(late, step) == step_times(plan(), step) for step in range(5)] == [True, True, True, False, False]


def test_a_healthy_job_blames_nobody() -> None:
    """Every rank's mean time is within a jitter of the others'."""
    for place in range(8):
        means = means_us(plan(), place)
        assert max(means) - min(means) < 60


@pytest.mark.parametrize("records_per_second", [1.0, 50.0, 1000.0, 20000.0])
def test_the_asked_rate_comes_out(records_per_second: float) -> None:
    """Paced step lengths give the rate within a percent; up to 500 a second without squeezing the time."""
    made = plan(records_per_second=records_per_second)
    seconds = sum(step_times(made, step).duration_us for step in range(100, 300)) * made.pace / 1e6
    assert 200 * 8 / seconds == pytest.approx(records_per_second, rel=0.01)
    if records_per_second <= 500:
        assert made.pace == pytest.approx(1.0, abs=0.05)


@given(step=st.integers(0, 10**9), seed=st.integers(0, 2**63))
def test_arrivals_are_in_order_and_kernels_end_together(step: int, seed: int) -> None:
    """Each rank arrives after its last end; the members of a communicator end at one time; nobody beats the wire."""
    layout, times = make_layout(8, 2, 4, "7", 1), step_times(plan()._replace(seed=seed), step)
    ends: list[list[float]] = []
    for operation, each in zip(layout.step, times.operations, strict=True):
        ends.append([start + took for start, took in zip(each.arrival_us, each.kernel_us, strict=True)])
        for communicator in layout.communicators[operation.kind]:
            assert len({round(ends[-1][rank], 3) for rank in communicator.members}) == 1
            assert min(each.kernel_us[rank] for rank in communicator.members) >= transfer_us(operation, communicator)
    for rank in range(8):
        assert all(
            end[rank] < following.arrival_us[rank]
            for end, (_, following) in zip(ends, pairwise(times.operations), strict=False)
        )
    assert times.duration_us == pytest.approx(ends[-1][0])
