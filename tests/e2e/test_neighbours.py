"""Two users on one node, with the agent as a third user: one user's actions do not change the other's series."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
from agents import Agent
from full import full
from neighbours import (
    JOB,
    MALLORY,
    RANKS,
    VICTIM,
    SharedNode,
    control_group,
    end,
    hierarchy,
    operations,
    shared_node,
    victims_series,
    wait_until_read,
)
from nodes import wait_until, why_no_nodes

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or ""),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found"),
]
ALIVE = {str(rank): "alive" for rank in range(RANKS)}
CONTROL = {
    "states": ALIVE | {"1": "dead"},
    "endings": {"1": ("signaled", "SIGSEGV", "")},
    "proven": {1.0},
    "live pids": RANKS - 1,
    "expected": {float(RANKS)},
    "bandwidth": set(ALIVE),
}
"""The series of a node with no other user, after the victim's rank 1 has crashed."""


def is_as_in_the_control_run(agent: Agent) -> None:
    """Wait until the victim's series equal those of the control run; raises AssertionError."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: victims_series(agent) == CONTROL, 30.0)
    assert victims_series(agent) == CONTROL


@pytest.fixture
def shared() -> Iterator[SharedNode]:
    """Provide a node with two users."""
    with shared_node() as place:
        yield place


def joins_and_crashes(shared: SharedNode, agent: Agent) -> None:
    """Let a process of the hostile user join the job as another rank, and crash first."""
    forger = shared.rank(MALLORY, SLURM_JOB_ID=JOB, RANK="9", WORLD_SIZE="16")
    agent.wait_for("rankwatch_rank_up", 1.0, job_id=f"{JOB}-u{MALLORY}", rank="9")
    end(forger)
    agent.wait_for("rankwatch_rank_up", 0.0, job_id=f"{JOB}-u{MALLORY}", rank="9")


def writes_in_the_victims_name(shared: SharedNode, agent: Agent) -> None:
    """As the hostile user, write a file with the victim's host name, pid, communicators and ranks."""
    for path in (shared.logs / "victim").glob("*.log"):
        forged = shared.logs / "mallory" / path.name
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        records = [json.loads(line) for line in lines]
        for record in records:
            if "coll_perf" in record:
                record["coll_perf"]["coll_sn"] += 100_000
        forged.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
        shutil.chown(forged, MALLORY, MALLORY)
    agent.wait_for("rankwatch_inspector_files", float(RANKS * 2), state="followed")


AFTER = [
    pytest.param(joins_and_crashes, id="joins and crashes"),
    pytest.param(writes_in_the_victims_name, id="writes in the victim's name", marks=full),
]


@pytest.mark.parametrize("attack", AFTER)
def test_a_running_job_is_unharmed(attack: Callable[[SharedNode, Agent], None], shared: SharedNode) -> None:
    """A hostile user on the node changes no state, exit or counter of a job whose rank 1 crashes."""
    with shared.agent() as agent, shared.victim() as job:
        agent.wait_for_states(ALIVE, 20.0)
        wait_until(lambda: victims_series(agent)["bandwidth"] == set(ALIVE), 20.0, "records of all ranks")
        attack(shared, agent)
        assert agent.states() == ALIVE
        job.kill(job.pid(1), signal.SIGSEGV)
        agent.wait_for_ending("1", ("signaled", "SIGSEGV", ""), 20.0)
        agent.wait_for_states(ALIVE | {"1": "dead"})
        is_as_in_the_control_run(agent)
        for rank in sorted(set(ALIVE) - {"1"}):
            job.kill(job.pid(int(rank)), signal.SIGSTOP)
        wait_until_read(agent, shared.logs / "victim")
        shown, written = operations(agent, shared.logs / "victim")
        assert shown == written > 0


