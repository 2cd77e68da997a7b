"""Ended ranks: how long they are shown, their successors, and the record that a full table evicts."""

import msgspec
from rank_table import CRASHED, KILLED, WORLD, Table, environment, facts, owned, writer_key

from agent.core.identity import Membership, ProcessKey, RankLabel
from agent.ranks import expiry
from agent.ranks.expiry import ENDED_RANK_SECONDS, FINISHED_SECONDS, MAX_ENDED, MAX_ENDED_OF_JOB
from agent.ranks.rank.evidence import RankVerdict, State
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import Owner, ProcessFacts
from agent.ranks.rank.process import RankProcess
from agent.ranks.writer import MAX_PROCESSES


def test_victim_never_becomes_a_culprit(table: Table) -> None:
    """When the record of the first crash expires, no later crash of the job gets the state `dead`."""
    keys = [table.add(pid, environment(pid)) for pid in range(3)]
    table.tick(1.0)
    for key in keys:
        table.ranks.observe_exit(key, CRASHED)
        table.clock.advance(10.0)
    assert table.states() == {"0": "dead", "1": "exited", "2": "exited"}
    table.tick(ENDED_RANK_SECONDS - 29.0)
    table.tick(1.0)
    assert table.states() == {"1": "exited", "2": "exited"}


def test_ended_ranks_give_way_to_live_ranks(table: Table) -> None:
    """In a full table a new rank replaces the rank that ended first; if all ranks are live, the new rank is refused."""
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
    """A dead rank is shown for 15 minutes and a finished rank for one minute; then their series can be removed."""
    dead, well = table.add(1, environment(1, job="1")), table.add(2, environment(2, job="2"))
    table.record(1, [Membership(WORLD, 1, 8)], dead)
    table.tick(1.0)
    table.ranks.observe_exit(dead, CRASHED)
    table.ranks.observe_exit(well, ExitStatus(known=True))
    assert table.states() == {"1": "dead", "2": "finished"}
    table.tick(FINISHED_SECONDS + 0.1)
    assert table.states() == {"1": "dead"}
    table.tick(ENDED_RANK_SECONDS - FINISHED_SECONDS - 0.1)
    assert table.states() == {"1": "dead"}
    assert not table.ranks.is_expired(writer_key(1))
    table.tick(0.2)
    assert table.states() == {}
    assert table.ranks.is_expired(writer_key(1))


def record(job: str, user: str, exited_at: float | None, *, dead: bool = False) -> RankProcess:
    """Return the record of a rank in a user's job."""
    state: State = "dead" if dead else "exited"
    facts = ProcessFacts(ProcessKey(1, 1), 0.0, 1, user, "thread")
    verdict = RankVerdict(state, "left")
    return RankProcess(0.0, facts=facts, shown_job_id=job, exited_at=exited_at, verdict=verdict)


def evicted(*records: RankProcess) -> list[tuple[str, str]]:
    """Return user and job of each record above the limits."""
    processes = {ProcessKey(number, 1): process for number, process in enumerate(records)}
    return [(processes[key].user, processes[key].shown_job_id) for key in expiry.surplus(processes)]


def test_records_of_ended_ranks_are_bounded_by_user() -> None:
    """Above MAX_ENDED records of one user, the user's oldest job without dead or running ranks is evicted."""
    full = [record(f"{number:03}", "ada", float(number)) for number in range(MAX_ENDED)]
    neighbours = [record("9", "bob", 0.5)]
    assert evicted(*full, *neighbours) == []
    assert evicted(*full, record("128", "ada", 500.0), *neighbours) == [("ada", "000")]
    dead = record("dead", "ada", -1.0, dead=True)
    assert evicted(*full, dead) == [("ada", "000")]
    assert evicted(*full, record("run", "ada", -1.0), record("run", "ada", None)) == [("ada", "000")]
    assert dead.facts is not None
    contained = msgspec.structs.replace(dead.facts, owner=Owner("container", "c"))
    assert evicted(*full, msgspec.structs.replace(dead, facts=contained)) == []


def test_the_last_job_of_a_user_keeps_more_records() -> None:
    """A user's last job keeps MAX_ENDED_OF_JOB records: those of dead ranks first, then those of the earliest exits."""
    job = [record("1", "ada", float(number)) for number in range(MAX_ENDED_OF_JOB)]
    assert evicted(*job) == []
    assert evicted(*job, record("0", "ada", 0.0)) == [("ada", "0")]
    last = {ProcessKey(number, 1): one for number, one in enumerate([*job, record("1", "ada", 999.0, dead=True)])}
    assert list(expiry.surplus(last)) == [ProcessKey(MAX_ENDED_OF_JOB - 1, 1)]


ALICE, MALLORY = Owner("user", "1000"), Owner("user", "1001")


def add(table: Table, owner: Owner, pids: range, job: str) -> list[ProcessKey]:
    """Add rank processes of an owner."""
    return [table.add_facts(owned(pid, environment(pid, 10**6, job), owner, uid=int(owner.name))) for pid in pids]


def test_another_owners_crowd_hides_no_dead_rank(table: Table) -> None:
    """A user's processes never evict the record of another user's dead rank: the processes are refused."""
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
    """In a full table each process of a new owner replaces the newest running process of the owner with the most
    processes."""
    add(table, MALLORY, range(MAX_PROCESSES), "666")
    table.tick(1.0)
    add(table, ALICE, range(5000, 5008), "4711")
    table.tick(1.0)
    labels = table.labels()
    assert {label.rank for label in labels if label.job_id == "4711"} == {str(pid) for pid in range(5000, 5008)}
    assert len(labels) == MAX_PROCESSES


def test_containers_take_nothing_from_a_proven_job(table: Table) -> None:
    """If containers with few processes each fill the table, they evict each other's ranks, but none of a proven job."""
    job = Owner("job", "slurm/4711", scheduler="slurm", job_id="4711", proof="cgroup")
    for pid in range(8):
        table.add_facts(owned(pid, environment(pid, 8, "4711"), job, uid=1000))
    for pid in range(100, 100 + MAX_PROCESSES):
        container = Owner("container", f"c{pid // 7}")
        table.ranks.observe_process(owned(pid, environment(pid, 10**6, "666"), container, uid=1001))
    assert sum(process.owner == job for process in table.ranks.processes.values()) == 8


def test_ended_ranks_are_evicted_before_running_ones_and_dead_ranks_last(table: Table) -> None:
    """The owner with the most processes loses ended ranks first; only its own processes evict its dead ranks."""
    ended, dead, *_ = add(table, MALLORY, range(MAX_PROCESSES), "666")
    table.tick(1.0)
    table.ranks.observe_exit(dead, CRASHED)
    table.tick(1.0)
    table.ranks.observe_exit(ended, KILLED)
    table.tick(1.0)
    add(table, ALICE, range(5000, 5001), "4711")
    assert ended not in dict(table.ranks.processes)  # its record is evicted
    add(table, ALICE, range(5001, 5002), "4711")
    assert dead in dict(table.ranks.processes)
    assert table.ranks.observe_process(owned(6000, environment(0, job="666"), MALLORY, uid=1001))
    assert dead not in dict(table.ranks.processes)


def test_equals_do_not_push_each_other_out(table: Table) -> None:
    """If two owners have half of the table each, both are refused."""
    half = MAX_PROCESSES // 2
    add(table, ALICE, range(half), "4711")
    add(table, MALLORY, range(1000, 1000 + half), "666")
    for owner, pid in ((ALICE, 5000), (MALLORY, 5001)):
        assert not table.ranks.observe_process(owned(pid, environment(0), owner))
