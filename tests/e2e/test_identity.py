"""The identity of ranks, end to end: sources of labels, processes that are no ranks, and the files of a rank."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

import pytest
from agents import Agent
from jobs import SimulatedJob
from machines import Machine, alive
from nodes import Node, wait_until, why_no_nodes
from users import NOBODY, as_user, open_directory

FOUR = ("--ranks", "4", "--tp", "2", "--dump-interval-us", "50000")


def test_ranks_without_environment_and_several_in_a_process_are_named_by_communicators(tmp_path: Path) -> None:
    """Communicators name the ranks of a job without RANK, and of a job with two ranks per process."""
    bare, shared = Machine(tmp_path), Machine(tmp_path)
    with (
        bare.job(*FOUR, "--no-rank-environment", name="bare") as first,
        shared.job(*FOUR, "--ranks-per-process", "2", "--master-port", "29600", name="shared") as second,
        bare.agent(first, second) as agent,
    ):
        agent.wait_for_states(alive(4), job_id=shared.job_id)
        assert pids(agent, shared.job_id) == {str(rank): second.pid(rank - rank % 2) for rank in range(4)}
        assert agent.states() == {}
        agent.wait_for_states(alive(4), 15.0)
        assert pids(agent, bare.job_id) == {str(rank): first.pid(rank) for rank in range(4)}
        for machine in (bare, shared):
            assert {each["named_by"] for each in agent.named(machine.job_id)} == {"communicator"}
        assert ranks_with_bandwidth(agent, bare.job_id) == set("0123")
        # In a communicator with only one of its two ranks, a process cannot tell which one it is.
        wait_until(lambda: ranks_with_bandwidth(agent, shared.job_id) == {*"0123", "unknown"}, 15.0)
        second.kill(second.pid(2))
        agent.wait_for_states(alive(4) | {"2": "exited", "3": "exited"}, job_id=shared.job_id)
        assert agent.states() == alive(4)


@pytest.mark.root
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
def test_two_nodes_share_a_directory_and_a_job(tmp_path: Path) -> None:
    """On a shared directory each agent exports only its own ranks and files; together they have the whole job."""
    options = ("--hosts", "2", "--master-addr", "node-a", "--tp", "2", "--dump-interval-us", "50000")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        Node("node-a") as node_a,
        Node("node-b") as node_b,
        SimulatedJob(tmp_path / "job", *options, "--host-index", "0", node=node_a) as job_a,
        SimulatedJob(tmp_path / "job", *options, "--host-index", "1", node=node_b) as job_b,
    ):
        config = {"exporters": {"inspector": {"paths": [str(job_a.dump_dir)]}}}
        with Agent(tmp_path / "a", config, node=node_a) as here, Agent(tmp_path / "b", config, node=node_b) as there:
            first = {str(rank): "alive" for rank in range(4)}
            second = {str(rank): "alive" for rank in range(4, 8)}
            here.wait_for_states(first)
            there.wait_for_states(second)
            for agent, ranks, job in ((here, first, job_a), (there, second, job_b)):
                assert pids(agent) == {rank: job.pid(int(rank)) for rank in ranks}
                agent.wait_for("rankwatch_inspector_files", 4, state="followed")
                agent.wait_for("rankwatch_inspector_files", 4, state="foreign")
                wait_until(lambda agent=agent, ranks=ranks: ranks_with_bandwidth(agent) == set(ranks))
            jobs = [{sample.labels["job_id"] for sample in a.samples("rankwatch_rank_up")} for a in (here, there)]
            assert jobs[0] == jobs[1]
            assert len(jobs[0]) == 1
            worlds = [a.samples("rankwatch_communicator_info", comm_name="world", ranks="8") for a in (here, there)]
            assert [each.labels for each in worlds[0]] == [each.labels for each in worlds[1]]
            assert len(worlds[0]) == 1


@pytest.mark.root
@pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) not found")
def test_another_users_job_is_named_by_its_communicators() -> None:
    """Without ptrace rights communicators name another user's ranks, and one log line has the remedy."""
    with contextlib.ExitStack() as stack:
        directory, node = stack.enter_context(open_directory()), stack.enter_context(Node("plain"))
        job = stack.enter_context(Machine(directory, node=node).job(*FOUR))
        job.wait_for("ready")
        sections = {"inspector": {"paths": [str(job.dump_dir)]}, "process": {"exit_status_ioctl": False}}
        command = (*as_user(NOBODY, "--no-new-privs"), sys.executable, "-B", "-m", "agent")
        agent = stack.enter_context(
            Agent(directory / "home", {"exporters": sections}, node=node, command=command, root=directory)
        )
        agent.wait_for("rankwatch_rank_identity_problems", 4, problem="unreadable")
        agent.wait_for_states(alive(4), 15.0)
        assert pids(agent) == {str(rank): job.pid(rank) for rank in range(4)}
        [job_id] = {sample.labels["job_id"] for sample in agent.samples("rankwatch_rank_up")}
        assert job_id.startswith("job-")
        assert {each["named_by"] for each in agent.named()} == {"communicator"}
        warnings = [line for line in agent.log().splitlines() if "their ranks are named by" in line]
        assert len(warnings) == 1, agent.log()
        assert "processes=4" in warnings[0]
        job.kill(job.pid(1))
        agent.wait_for_ending("1", ("unknown", "", ""))
        sections["process"] = {"exit_status_ioctl": True}
        agent.configure({"exporters": sections})
        agent.reload()
        wait_for_looks(agent)
        job.kill(job.pid(2))
        agent.wait_for_ending("2", ("signaled", "SIGKILL", ""))
        assert agent.states() == alive(4) | {"1": "exited", "2": "exited"}


def pids(agent: Agent, job_id: str | None = None) -> dict[str, int]:
    """Return the pid of each live rank."""
    labels = {} if job_id is None else {"job_id": job_id}
    return {s.labels["rank"]: int(s.labels["pid"]) for s in agent.samples("rankwatch_rank_info", **labels)}


def ranks_with_bandwidth(agent: Agent, job_id: str | None = None) -> set[str]:
    """Return the ranks that have counters of operations."""
    labels = {} if job_id is None else {"job_id": job_id}
    return {sample.labels["rank"] for sample in agent.samples("rankwatch_collective_operations_total", **labels)}


def wait_for_looks(agent: Agent) -> None:
    """Wait until the agent has scanned all processes twice."""
    seen: set[float] = set()

    def looked() -> bool:
        seen.add(agent.looked_at("process"))
        return len(seen) > 2

    wait_until(looked, 10.0, "two looks at all processes")
