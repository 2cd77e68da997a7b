"""The rank table over a restart of the agent."""

from signal import SIGSEGV, SIGTERM

import pytest
from rank_table import WORLD, RankTable, Table, environment, writer_key

from agent.core.identity import Membership, RankLabel
from agent.ranks.rank.exit_status import ExitStatus


@pytest.fixture
def table() -> Table:
    """An empty table."""
    return Table()


def test_job_that_ended_while_the_agent_was_down(table: Table) -> None:
    """Ranks that left unseen are no proof that they outlived the one whose exit was seen."""
    first, second = (table.add(pid, environment(pid)) for pid in range(2))
    table.tick(1.0)
    table.ranks.observe_exit(first, ExitStatus(known=True, signal=SIGTERM))
    saved, again = table.ranks.dump(), Table()
    again.clock.now = table.clock.now + 100.0
    again.ranks.load(saved)
    assert again.states() == {"0": "exited"}
    again.ranks.observe_exit(second, None)
    again.tick(1.0)
    assert again.states() == {"0": "exited", "1": "exited"}
    still = Table()
    still.clock.now = table.clock.now + 100.0
    still.ranks.load(saved)
    still.ranks.observe_state(second)
    still.tick()
    assert still.states() == {"0": "dead", "1": "alive"}


def test_checkpoint_keeps_everything(table: Table) -> None:
    """A new table from the checkpoint shows records of ended ranks at once, and live ranks when they are confirmed."""
    gone, lives = table.add(1, environment(1)), table.add(2, environment(2))
    table.ranks.observe_records(writer_key(2), [Membership(WORLD, 2, 8, "world", 2)], table.clock.time())
    table.ranks.link(writer_key(2), lives)
    table.tick(1.0)
    table.ranks.observe_exit(gone, ExitStatus(known=True, signal=SIGSEGV))
    again = RankTable(table.clock, "here")
    again.load(table.ranks.dump())
    table.ranks.judge_changed()
    assert [v.label.rank for v in again.snapshot().ranks] == ["1"]
    assert set(again.running()) == {lives}
    again.observe_state(lives)
    again.tick()
    assert again.snapshot() == table.ranks.snapshot()
    assert again.label(writer_key(2), WORLD, 2) == RankLabel("4711", "2")


def test_rank_that_vanished_while_the_agent_was_down(table: Table) -> None:
    """A rank of the checkpoint that is found gone has exited; with a peer alive 45 s later it is dead."""
    gone, lives = table.add(1, environment(1)), table.add(2, environment(2))
    table.tick(1.0)
    again = Table()
    again.clock.advance(30.0)
    again.ranks.load(table.ranks.dump())
    again.ranks.observe_state(lives)
    again.ranks.observe_exit(gone, None)
    assert again.states() == {"1": "exited", "2": "alive"}
    again.tick(45.0)
    assert again.states() == {"1": "dead", "2": "alive"}


@pytest.mark.parametrize(("seconds", "is_its"), [(0.0, True), (1.0, False)])
def test_what_a_rank_wrote_that_left_unseen(table: Table, seconds: float, is_its: bool) -> None:
    """What a truncated file holds is the gone rank's up to when it was last seen to run; later it may be another's."""
    gone = table.add(1, environment(1))
    table.ranks.observe_records(writer_key(1), [Membership(WORLD, 1, 8)], table.clock.time())
    table.ranks.link(writer_key(1), gone)
    table.tick(1.0)
    again = Table()
    again.clock.now = table.clock.now
    again.ranks.load(table.ranks.dump())
    last_seen = again.clock.time()
    again.clock.advance(30.0)
    again.ranks.observe_exit(gone, None)
    again.ranks.observe_records(writer_key(1, 1), [Membership(WORLD, 1, 8)], last_seen + seconds)
    assert again.ranks.label(writer_key(1, 1), WORLD, 1) == (RankLabel("4711", "1") if is_its else None)
