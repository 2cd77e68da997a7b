"""The simulated job's times."""

from statistics import mean

import pytest

from agent.simulate.layout import make_layout
from agent.simulate.physics import Accidents, TimingPlan, make_plan, step_times

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


def test_the_straggler_has_the_shortest_time() -> None:
    """In its TP group the late rank's kernels are shortest, and its peers wait the whole delay."""
    late = plan(Accidents(straggler=2, straggler_delay_us=2000))
    for place in TP_OPERATIONS:
        means = means_us(late, place)
        assert min(means) == means[2]
        assert all(means[rank] - means[2] == pytest.approx(2000, abs=150) for rank in (0, 1, 3))
        assert max(means[4:]) < 500  # the other host's group waits for nobody


def test_a_slow_link_raises_the_floor_of_all_who_use_it() -> None:
    """The DP group of the slow link gets three times the floor, the other groups and all spreads stay."""
    healthy, slow = plan(), plan(Accidents(slow_link=6, slow_link_factor=3.0))
    for place in DP_OPERATIONS:
        before, after = means_us(healthy, place), means_us(slow, place)
        assert [after[rank] / before[rank] > 2 for rank in range(8)] == [False, False, True, False] * 2
    assert means_us(slow, 0) == pytest.approx(means_us(healthy, 0))


@pytest.mark.parametrize("records_per_second", [1.0, 50.0, 1000.0, 20000.0])
def test_the_asked_rate_comes_out(records_per_second: float) -> None:
    """Paced step lengths give the rate within a percent; up to 500 a second without squeezing the time."""
    made = plan(records_per_second=records_per_second)
    seconds = sum(step_times(made, step).duration_us for step in range(100, 300)) * made.pace / 1e6
    assert 200 * 8 / seconds == pytest.approx(records_per_second, rel=0.01)
    if records_per_second <= 500:
        assert made.pace == pytest.approx(1.0, abs=0.05)
