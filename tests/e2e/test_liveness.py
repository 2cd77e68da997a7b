"""Liveness, end to end: real processes die in every way, with and without the kernel's report of their status."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent, select
from jobs import SimulatedJob
from machines import Machine, alive, records
from nodes import Node, Reply, wait_until, why_no_nodes

from agent.system.procfs import ProcFS

DEATH_TO_GAUGE_SECONDS = 0.5
FOUR = ("--ranks", "4", "--tp", "2", "--dump-interval-us", "50000")
ALIVE = alive(4)

in_a_node = pytest.param(
    "node", marks=[pytest.mark.root, pytest.mark.skipif(why_no_nodes() is not None, reason=why_no_nodes() or "")]
)


@pytest.fixture(params=["ioctl", "zombie", in_a_node])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Provide this machine with the ioctl, this machine without it, and a node in namespaces."""
    if request.param != "node":
        yield Machine(tmp_path, ioctl=request.param == "ioctl")
        return
    with Node("inner") as node:
        yield Machine(tmp_path, node=node)


def test_a_killed_rank_is_down_within_half_a_second(machine: Machine) -> None:
    """Eight ranks are up with bandwidth; a killed one is down and exited within 0.5 s, with its signal."""
    with machine.job() as job, machine.agent(job) as agent:
        job.wait_for("ready")
        agent.wait_for_states(alive(8))
        wait_until(lambda: bandwidths(agent) == in_files(job), 15.0, "bandwidth of every rank and collective")
        assert len(bandwidths(agent)) == 8 * 6
        with machine.late_reaping(job):
            job.kill(job.pid(3))
            assert agent.wait_for("rankwatch_rank_up", 0, rank="3") < DEATH_TO_GAUGE_SECONDS
            agent.wait_for_ending("3", ("signaled", "SIGKILL", ""), 1.0)
        assert agent.states() == alive(8) | {"3": "exited"}
        assert agent.value("rankwatch_rank_exit_timestamp_seconds", rank="3") == pytest.approx(time.time(), abs=5)
        assert sum(sample.value for sample in agent.samples("rankwatch_rank_up")) == 7
        assert not agent.samples("rankwatch_rank_info", rank="3")


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_no_scrape_after_a_restart_lacks_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool
) -> None:
    """From its first scrape a restarted agent has every rank, even one that ended while the agent was down."""
    machine = Machine(tmp_path)
    with machine.job(*FOUR) as job, machine.agent(job) as agent:
        job.wait_for("ready")
        agent.wait_for_states(ALIVE)
        job.kill(job.pid(3))
        agent.wait_for_ending("3", ("signaled", "SIGKILL", ""), 1.0)
        assert agent.stop() == 0
        job.kill(job.pid(2))
        if not has_checkpoint:
            agent.state_path.unlink()
        replies: list[Reply] = []
        is_ready = agent._is_ready

        def scraped_until_ready() -> bool:
            with contextlib.suppress(OSError):
                replies.append(agent.get("/metrics?collect[]=ranks"))
            return is_ready()

        monkeypatch.setattr(agent, "_is_ready", scraped_until_ready)
        agent.start()
        replies.append(agent.get("/metrics?collect[]=ranks"))
    expected = set("0123" if has_checkpoint else "01")
    shown = [select(reply.body, "rankwatch_rank_up", job_id=machine.job_id) for reply in replies if reply.status == 200]
    assert {reply.status for reply in replies} <= {200, 503}
    assert shown
    assert [{rank.labels["rank"] for rank in ranks} for ranks in shown] == [expected] * len(shown)


def test_a_stopped_rank_is_unresponsive_until_it_goes_on(tmp_path: Path) -> None:
    """SIGSTOP makes a rank unresponsive, SIGCONT alive; a rank under a debugger is not stopped."""
    machine = Machine(tmp_path)
    with machine.job(*FOUR) as job, machine.agent() as agent:
        agent.wait_for_states(ALIVE)
        job.kill(job.pid(2), signal.SIGSTOP)
        agent.wait_for_states(ALIVE | {"2": "unresponsive"}, 3.0)
        assert agent.value("rankwatch_rank_up", rank="2") == 1
        job.kill(job.pid(2), signal.SIGCONT)
        agent.wait_for_states(ALIVE, 3.0)
        with machine.popen([sys.executable, "-S", "-c", DEBUGGER, str(job.pid(2))]) as debugger:
            assert debugger.stdout is not None
            assert debugger.stdout.readline() == "holds\n"
            agent.wait_for("rankwatch_rank_process_state", 1, rank="2", state="traced", job_id=machine.job_id)
            assert agent.states() == ALIVE
            debugger.communicate("\n")
        agent.wait_for("rankwatch_rank_process_state", None, rank="2", state="traced", job_id=machine.job_id)
        assert agent.states() == ALIVE


def test_an_unreaped_zombie_shows_its_exit_status(tmp_path: Path) -> None:
    """Without the ioctl a rank that stays a zombie is down within a second, with its exit status."""
    machine = Machine(tmp_path, ioctl=False)
    with machine.job(*FOUR) as job, machine.agent() as agent:
        agent.wait_for_states(ALIVE)
        job.signal_launcher(signal.SIGSTOP)
        job.kill(job.pid(0), signal.SIGABRT)
        assert agent.wait_for_ending("0", ("signaled", "SIGABRT", ""), 1.0) < 1.0
        agent.wait_for_states(ALIVE | {"0": "dead"}, 1.0)
        stat = ProcFS(Path("/proc")).stat(job.pid(0))
        assert stat is not None
        assert stat.state == "Z"
        job.signal_launcher(signal.SIGCONT)


DEBUGGER = """
import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
if libc.ptrace(PTRACE_ATTACH, pid, None, None) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)  # __WALL
print("holds", flush=True)
sys.stdin.readline()
libc.ptrace(PTRACE_DETACH, pid, None, None)
"""


def bandwidths(agent: Agent) -> set[tuple[str, str, str]]:
    """Return rank, communicator and collective of each exported bandwidth above zero."""
    shown = agent.samples("rankwatch_collective_bus_bandwidth_bytes_per_second", job_id=agent.job_id or "")
    return {(s.labels["rank"], s.labels["comm"], s.labels["collective"]) for s in shown if s.value > 0}


def in_files(job: SimulatedJob) -> set[tuple[str, str, str]]:
    """Return rank, communicator and collective of the records in the job's files."""
    return {
        (str(rank), record["header"]["id"].removeprefix("0x"), record["coll_perf"]["coll"])
        for rank in range(8)
        for path in job.dump_dir.glob(f"*-pid{job.pid(rank)}.log")
        for record in records(path)
    }
