"""A rank that was stopped beyond RAS's limit and goes on, dead to all others for good, and a hang after that."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from agents import Agent
from nodes import wait_until
from ports import free_port
from ras_jobs import POLL_SECONDS, RasJob, why_no_ras

from exporters.ras.report.hangs import UNHEARD_SECONDS

FULL = pytest.mark.skipif("RANKWATCH_TEST_FULL" not in os.environ, reason="only with RANKWATCH_TEST_FULL=1")
pytestmark = [FULL, pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")]

JOB = "4741"
FAST = {"NCCL_RAS_TIMEOUT_FACTOR": "0.1"}
"""RAS declares a process dead after 6 s, not 60."""
STOPPED, CULPRIT = 6, 3
RUN_SECONDS = UNHEARD_SECONDS + 2 * POLL_SECONDS


def reasons(agent: Agent, name: str) -> set[tuple[str, str]]:
    """Return rank and reason of the series called so."""
    return {(each.labels["rank"], each.labels["reason"]) for each in agent.samples(name, job_id=JOB)}


@pytest.mark.timeout(180)
def test_who_hangs_is_named_and_not_who_was_stopped_before(tmp_path: Path) -> None:
    """A job goes on though one rank of it is dead to the others: when another one hangs, that one is named alone."""
    port = free_port()
    with RasJob(tmp_path, 8, port, ranks_per_node=2, base=83, job_id=JOB, env=FAST) as job:
        job.groups(2)
        exporters = {"ras": {"addresses": [f"127.0.0.1:{port}"]}}
        with Agent(tmp_path, {"exporters": exporters}, job_id=JOB) as agent:
            wait_until(lambda: agent.samples("rankwatch_communicator_ranks"), 25.0, "a report")
            job.signal(STOPPED, signal.SIGSTOP)
            dead = {(str(STOPPED), "dead")}
            missing = "rankwatch_communicator_rank_missing"
            wait_until(lambda: reasons(agent, missing) == dead, 5 * POLL_SECONDS, "its death")
            job.signal(STOPPED, signal.SIGCONT)
            until = time.monotonic() + RUN_SECONDS
            while time.monotonic() < until:
                for name in job.members:
                    job.launch(name, "AllReduce", 1)
                time.sleep(0.5)
            job.launch("tp1", "AllReduce", 1, [2])
            suspect = "rankwatch_communicator_suspect"
            seen = wait_until(lambda: reasons(agent, suspect), 3 * POLL_SECONDS, "a suspect")
            assert seen == {(str(CULPRIT), "behind")}
            assert reasons(agent, missing) == dead
