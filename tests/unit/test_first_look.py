"""Scrapes before the agent's first search for ranks (the first look) has ended."""

import pytest
from fake_clock import FakeClock
from rank_table import environment, facts

from agent.app.supervisor import FIRST_LOOK_SECONDS, Supervisor
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Roots


class Start(Supervisor):
    """A starting agent, whose first look ends when a test sets ``looked``."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        super().__init__(self.clock, "here", Roots(), StateFile(None, "boot", Logger("test")))
        self.looked = False

    def has_looked(self, _name: str) -> bool:
        return self.looked


@pytest.fixture
def start() -> Start:
    """Provide an agent whose first look has not ended."""
    return Start()


def test_over_with_the_first_look(start: Start) -> None:
    """The metrics page is withheld until the first look has ended, and is never withheld again."""
    assert not start.may_show()
    start.looked = True
    assert start.may_show()
    start.looked = False
    assert start.may_show()


def test_ranks_that_are_named_soon(start: Start) -> None:
    """The page is withheld until the ranks of the first look have labels, if their environments name their ranks."""
    start.looked = True
    RankWriter(start.ranks, "process").observe_process(facts(1, environment(1)))
    assert not start.may_show()
    start.clock.advance(1.0)
    start.ranks.tick()
    assert start.may_show()
    nameless = Start()
    nameless.looked = True
    RankWriter(nameless.ranks, "process").observe_process(facts(1, {}))
    assert nameless.may_show()


@pytest.mark.parametrize("looked", [False, True])
def test_bounded(start: Start, looked: bool) -> None:
    """A look that hangs, or a rank without a label, withholds the page for FIRST_LOOK_SECONDS at most."""
    start.looked = looked
    RankWriter(start.ranks, "process").observe_process(facts(1, environment(1)))
    start.clock.advance(FIRST_LOOK_SECONDS - 0.1)
    assert not start.may_show()
    start.clock.advance(0.1)
    assert start.may_show()
