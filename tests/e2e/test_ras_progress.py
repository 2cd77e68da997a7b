"""RAS's view of a job's communicators, end to end: the rank that blocks the others, and ranks with errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agents import Agent
from full import full
from nodes import wait_until
from ports import free_port
from ras_jobs import FIRST_GROUP_HASH, POLL_SECONDS, RasJob, why_no_ras

pytestmark = pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")

JOB = "4721"
FIRST_REPORT_SECONDS = 25.0
LAUNCHES = 1000
"""Launches of each rank in each communicator, before any failure."""
STEP_SECONDS = 0.05


FAILED = ("async_error", "init_error", "aborted")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RasJob]:
    """Provide eight ranks on four fictional nodes, with groups of two (tensor) and of four (data), without launches.

    More communicators, each of ranks 2, 4 and 6, have failed at rank 4."""
    with RasJob(tmp_path_factory.mktemp("job"), 8, free_port(), ranks_per_node=2, base=79, job_id=JOB) as job:
        job.groups(2)
        for name in job.members:
            job.launch(name, "AllReduce", LAUNCHES)
        for number, name in enumerate(FAILED):
            job.communicator(name, FIRST_GROUP_HASH + 0x100 + number, [2, 4, 6])
        job.set(4, "async_error", "asyncResult", 6)
        job.set(4, "init_error", "initState", 2)
        job.abort(4, "aborted")
        yield job


@pytest.fixture(scope="module")
def agent(job: RasJob, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Provide an agent that has its first report."""
    exporters = {"ras": {"addresses": [f"127.0.0.1:{job.port}"]}}
    with Agent(tmp_path_factory.mktemp("agent"), {"exporters": exporters}, job_id=JOB) as agent:
        wait_until(lambda: agent.samples("rankwatch_communicator_ranks"), FIRST_REPORT_SECONDS, "a report")
        yield agent


def wait_for_report(agent: Agent) -> None:
    """Wait until another query has its report."""
    time = "rankwatch_ras_report_timestamp_seconds"
    before = agent.value(time)
    wait_until(lambda: agent.value(time) != before, POLL_SECONDS, "a report")


def suspects(agent: Agent) -> set[tuple[str, ...]]:
    """Return the suspects, each as communicator, rank in the communicator, global rank, and reason."""
    samples = agent.samples("rankwatch_communicator_suspect", job_id=JOB)
    return {tuple(sample.labels[name] for name in ("comm", "comm_rank", "rank", "reason")) for sample in samples}


@contextmanager
def running(job: RasJob, names: list[str], behind: int) -> Iterator[None]:
    """Let the communicators' ranks launch continuously, one rank always after the others."""
    ended = threading.Event()

    def step() -> None:
        while not ended.wait(STEP_SECONDS):
            for name in names:
                others = [rank for rank in job.members[name] if rank != behind]
                job.launch(name, "AllReduce", 1, others)
                job.launch(name, "AllReduce", 1, set(job.members[name]) - set(others))

    thread = threading.Thread(target=step)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_rank_that_stops_launching_is_named_and_its_victims_are_not(job: RasJob, agent: Agent) -> None:
    """Within two polls only the rank that stopped launching is a suspect, not its victims; a job with progress has
    none."""
    moving = ["tp0", "tp1", "tp2", "tp3", "dp0", "dp1"]
    with running(job, moving, behind=5):
        wait_for_report(agent)
        assert suspects(agent) == set()
        assert agent.value("rankwatch_communicator_stalled", job_id=JOB, comm=job.labels["dp1"]) == 0
    for name in ("tp0", "tp1", "tp3"):
        job.launch(name, "AllReduce", 1)
    job.launch("tp2", "AllReduce", 1, [4])  # waits for 5
    job.launch("dp1", "AllReduce", 1, [1, 3, 7])  # wait for 5 as well
    job.launch("dp0", "AllReduce", 1, [0, 2, 6])  # wait for 4, the victim
    wait_until(lambda: suspects(agent) != set(), 2 * POLL_SECONDS, "a suspect")
    tp2, dp0, dp1 = (job.labels[name] for name in ("tp2", "dp0", "dp1"))
    assert suspects(agent) == {(tp2, "1", "5", "behind"), (dp1, "2", "5", "behind")}
    stalled = {sample.labels["comm"] for sample in agent.samples("rankwatch_communicator_stalled") if sample.value == 1}
    assert stalled == {tp2, dp0, dp1}
    lags = agent.samples("rankwatch_communicator_rank_lag", job_id=JOB, rank="5")
    assert {(lag.labels["comm"], lag.labels["collective"], lag.value) for lag in lags} == {
        (tp2, "AllReduce", 1),
        (dp1, "AllReduce", 1),
    }


@full
def test_errors_are_shown_with_their_rank_while_they_last(job: RasJob, agent: Agent) -> None:
    """A rank with an error is named while the error lasts; a rank that aborted is named for some time afterwards."""
    errors, aborted = "rankwatch_communicator_async_error", "rankwatch_communicator_aborted"
    place = {"job_id": JOB, "comm_rank": "1", "rank": "4"}
    assert [sample.labels for sample in agent.samples(errors)] == [
        {**place, "comm": job.labels["async_error"], "phase": "run", "error": "remote_error"},
        {**place, "comm": job.labels["init_error"], "phase": "init", "error": "system_error"},
    ]
    assert [sample.labels for sample in agent.samples(aborted)] == [{**place, "comm": job.labels["aborted"]}]
    assert agent.samples("rankwatch_communicator_rank_missing", job_id=JOB) == []
    job.set(4, "async_error", "asyncResult", 0)
    job.set(4, "init_error", "initState", 0)
    job.leave(4, "aborted")
    wait_until(lambda: agent.samples(errors) == [], POLL_SECONDS, "the end")
    assert [sample.labels for sample in agent.samples(aborted)] == [{**place, "comm": job.labels["aborted"]}]
    (missing,) = agent.samples("rankwatch_communicator_rank_missing", job_id=JOB)
    where = {"comm": job.labels["aborted"], "host": "127.0.79.4", "gpu": "0", "reason": "no_communicator"}
    assert missing.labels == place | where
