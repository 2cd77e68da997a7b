"""The owner of a job and the labels of its ranks, with hostile users or unusual jobs."""

import time

import pytest
from rank_table import CRASHED, KILLED, Table, environment, owned
from test_job_owners import ALICE, CONTAINER, MALLORY, POD, SLURM

from agent.core.identity import RankLabel
from agent.ranks.naming.binding import BINDING_SECONDS
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import Owner, ProcessFacts

OTHER_JOB = Owner("job", "slurm/4712", scheduler="slurm", job_id="4712", proof="cgroup")
DOCKER = Owner("container", CONTAINER)


@pytest.mark.parametrize("owner", [DOCKER, ALICE])
def test_a_restarted_rank_keeps_its_job_when_another_job_was_proven_meanwhile(owner: Owner, table: Table) -> None:
    """If the ranks of a job restart, the new ranks stay in their job, even if another job was proven meanwhile."""
    keys = [table.add_facts(owned(pid, environment(pid), owner)) for pid in (1, 2)]
    table.tick(1.0)
    table.add_facts(owned(50, environment(0, job="4712"), OTHER_JOB), then=1.0)
    for key in keys:
        table.ranks.observe_exit(key, CRASHED)
    for pid in (11, 12):
        table.add_facts(owned(pid, environment(pid - 10), owner))
    table.tick(1.0)
    mine = {label: pid for label, pid in table.labels().items() if pid in (11, 12)}
    assert mine == {RankLabel("4711", "1"): 11, RankLabel("4711", "2"): 12}


def test_pods_of_one_namespace_stay_one_job_without_the_plain_id(table: Table) -> None:
    """If another user has the plain id, the pods of one namespace are still one job."""
    table.add_facts(owned(9, {"TORCHELASTIC_RUN_ID": "team-a/train", "RANK": "0"}, MALLORY, uid=1001), then=1.0)
    for pid in range(4):
        env = {"JOBSET_NAME": "train", "RANK": str(pid), "WORLD_SIZE": "4"}
        owner = Owner("pod", POD.replace("c7", f"a{pid}"), "team-a")
        table.add_facts(owned(pid + 1, env, owner, uid=0))
    table.tick(1.0)
    assert len({label.job_id for label, pid in table.labels().items() if pid != 9}) == 1


def test_a_suffixed_id_is_not_for_others(table: Table) -> None:
    """A job whose name is another owner's suffixed id gets a different id."""
    table.add_facts(owned(1, environment(0, job="4711"), SLURM), then=1.0)
    table.add_facts(owned(2, environment(0), DOCKER), then=1.0)
    [victims] = [label.job_id for label, pid in table.labels().items() if pid == 2]
    table.add_facts(owned(3, {"TORCHELASTIC_RUN_ID": victims, "RANK": "1"}, MALLORY, uid=1001), then=BINDING_SECONDS)
    assert {label.job_id for label, pid in table.labels().items() if pid == 3} != {victims}


def vllm(pid: int, task: int, position: int) -> ProcessFacts:
    """Return a worker of a vLLM server in a task."""
    env = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": str(task), "SLURM_NTASKS": "2", "SLURM_TASK_PID": str(50 + task)}
    return owned(pid, env, SLURM, parent=50 + task, title=f"VLLM::Worker_TP{position}")


def test_two_servers_in_two_tasks_of_a_node_are_all_shown(table: Table) -> None:
    """With `srun -n2 vllm serve -tp 4`, each of the eight workers has its own series."""
    for task in range(2):
        for position in range(4):
            table.add_facts(vllm(1 + 4 * task + position, task, position))
    table.tick(BINDING_SECONDS)
    table.tick(BINDING_SECONDS)
    assert sorted(table.labels().values()) == list(range(1, 9))


def test_a_helper_of_a_rank_that_it_kills_is_no_death(table: Table) -> None:
    """A rank's child process with NCCL that is killed by SIGKILL counts as no death of a rank."""
    table.add_facts(owned(1, environment(0), SLURM, parent=40))
    table.add_facts(owned(2, environment(1), SLURM, parent=40), then=1.0)
    helper = table.add_facts(owned(9, environment(1), SLURM, parent=2), then=BINDING_SECONDS)
    table.ranks.observe_exit(helper, KILLED)
    table.tick(20.0)
    table.tick(20.0)
    assert "dead" not in table.states().values()


def test_titles_made_to_be_slow_do_not_hold_the_loop(table: Table) -> None:
    """Titles of 1,024 processes, 64 for each number, on which the pattern backtracks, take little time."""
    title = ("VLLM::" + "_AA1" * 64)[:255] + "_"
    for pid in range(1, 1025):
        env = {"SLURM_JOB_ID": "9", "RANK": str(pid // 64), "WORLD_SIZE": "4096"}
        table.add_facts(owned(pid, env, MALLORY, uid=1001, parent=999, title=title))
    table.clock.advance(BINDING_SECONDS)
    began = time.perf_counter()
    table.tick()
    took = time.perf_counter() - began
    assert took < 1.0, f"one tick held the loop for {took:.1f} s"


@pytest.mark.parametrize(
    "owners",
    [(DOCKER, Owner("container", CONTAINER[::-1])), (Owner("pod", POD), Owner("pod", POD.replace("c7", "ff")))],
)
def test_a_restarted_container_continues_its_job(owners: tuple[Owner, Owner], table: Table) -> None:
    """If another container or pod replaces the container or pod of a crashed job, its ranks continue the same job."""
    first = table.add_facts(owned(1, environment(0), owners[0], uid=1000), then=1.0)
    table.ranks.observe_exit(first, CRASHED)
    table.tick(5.0)
    table.add_facts(owned(2, environment(0), owners[1], uid=1000), then=1.0)
    assert table.labels() == {RankLabel("4711", "0"): 2}


def test_an_id_without_an_owner_is_free(table: Table) -> None:
    """If a full table evicts the last record with an id, another owner can have the id."""
    table.add_facts(owned(1, environment(0), MALLORY, uid=1001), then=1.0)
    key = next(iter(table.ranks.running()))
    table.ranks.observe_exit(key, ExitStatus(known=True))
    table.tick(0.1)
    for pid in range(100, 100 + 1023):
        table.add_facts(owned(pid, {"RANK": str(pid), "TORCHELASTIC_RUN_ID": "m"}, MALLORY, uid=1001))
    table.tick(1.0)
    table.add_facts(owned(5000, {"RANK": "9", "TORCHELASTIC_RUN_ID": "m"}, MALLORY, uid=1001))  # the record is evicted
    table.tick(1.0)
    table.add_facts(owned(6000, environment(0), ALICE), then=1.0)
    assert RankLabel("4711", "0") in table.labels()
