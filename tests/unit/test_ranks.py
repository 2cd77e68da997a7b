"""The rank table: evidence of processes and records, its limits, and restarts of the agent."""

from signal import SIGSEGV, SIGTERM

import pytest
from rank_table import KILLED, WORLD, Table, environment, facts, writer_key

from agent.core.identity import Membership, RankLabel, WriterKey
from agent.ranks.expiry import ENDED_RANK_SECONDS
from agent.ranks.naming.binding import BINDING_SECONDS
from agent.ranks.rank.evidence import RasSilence
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.process import LEAST_MEMBERSHIPS, MAX_MEMBERSHIPS, SIGN_OF_LIFE_SECONDS
from agent.ranks.records import WRITER_IDLE_SECONDS
from agent.ranks.table import UNSEEN_SECONDS
from agent.ranks.writer import MAX_FORMER, MAX_PROCESSES, MAX_WRITERS

MEMBER = Membership(WORLD, 1, 8)


def test_host_names_go_with_their_ranks(table: Table) -> None:
    """A container's host name counts as this node's while its rank is in the table, even after a restart."""
    key, writer = table.add(1, environment(1)), WriterKey(64, 1, 0, "trainer-0", 1)
    table.ranks.observe_records(writer, [Membership(WORLD, 1, 8)], None)
    table.ranks.link(writer, key)
    names = {"here": frozenset(), "trainer-0": {None}}
    assert table.ranks.snapshot().hostnames == table.restarted().ranks.snapshot().hostnames == names
    table.tick(1.0)
    table.ranks.observe_exit(key, KILLED)
    table.tick(ENDED_RANK_SECONDS + 1.0)
    assert table.ranks.snapshot().hostnames == {"here": frozenset()}


def test_the_search_for_the_filling_before_is_bounded(table: Table) -> None:
    """The process of a file's earlier generation is searched at most MAX_FORMER generations back."""
    key = table.add(1, environment(1))
    table.record(1, [], key, table.clock.time())
    table.ranks.observe_exit(key, KILLED)
    for generation in (MAX_FORMER + 1, MAX_FORMER):
        table.ranks.observe_records(writer_key(1, generation), [], table.clock.time())
    assert table.ranks.unlinked_writers() == {writer_key(1, MAX_FORMER + 1): None}


def test_idle_writer_expires(table: Table) -> None:
    """Records without a process expire after 15 idle minutes; a linked writer lives as long as its process."""
    key = table.add(1, environment(1))
    table.record(1, [MEMBER], key)
    table.ranks.observe_records(writer_key(2), [Membership(WORLD, 2, 8)], None)
    table.tick(WRITER_IDLE_SECONDS + 0.1)
    assert table.ranks.is_expired(writer_key(2))
    assert not table.ranks.is_expired(writer_key(1))
    table.ranks.observe_records(writer_key(2), [], None)
    assert not table.ranks.is_expired(writer_key(2))


def test_progress_is_never_in_the_future(table: Table) -> None:
    """A record with a time in the future counts as now, and an older record does not move progress back."""
    key = table.add(1, environment(1))
    table.record(1, [], key, table.clock.time() + 3600)
    table.ranks.observe_records(writer_key(1), [], table.clock.time() - 3600)
    table.tick(1.0)
    progress = table.ranks.snapshot().ranks[0].process.progress_seconds
    assert progress is not None
    assert progress <= table.clock.time() + 2


def test_bounds(table: Table) -> None:
    """Processes, writers and memberships above their limits are refused and counted; a full table has a lower limit."""
    places = [Membership(f"{n:x}", 0, 2) for n in range(MAX_MEMBERSHIPS + 1)]
    table.ranks.observe_records(writer_key(0), places, None)
    assert table.ranks.snapshot().refused == 1
    for pid in range(MAX_PROCESSES):
        table.add(pid)
    assert not table.ranks.observe_process(facts(MAX_PROCESSES))
    for pid in range(MAX_WRITERS + 1):
        table.ranks.observe_records(writer_key(pid), [], None)
    table.ranks.observe_records(writer_key(1), places[: LEAST_MEMBERSHIPS + 1], None)
    assert table.ranks.label(writer_key(MAX_WRITERS), WORLD, 0) is None
    assert table.ranks.snapshot().refused == 4


