"""How far the ranks of the simulated job get."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent.simulate.board import ProgressBoard
from agent.simulate.layout import make_layout
from agent.simulate.physics import Accidents, TimingPlan, make_plan
from agent.simulate.progress import RankProgress, Timeline, orderly_end

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


@given(arrived=st.integers(0, 1000), run_ahead=st.integers(1, 100))
def test_an_orderly_end_is_a_steps_end_that_nobody_passed(arrived: int, run_ahead: int) -> None:
    """The end is a whole step, beyond all that ranks can have arrived at, and at most a step further."""
    end = orderly_end(arrived, run_ahead, STEP)
    beyond = (arrived // STEP + 1) * STEP - 1 + run_ahead
    assert end % STEP == 0
    assert beyond <= end < beyond + STEP
