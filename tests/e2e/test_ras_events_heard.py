"""RAS's events, end to end: the agent monitors NVIDIA's own RAS threads, and queries after an alarm."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent
from full import full
from nodes import wait_until
from ports import free_port
from ras_jobs import RasJob, why_no_ras

pytestmark = [full, pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")]

FAST = {"NCCL_RAS_TIMEOUT_FACTOR": "0.1"}
"""A silent process is unresponsive after 0.5 s and dead after 6 s, instead of 5 s and 60 s."""
DEAD_SECONDS = 6.0
STREAM_SECONDS = 15.0
"""Time in which the agent finds the ranks and then their listeners."""
JOB = "4741"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RasJob]:
    """Provide three ranks on one port of this machine; each is a neighbour of both others and learns all events."""
    with RasJob(tmp_path, 3, free_port(), base=78, env=FAST, job_id=JOB) as job:
        yield job


def agent_for(job: RasJob, directory: Path, role: str) -> Agent:
    """Return an agent of that role, in a directory of that name, that already monitors the job."""
    (directory / role).mkdir()
    exporters = {"ras": {"addresses": [f"127.0.0.1:{job.port}"], "role": role}}
    agent = Agent(directory / role, {"exporters": exporters}, job_id=JOB)
    agent.wait_for("rankwatch_ras_monitor_up", 1, seconds=STREAM_SECONDS, endpoint=f"127.0.0.1:{job.port}")
    return agent


def events(agent: Agent, event: str) -> float:
    """Return how many events of this kind the agent counted."""
    return agent.value("rankwatch_ras_events_total", event=event) or 0.0


def heard(agent: Agent, event: str, seconds: float) -> None:
    """Wait until the agent has counted the event."""
    wait_until(lambda: events(agent, event) >= 1, seconds, f"{event}\n{agent.log()[-2000:]}")


def missing(agent: Agent) -> set[str]:
    """Return the missing ranks of the last report."""
    return {sample.labels["comm_rank"] for sample in agent.samples("rankwatch_communicator_rank_missing", job_id=JOB)}


def test_a_standby_that_hears_of_a_death_asks_at_once(job: RasJob, tmp_path: Path) -> None:
    """A standby that receives the event of a death queries before its turn."""
    with agent_for(job, tmp_path, "standby") as standby, agent_for(job, tmp_path, "reporter") as reporter:
        for agent in (standby, reporter):
            agent.wait_for("rankwatch_ras_up", 1, seconds=STREAM_SECONDS)
        monitored = job.connected()
        victim = next(rank for rank in range(3) if rank not in monitored)
        killed_at = time.monotonic()
        job.signal(victim)
        wait_until(
            lambda: missing(standby) == {str(victim)}, 14.0, "the standby's word"
        )  # its turn is 36 s after its first query
        heard(standby, "PEER_DEAD", DEAD_SECONDS + 4.0)
        heard(reporter, "PEER_DEAD", DEAD_SECONDS + 4.0)
        assert time.monotonic() - killed_at > DEAD_SECONDS - 1.0
        wait_until(lambda: missing(reporter) == {str(victim)}, 12.0, "the reporter's word")
        for agent in (standby, reporter):
            assert sum(sample.value for sample in agent.samples("rankwatch_ras_query_errors_total")) == 0
