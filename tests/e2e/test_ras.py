"""RAS, end to end: the agent queries NVIDIA's own RAS threads."""

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

pytestmark = pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")

WORLD = "1234567890abcd"
FAST = {"NCCL_RAS_TIMEOUT_FACTOR": "0.1"}
"""RAS declares a process dead after 6 s instead of 60 s."""
STAGES = ("initializing", "finalizing", "aborted")
FIRST_REPORT_SECONDS = 25.0
"""Time to bind the ranks and to make the first query, which is spread over ten seconds."""
NEXT_REPORT_SECONDS = 15.0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RasJob]:
    """Provide eight ranks on two fictional nodes, all on one port of this machine."""
    with RasJob(tmp_path, 8, free_port(), env=FAST) as job:
        yield job


def agent_for(job: RasJob, directory: Path) -> Agent:
    """Return an agent that looks for RAS at the job's port."""
    exporters = {"ras": {"addresses": [f"127.0.0.1:{job.port}"]}}
    return Agent(directory, {"exporters": exporters}, job_id=job.job_id)


def counts(agent: Agent) -> dict[str, float]:
    """Return the world's ranks by state; the states in STAGES must have 0 ranks, and are left out."""
    samples = agent.samples("rankwatch_communicator_ranks", job_id="4711", comm=WORLD)
    assert {sample.value for sample in samples if sample.labels["state"] in STAGES} <= {0}
    return {sample.labels["state"]: sample.value for sample in samples if sample.labels["state"] not in STAGES}


def missing(agent: Agent) -> list[tuple[str, ...]]:
    """Return the world's missing ranks: rank, node, GPU and reason."""
    samples = agent.samples("rankwatch_communicator_rank_missing", job_id="4711", comm=WORLD)
    return sorted(tuple(sample.labels[name] for name in ("comm_rank", "host", "gpu", "reason")) for sample in samples)


def test_the_reporter_exports_the_missing_rank_as_dead(job: RasJob, tmp_path: Path) -> None:
    """The node of rank 0 queries without configuration; a killed rank is missing, with node and GPU, and later dead."""
    with agent_for(job, tmp_path) as agent:
        wait_until(lambda: counts(agent).get("expected") == 8, FIRST_REPORT_SECONDS, "a report")
        assert counts(agent) == {"expected": 8, "responding": 8, "missing": 0, "unresponsive": 0, "dead": 0}
        assert missing(agent) == []
        assert agent.value("rankwatch_ras_up", endpoint=f"127.0.0.1:{job.port}") == 1
        assert agent.value("rankwatch_ras_reporter", job_id="4711", role="reporter") == 1
        assert agent.samples("rankwatch_ras_not_asked", job_id="4711") == []
        killed_at = time.monotonic()
        job.signal(6)
        wait_until(lambda: missing(agent) != [], NEXT_REPORT_SECONDS, "the missing rank")
        assert [each[:3] for each in missing(agent)] == [("6", "127.0.77.3", "2")]
        wait_until(lambda: missing(agent)[0][3] == "dead", 2 * NEXT_REPORT_SECONDS, "its death")
        assert time.monotonic() - killed_at > 6
        assert counts(agent) == {"expected": 8, "responding": 7, "missing": 1, "unresponsive": 1, "dead": 1}
        assert sum(sample.value for sample in agent.samples("rankwatch_ras_query_errors_total")) == 0


@full
def test_an_address_with_an_orphan_is_not_asked(job: RasJob, tmp_path: Path) -> None:
    """The agent does not query an address whose listener is held by a child that outlived its rank."""
    job.fork(7)
    job.signal(7)
    job.processes[7].wait()
    with agent_for(job, tmp_path) as agent:
        agent.wait_for("rankwatch_ras_not_asked", 1, job_id="4711", reason="unowned_listener")
        endpoint = f"127.0.0.1:{job.port}"
        agent.wait_for("rankwatch_ras_listeners", 7, endpoint=endpoint, owner="rank")
        assert agent.value("rankwatch_ras_listeners", endpoint=endpoint, owner="unowned") == 1
        assert agent.value("rankwatch_ras_queries_total") == 0
