"""A full rank table: who gives way to a process of which owner."""

import pytest
from rank_table import KILLED, Table, environment, owned

from agent.core.identity import ProcessKey, RankLabel
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import Owner
from agent.ranks.writer import MAX_PROCESSES

CRASHED = ExitStatus(known=True, signal=11)
ALICE, MALLORY = Owner("user", "1000"), Owner("user", "1001")


@pytest.fixture
def table() -> Table:
    """An empty table."""
    return Table()


def add(table: Table, owner: Owner, pids: range, job: str) -> list[ProcessKey]:
    """Rank processes of an owner."""
    return [table.add_facts(owned(pid, environment(pid, 10**6, job), owner, uid=int(owner.name))) for pid in pids]


def test_another_owners_crowd_hides_no_dead_rank(table: Table) -> None:
    """However many processes another user starts, the record of a dead rank stays, and his own are refused."""
    dead, *_ = add(table, ALICE, range(8), "4711")
    table.tick(1.0)
    table.ranks.observe_exit(dead, CRASHED)
    table.tick(1.0)
    add(table, MALLORY, range(100, 100 + MAX_PROCESSES - 8), "666")
    for pid in range(5000, 5100):
        assert not table.ranks.observe_process(owned(pid, environment(pid, 10**6, "666"), MALLORY, uid=1001))
    table.tick(1.0)
    assert (table.labels()[RankLabel("4711", "0")], table.states()["0"]) == (0, "dead")
    assert table.ranks.snapshot().refused == 100


def test_a_newcomer_takes_the_place_of_one_of_the_greatest(table: Table) -> None:
    """In a table full of one owner's processes another finds room at once: for the newest that runs."""
    add(table, MALLORY, range(MAX_PROCESSES), "666")
    table.tick(1.0)
    add(table, ALICE, range(5000, 5008), "4711")
    table.tick(1.0)
    found = table.labels()
    assert {label.rank for label in found if label.job_id == "4711"} == {str(pid) for pid in range(5000, 5008)}
    assert len(found) == MAX_PROCESSES


def test_what_left_gives_way_before_what_runs_and_dead_ranks_last(table: Table) -> None:
    """The greatest owner loses the record of a rank that ended first; its dead ranks give way to its own alone."""
    ended, dead, *_ = add(table, MALLORY, range(MAX_PROCESSES), "666")
    table.tick(1.0)
    table.ranks.observe_exit(dead, CRASHED)
    table.tick(1.0)
    table.ranks.observe_exit(ended, KILLED)
    table.tick(1.0)
    add(table, ALICE, range(5000, 5001), "4711")
    assert ended not in dict(table.ranks.processes)  # its record is what this is about
    add(table, ALICE, range(5001, 5002), "4711")
    assert dead in dict(table.ranks.processes)
    assert table.ranks.observe_process(owned(6000, environment(0, job="666"), MALLORY, uid=1001))
    assert dead not in dict(table.ranks.processes)


def test_equals_do_not_push_each_other_out(table: Table) -> None:
    """Two owners with half of the table each are refused alike."""
    half = MAX_PROCESSES // 2
    add(table, ALICE, range(half), "4711")
    add(table, MALLORY, range(1000, 1000 + half), "666")
    for owner, pid in ((ALICE, 5000), (MALLORY, 5001)):
        assert not table.ranks.observe_process(owned(pid, environment(0), owner))
