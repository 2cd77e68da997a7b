"""Ranks that left: how long they are shown, what takes their place, and what their going changes."""

from signal import SIGSEGV, SIGTERM

import pytest
from rank_table import KILLED, WORLD, Table, environment, facts, owned, writer_key

from agent.core.identity import Membership, RankLabel
from agent.ranks.expiry import ENDED_SECONDS, FINISHED_SECONDS, MAX_ENDED, MAX_ENDED_OF_JOB
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.owner import Owner
from agent.ranks.table import MAX_PROCESSES


@pytest.fixture
def table() -> Table:
    """An empty table."""
    return Table()


def test_restart_takes_over_the_ended_rank(table: Table) -> None:
    """A restarted rank is a new incarnation: it takes its label, and the record of the old one is gone."""
    old = table.add(1, environment(3))
    table.tick(1.0)
    table.ranks.observe_exit(old, KILLED)
    assert table.states() == {"3": "exited"}
    table.add(2, environment(3, port="29511"))  # an elastic restart meets at another port
    table.tick(1.0)
    assert (table.labels(), table.states()) == ({RankLabel("4711", "3"): 2}, {"3": "alive"})


def test_old_incarnation_is_no_witness(table: Table) -> None:
    """A rank that restarted does not make its siblings' records of ended ranks deaths: it is no peer of theirs."""
    keys = [table.add(pid, environment(pid)) for pid in (1, 2)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, signal=SIGTERM))
    table.add(11, environment(1))
    table.tick(60.0)
    assert table.states() == {"1": "alive", "2": "exited"}


def test_victim_never_becomes_a_culprit(table: Table) -> None:
    """When the record of the first crash is taken down before its victims', none of these is named dead."""
    keys = [table.add(pid, environment(pid)) for pid in range(3)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, signal=SIGSEGV))
        table.clock.advance(10.0)
    assert table.states() == {"0": "dead", "1": "exited", "2": "exited"}
    table.tick(ENDED_SECONDS - 29.0)
    table.tick(1.0)
    assert table.states() == {"1": "exited", "2": "exited"}


def test_victim_of_a_restarted_rank(table: Table) -> None:
    """When the rank that crashed first is started anew, its victims' records of ended ranks stay what they were."""
    keys = [table.add(pid, environment(pid)) for pid in range(3)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, ExitStatus(known=True, code=1))
        table.clock.advance(0.3)
    table.add(10, environment(0))
    table.tick(1.0)
    table.tick(1.0)
    assert table.states() == {"0": "alive", "1": "exited", "2": "exited"}


def test_death_outlives_its_peers(table: Table) -> None:
    """A rank killed before its peers stays dead after they finished and their records of ended ranks are gone."""
    killed, peer = (table.add(pid, environment(pid)) for pid in range(2))
    table.tick(1.0)
    table.ranks.observe_exit(killed, KILLED)
    table.tick(20.0)
    table.ranks.observe_state(peer, "S", None, kill_pending=False, finalized=True)
    table.ranks.observe_exit(peer, ExitStatus(known=True))
    assert table.states() == {"0": "dead", "1": "finished"}
    table.tick(FINISHED_SECONDS + 1.0)
    table.tick(1.0)
    assert table.states() == {"0": "dead"}


def test_ended_ranks_give_way_to_live_ranks(table: Table) -> None:
    """A table full of ended ranks takes a live rank in place of the oldest; one full of live ranks refuses."""
    keys = [table.add(pid, environment(pid % 8, job=str(pid))) for pid in range(MAX_PROCESSES)]
    assert not table.ranks.observe_process(facts(5000))
    for key in (keys[7], keys[3]):
        table.ranks.observe_exit(key, KILLED)
        table.clock.advance(1.0)
    assert table.ranks.observe_process(facts(5000))
    shown = {view.process.facts.key for view in table.ranks.snapshot().ranks if view.process.facts}
    assert keys[3] in shown
    assert keys[7] not in shown


def test_ended_ranks(table: Table) -> None:
    """A dead rank is shown for 15 minutes, a finished one for one; then their records' series may go too."""
    dead, well = table.add(1, environment(1, job="1")), table.add(2, environment(2, job="2"))
    table.record(1, [Membership(WORLD, 1, 8)], dead)
    table.tick(1.0)
    table.ranks.observe_exit(dead, ExitStatus(known=True, signal=SIGSEGV))
    table.ranks.observe_exit(well, ExitStatus(known=True))
    assert table.states() == {"1": "dead", "2": "finished"}
    table.tick(FINISHED_SECONDS + 0.1)
    assert table.states() == {"1": "dead"}
    table.tick(ENDED_SECONDS - FINISHED_SECONDS - 0.1)
    assert table.states() == {"1": "dead"}
    assert not table.ranks.is_expired(writer_key(1))
    table.tick(0.2)
    assert table.states() == {}
    assert table.ranks.is_expired(writer_key(1))