def test_a_rank_that_ras_misses(table: Table) -> None:
    """A rank that RAS misses for 15 s is unresponsive, unless newer records contradict; a report makes it alive."""
    key = table.add(1, environment(1))
    table.tick(BINDING_SECONDS)
    missed = RasSilence(table.clock.monotonic(), table.clock.time(), reports=2)
    table.ranks.observe_silences({key: missed})
    table.tick(14.0)
    assert table.states() == {"1": "alive"}
    table.tick(1.0)
    assert table.states() == {"1": "unresponsive"}
    table.record(1, [], key, missed.since_seconds + SIGN_OF_LIFE_SECONDS)
    table.tick()
    assert table.states() == {"1": "unresponsive"}
    table.ranks.observe_records(writer_key(1), [], missed.since_seconds + SIGN_OF_LIFE_SECONDS + 0.1)
    table.tick()
    assert table.states() == {"1": "alive"}
    table.ranks.observe_silences({})
    table.tick()
    assert table.states() == {"1": "alive"}


def test_a_rank_out_of_sight_stays_for_a_moment(table: Table) -> None:
    """A rank stays shown during a reload, and vanishes five seconds after the last look."""
    key = table.add(1, environment(1))
    table.tick(BINDING_SECONDS)
    table.ranks.lose_sight()
    table.tick(UNSEEN_SECONDS)
    assert table.states() == {"1": "alive"}
    table.ranks.observe_state(key)
    table.tick(60.0)
    assert table.states() == {"1": "alive"}
    table.ranks.lose_sight()
    table.tick(UNSEEN_SECONDS + 0.1)
    assert table.states() == {}
    table.ranks.observe_state(key)
    assert table.states() == {"1": "alive"}


def test_job_that_ended_while_the_agent_was_down(table: Table) -> None:
    """Ranks that exited during the agent's downtime do not prove that they outlived an earlier exit."""
    first, second = (table.add(pid, environment(pid)) for pid in range(2))
    table.tick(1.0)
    table.ranks.observe_exit(first, ExitStatus(known=True, signal=SIGTERM))
    saved = table.ranks.dump()
    again, still = (table.restarted(100.0, saved) for _ in range(2))
    assert again.states() == {"0": "exited"}
    again.ranks.observe_exit(second, None)
    again.tick(1.0)
    assert again.states() == {"0": "exited", "1": "exited"}
    still.ranks.observe_state(second)
    still.tick()
    assert still.states() == {"0": "dead", "1": "alive"}


def test_checkpoint_keeps_everything(table: Table) -> None:
    """A restored table shows ended ranks at once, and live ranks once they are confirmed."""
    gone, lives = table.add(1, environment(1)), table.add(2, environment(2))
    table.record(2, [Membership(WORLD, 2, 8, "world", 2)], lives, table.clock.time())
    table.tick(1.0)
    table.ranks.observe_exit(gone, ExitStatus(known=True, signal=SIGSEGV))
    again = table.restarted()
    table.ranks.judge_changed()
    assert list(again.states()) == ["1"]
    assert set(again.ranks.running()) == {lives}
    again.ranks.observe_state(lives)
    again.tick()
    assert again.ranks.snapshot() == table.ranks.snapshot()
    assert again.ranks.label(writer_key(2), WORLD, 2) == RankLabel("4711", "2")


@pytest.mark.parametrize(("seconds", "is_its"), [(0.0, True), (1.0, False)])
def test_what_a_rank_wrote_that_left_unseen(table: Table, seconds: float, is_its: bool) -> None:
    """Records of a truncated file belong to the ended rank up to the time when the rank was last seen, not later."""
    gone = table.add(1, environment(1))
    table.record(1, [MEMBER], gone, table.clock.time())
    table.tick(1.0)
    again = table.restarted()
    last_seen = again.clock.time()
    again.clock.advance(30.0)
    again.ranks.observe_exit(gone, None)
    again.ranks.observe_records(writer_key(1, 1), [Membership(WORLD, 1, 8)], last_seen + seconds)
    assert again.ranks.label(writer_key(1, 1), WORLD, 1) == (RankLabel("4711", "1") if is_its else None)
    again.ranks.observe_records(writer_key(2, 1), [Membership(WORLD, 2, 8)], last_seen)  # of another file
    assert writer_key(2, 1) in again.ranks.unlinked_writers()
