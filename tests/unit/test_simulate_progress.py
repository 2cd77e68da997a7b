"""How far the ranks of the simulated job get."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent.simulate.board import END_OPERATION, FAILED, ProgressBoard
from agent.simulate.layout import make_layout
from agent.simulate.physics import Accidents, TimingPlan, make_plan
from agent.simulate.progress import RankProgress, Timeline, orderly_end, run_ahead_operations

STEP = 8


def plan(records_per_second: float = 10.0) -> TimingPlan:
    """Four ranks, TP groups (0, 1) and (2, 3), DP groups (0, 2) and (1, 3)."""
    return make_plan(make_layout(4, 1, 2, "7", 1), 1, records_per_second, Accidents())


class Team:
    """All four ranks in one process, driven by hand."""

    def __init__(self, path: Path, of: TimingPlan, stuck: int | None = None, stuck_at: int | None = None) -> None:
        self.board = ProgressBoard(str(path), 4)
        self.ranks = [
            RankProgress(rank, of, Timeline(of), self.board, stuck_at if rank == stuck else None) for rank in range(4)
        ]
        for each in self.ranks:
            each.start(0.0)

    def run(
        self, seconds: Iterator[float] | list[float], who: tuple[int, ...] = (0, 1, 2, 3), end: int | None = None
    ) -> None:
        for now in seconds:
            for rank in who:
                self.ranks[rank].advance(now, end)

    def completed(self) -> list[int]:
        return [each.completed for each in self.ranks]


def ticks(first: float, count: int) -> list[float]:
    """Return ``count`` polls, 10 ms apart."""
    return [first + tick * 0.01 for tick in range(count)]


@pytest.mark.parametrize("records_per_second", [10.0, 1000.0])
def test_ranks_complete_at_the_asked_rate(tmp_path: Path, records_per_second: float) -> None:
    """In four seconds of 10 ms polls every rank completes the asked number, fast jobs too."""
    team = Team(tmp_path / "board", plan(records_per_second))
    team.run(ticks(0.0, 401))
    assert team.completed() == pytest.approx([4 * records_per_second] * 4, rel=0.05)


def test_nobody_passes_an_absent_member(tmp_path: Path) -> None:
    """Without rank 3, its TP peer 2 completes nothing; 0 and 1 go on until they need a group with 3 or 2."""
    team = Team(tmp_path / "board", plan())
    team.run(ticks(0.0, 1000), who=(0, 1, 2))
    assert team.completed() == [5, 5, 0, 0]


def test_a_stuck_rank_completes_the_steps_before(tmp_path: Path) -> None:
    """Stuck at its second step, rank 3 has completed one; nobody completes the second."""
    team = Team(tmp_path / "board", plan(), stuck=3, stuck_at=STEP)
    team.run(ticks(0.0, 1000))
    assert team.completed() == [STEP + 5, STEP + 5, STEP, STEP]


def test_time_lost_in_a_stall_is_not_made_up(tmp_path: Path) -> None:
    """After ten seconds of absence ranks go on at their rate: no burst of what was due meanwhile."""
    team = Team(tmp_path / "board", plan())
    team.run(ticks(0.0, 101))
    team.run(ticks(1.0, 1000), who=(0, 1, 2))
    before = team.completed()[3]
    team.run(ticks(11.0, 201))
    assert 20 <= team.completed()[3] - before <= 20 + 12  # two seconds at 10/s, and at most a second made up


def test_all_end_at_the_end_operation(tmp_path: Path) -> None:
    """Nobody goes beyond the given end and everybody reaches it, with one record per operation."""
    team = Team(tmp_path / "board", plan(1000.0))
    team.run(ticks(0.0, 100), end=3 * STEP)
    assert team.completed() == [3 * STEP] * 4
    kept = [record for log in team.ranks[1].logs for record in log.drain()]
    assert len(kept) == 3 * STEP
    gathers = [r.sequence for r in kept if r.collective == "AllGather" and r.size_bytes == 8 * 1024 * 1024]
    assert gathers == list(range(6))


@given(arrived=st.integers(0, 1000), run_ahead=st.integers(1, 100))
def test_an_orderly_end_is_a_steps_end_that_nobody_passed(arrived: int, run_ahead: int) -> None:
    """The end is a whole step, beyond all that ranks can have arrived at, and at most a step further."""
    end = orderly_end(arrived, run_ahead, STEP)
    beyond = (arrived // STEP + 1) * STEP - 1 + run_ahead
    assert end % STEP == 0
    assert beyond <= end < beyond + STEP


def test_slow_jobs_run_one_operation_ahead() -> None:
    """A rank of a slow job arrives at one operation at a time, one of a fast job at 30 ms of them."""
    assert run_ahead_operations(plan(1.0)) == 1
    assert run_ahead_operations(plan(1000.0)) == pytest.approx(31, abs=8)


def test_the_timeline_forgets_finished_steps(tmp_path: Path) -> None:
    """Steps before the given operation are dropped; those after stay the same."""
    timeline, fresh = Timeline(plan()), Timeline(plan())
    timeline.at(10 * STEP)
    timeline.forget_before(5 * STEP + 3)
    assert (timeline.at(5 * STEP), len(timeline._steps)) == (fresh.at(5 * STEP), 6)


def test_the_board_is_shared(tmp_path: Path) -> None:
    """Two openers see each other's words; a rank counts as initialised before it arrived anywhere."""
    one, other = ProgressBoard(str(tmp_path / "board"), 2), ProgressBoard(str(tmp_path / "board"), 2)
    one.show(0, 0)
    assert not other.initialised()
    other.show(1, 2**40)
    assert one.initialised()
    assert one.all_arrived((1,), 2**40)
    assert not one.all_arrived((0, 1), 1)
    assert list(one.header) == [0, 0, 0]
    other.header[END_OPERATION] = 24
    other.header[FAILED] = 1
    assert list(one.header) == [0, 24, 1]