CRASH = ExitStatus(known=True, signal=SIGSEGV)


def end_jobs(table: Table, first_pid: int, count: int, status: ExitStatus, *, uid: int, ranks: int = 1) -> None:
    """Let jobs of one user, one a second, start ``ranks`` ranks that end with ``status``; Slurm proves each job."""
    for number in range(first_pid, first_pid + count):
        owner = Owner("job", f"slurm/{number}", scheduler="slurm", job_id=str(number), proof="cgroup")
        pids = range(number * 1000, number * 1000 + ranks)
        keys = [
            table.add_facts(owned(pid, environment(rank, job=str(number)), owner, uid=uid, user=f"user-{uid}"))
            for rank, pid in enumerate(pids)
        ]
        table.tick(0.5)
        for key in keys:
            table.ranks.observe_exit(key, status)
        table.tick(0.5)


def jobs_shown(table: Table) -> list[str]:
    """The job of each record."""
    return [view.label.job_id for view in table.ranks.snapshot().ranks]


@pytest.mark.slow
def test_a_user_who_churns_keeps_a_bounded_number_of_records(table: Table) -> None:
    """A neighbour's records stay whole while a user ends a job per second; the user's newest MAX_ENDED stay."""
    end_jobs(table, 1, 1, CRASH, uid=1, ranks=8)
    end_jobs(table, 100, MAX_ENDED, CRASH, uid=2)
    assert len(jobs_shown(table)) == 8 + MAX_ENDED
    end_jobs(table, 500, 300, CRASH, uid=2)
    assert sorted(jobs_shown(table)) == sorted(["1"] * 8 + [str(800 - n) for n in range(1, MAX_ENDED + 1)])


def test_the_last_job_keeps_all_records(table: Table) -> None:
    """A job that alone has more ranks than the limit keeps them all; it evicts those of its user's jobs before it."""
    end_jobs(table, 1, 1, CRASH, uid=1)
    end_jobs(table, 2, 1, CRASH, uid=1, ranks=MAX_ENDED + 1)
    assert (set(jobs_shown(table)), len(jobs_shown(table))) == ({"2"}, MAX_ENDED + 1)


def test_a_dead_rank_outlives_other_exits(table: Table) -> None:
    """The record of a job with a dead rank stays while its user's jobs without one are evicted."""
    end_jobs(table, 1, 1, CRASH, uid=1)
    end_jobs(table, 2, MAX_ENDED + 5, ExitStatus(known=True, signal=SIGTERM), uid=1)
    assert "1" in jobs_shown(table)
    assert len(jobs_shown(table)) == MAX_ENDED


def slurm_job(number: int) -> Owner:
    """The owner of a job's processes."""
    return Owner("job", f"slurm/{number}", scheduler="slurm", job_id=str(number), proof="cgroup")


def test_a_job_that_runs_keeps_its_dead_rank(table: Table) -> None:
    """The record of a dead rank whose job still runs stays, however many jobs of its user die after it."""
    keys = [
        table.add_facts(owned(rank, environment(rank, job="1"), slurm_job(1), uid=1, user="user-1"))
        for rank in range(1, 3)
    ]
    table.tick(1.0)
    table.ranks.observe_exit(keys[0], CRASH)
    end_jobs(table, 100, MAX_ENDED + 5, CRASH, uid=1)
    assert {view.label.rank for view in table.ranks.snapshot().ranks if view.label.job_id == "1"} == {"1", "2"}
    assert len(jobs_shown(table)) == MAX_ENDED + 1


def test_one_job_keeps_a_bounded_number_of_records(table: Table) -> None:
    """Of one job that ends rank after rank MAX_ENDED_OF_JOB records stay, that of the first death among them."""
    first = table.add_facts(owned(1, environment(0, job="1"), slurm_job(1), uid=1, user="user-1"))
    peers = [
        table.add_facts(owned(1 + rank, environment(rank, job="1"), slurm_job(1), uid=1, user="user-1"))
        for rank in range(1, MAX_ENDED_OF_JOB + 3)
    ]
    table.tick(1.0)
    for key in (first, *peers):
        table.ranks.observe_exit(key, CRASH)
        table.clock.advance(0.5)
    table.tick(1.0)
    assert (len(jobs_shown(table)), table.states()["0"]) == (MAX_ENDED_OF_JOB, "dead")


def test_containers_of_one_user_id_have_places_each(table: Table) -> None:
    """Root in one container evicts no record of root's in another."""
    for first, name, count in ((1, "a" * 64, 1), (10, "b" * 64, MAX_ENDED + 1)):
        for number in range(first, first + count):
            key = table.add_facts(owned(number, environment(0, job=str(number)), Owner("container", name), uid=0))
            table.tick(0.5)
            table.ranks.observe_exit(key, CRASH)
            table.tick(0.5)
    assert "1" in jobs_shown(table)
    assert len(jobs_shown(table)) == 1 + MAX_ENDED
