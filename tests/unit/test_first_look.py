"""What a scrape gets before the agent has looked at the ranks for the first time."""

import pytest
from rank_table import Table, environment

from agent.app.front import FIRST_LOOK_SECONDS, FirstLook


class Start:
    """A start of the agent over a table."""

    def __init__(self) -> None:
        self.table = Table()
        self.has_looked = False
        table = self.table
        self.first_look = FirstLook(table.clock, lambda: self.has_looked, lambda: table.ranks.processes().values())


@pytest.fixture
def start() -> Start:
    """A start that has not looked yet."""
    return Start()


def test_over_with_the_first_look(start: Start) -> None:
    """The page is held back until the first look has ended, and never again."""
    assert not start.first_look.is_over()
    start.has_looked = True
    assert start.first_look.is_over()
    start.has_looked = False
    assert start.first_look.is_over()


def test_ranks_that_are_named_soon(start: Start) -> None:
    """Ranks that the first look found and their environment names are waited for, others are not."""
    start.has_looked = True
    start.table.add(1, environment(1))
    assert not start.first_look.is_over()
    start.table.tick(1.0)
    assert start.table.labels()
    assert start.first_look.is_over()
    nameless = Start()
    nameless.has_looked = True
    nameless.table.add(1, {})
    assert nameless.first_look.is_over()


@pytest.mark.parametrize("has_looked", [False, True])
def test_bounded(start: Start, has_looked: bool) -> None:
    """A look that hangs, or a rank that gets no name, holds the page back for no longer than this."""
    start.has_looked = has_looked
    start.table.add(1, environment(1))
    start.table.clock.advance(FIRST_LOOK_SECONDS - 0.1)
    assert not start.first_look.is_over()
    start.table.clock.advance(0.1)
    assert start.first_look.is_over()