def takes_ranks(shared: SharedNode) -> None:
    """Start processes of the hostile user that claim ranks 0 and 1 of the job before the job starts."""
    for rank in ("0", "1"):
        shared.rank(MALLORY, SLURM_JOB_ID=JOB, RANK=rank, WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")


def test_a_job_that_starts_is_unharmed(shared: SharedNode) -> None:
    """A hostile user who acts before a job starts takes neither its id nor its ranks."""
    with shared.agent() as agent:
        takes_ranks(shared)
        agent.wait_for_states({"0": "alive", "1": "alive"}, 20.0)
        with shared.victim() as job:
            agent.wait_for_states(ALIVE, 30.0)
            pids = {sample.labels["rank"]: int(sample.labels["pid"]) for sample in agent.samples("rankwatch_rank_info")}
            assert pids == {str(rank): job.pid(rank) for rank in range(RANKS)}
            assert agent.states(job_id=f"{JOB}-u{MALLORY}") == {"0": "alive", "1": "alive"}
            assert agent.log().count("of another owner") >= 2
            wait_until(lambda: victims_series(agent)["bandwidth"] == set(ALIVE), 20.0, "records of all ranks")
            job.kill(job.pid(1), signal.SIGSEGV)
            agent.wait_for_ending("1", ("signaled", "SIGSEGV", ""), 20.0)
            is_as_in_the_control_run(agent)


NO_GROUPS = pytest.mark.skipif(hierarchy() is None, reason="no control groups can be made here")
OURS, THEIRS = "a" * 64, "b" * 64


@NO_GROUPS
def test_two_containers_of_root_are_two_owners(shared: SharedNode) -> None:
    """If two containers run as uid 0, a crash in the later container is no exit of the other container's job."""
    with (
        control_group(f"/docker/{OURS}") as ours,
        control_group(f"/docker/{THEIRS}") as theirs,
        shared.agent() as agent,
    ):
        victim = shared.rank(0, group=ours, SLURM_JOB_ID=JOB, RANK="0", WORLD_SIZE="2")
        agent.wait_for_states({"0": "alive"}, 20.0)
        forger = shared.rank(0, group=theirs, SLURM_JOB_ID=JOB, RANK="1", WORLD_SIZE="2")
        suffixed = f"{JOB}-u0"
        agent.wait_for("rankwatch_rank_up", 1.0, job_id=suffixed, rank="1", seconds=20.0)
        end(forger)
        agent.wait_for("rankwatch_rank_up", 0.0, job_id=suffixed, rank="1")
        assert agent.states() == {"0": "alive"}
        [info] = agent.samples("rankwatch_rank_info")
        assert info.labels["container"] == OURS
        end(victim)


@NO_GROUPS
def test_a_schedulers_group_below_a_login_is_no_proof(shared: SharedNode) -> None:
    """The scheduler's control group gives the job id without a suffix; a user's copy below a login does not."""
    real = f"/slurm/uid_{VICTIM}/job_{JOB}/step_0/task_0"
    copied = f"/user.slice/user-{MALLORY}.slice/user@{MALLORY}.service"
    mine = copied + real.replace(str(VICTIM), str(MALLORY))
    with (
        control_group(real) as ours,
        control_group(copied),
        control_group(mine, MALLORY) as theirs,
        shared.agent() as agent,
    ):
        forger = shared.rank(MALLORY, group=theirs, SLURM_JOB_ID=JOB, RANK="0", WORLD_SIZE="2")
        agent.wait_for_states({"0": "alive"}, 20.0)
        victim = shared.rank(VICTIM, group=ours, SLURM_JOB_ID=JOB, RANK="0", WORLD_SIZE="2")
        agent.wait_for("rankwatch_rank_up", 1.0, job_id=f"{JOB}-u{MALLORY}", rank="0", seconds=20.0)
        agent.wait_for("rankwatch_job_proven", 1.0)
        end(forger)
        end(victim)
        agent.wait_for_ending("0", ("signaled", "SIGSEGV", ""))
