"""The agent reads the reports of every downloaded version of NCCL (end to end, in parallel)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from agents import Agent
from full import full
from nodes import wait_until
from ports import free_port
from ras_jobs import POLL_SECONDS, VERSIONS, WORLD, RasJob, why_no_ras

pytestmark = [full, pytest.mark.timeout(240)]

RANKS = 8
SOUND = (2, 29, 2)
"""Older versions are queried only if the configuration says so, and once their processes are two minutes old."""
YOUNG_SECONDS = 120.0
FIRST_REPORT_SECONDS = 30.0
SLOW_SECONDS = 5.0
"""Duration of a query that waits for a process without a reply; queries run one at a time."""
JSON = (2, 28, 7)
KNOWN_REASONS = (2, 26, 0)
"""The first version whose text has the reason for a missing rank."""
KILLED = 5


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RasJob]]:
    """Provide a job of each downloaded version, with eight ranks on four fictional nodes."""
    found: dict[str, RasJob] = {}
    try:
        for number, version in enumerate(VERSIONS):
            if why_no_ras(version) is None:
                directory = tmp_path_factory.mktemp("job")
                found[version] = RasJob(
                    directory,
                    RANKS,
                    free_port(),
                    ranks_per_node=2,
                    base=100 + number,
                    job_id=job_id(version),
                    version=version,
                )
        yield found
    finally:
        for job in found.values():
            job.close()


@pytest.fixture(scope="module")
def agent(jobs: dict[str, RasJob], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Provide an agent that queries all of them."""
    addresses = [f"127.0.0.1:{job.port}" for job in jobs.values()]
    exporters = {"ras": {"addresses": addresses, "oldest_version": "2.24.0"}}
    with Agent(tmp_path_factory.mktemp("agent"), {"exporters": exporters}) as agent:
        yield agent


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, jobs: dict[str, RasJob]) -> str:
    """Provide one version; the test skips if it was not downloaded."""
    version = str(request.param)
    if version not in jobs:
        pytest.skip(why_no_ras(version) or "")
    return version


def job_id(version: str) -> str:
    """Return the job of a version."""
    return "48" + version.replace(".", "")


def number_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparisons."""
    return tuple(map(int, version.split(".")))


def states(agent: Agent, version: str) -> dict[str, float]:
    """Return the world's ranks by state in the last report."""
    samples = agent.samples("rankwatch_communicator_ranks", job_id=job_id(version))
    return {sample.labels["state"]: sample.value for sample in samples if sample.labels["comm"] == WORLD}


def missing(agent: Agent, version: str) -> list[tuple[str, ...]]:
    """Return the missing ranks in the last report."""
    samples = agent.samples("rankwatch_communicator_rank_missing", job_id=job_id(version), comm=WORLD)
    return sorted(tuple(sample.labels[name] for name in ("comm_rank", "host", "reason")) for sample in samples)


def test_a_report_is_read(agent: Agent, jobs: dict[str, RasJob], version: str) -> None:
    """The agent reads a healthy job as complete; only JSON reports name communicators."""
    agent.wait_for("rankwatch_library_info", 1, job_id=job_id(version), version=version)
    if number_of(version) < JSON:
        endpoint = f"127.0.0.1:{jobs[version].port}"
        agent.wait_for("rankwatch_ras_up", 1, seconds=YOUNG_SECONDS + FIRST_REPORT_SECONDS, endpoint=endpoint)
        assert missing(agent, version) == []
        return
    young = YOUNG_SECONDS if number_of(version) < SOUND else 0.0
    wait_until(lambda: states(agent, version).get("responding") == RANKS, young + FIRST_REPORT_SECONDS, "a report")
    assert states(agent, version)["missing"] == 0


def test_a_missing_rank_is_named(agent: Agent, jobs: dict[str, RasJob], version: str) -> None:
    """At the next poll a killed rank is missing with its node; the text of NCCL 2.24 has no missing ranks."""
    jobs[version].signal(KILLED, signal.SIGKILL)
    young = YOUNG_SECONDS if number_of(version) < SOUND else 0.0
    wait_until(lambda: missing(agent, version), young + POLL_SECONDS + SLOW_SECONDS, "the missing rank")
    known = number_of(version) >= KNOWN_REASONS
    host, reason = (jobs[version].hosts[KILLED], "unresponsive") if known else ("", "unknown")
    assert missing(agent, version) == [(str(KILLED), host, reason)]
    assert states(agent, version)["missing"] == 1
    errors = {sample.labels["stage"]: sample.value for sample in agent.samples("rankwatch_ras_query_errors_total")}
    in_time = {stage: count for stage, count in errors.items() if count and stage != "deadline"}
    assert in_time == {}, [line for line in agent.log().splitlines() if "stage" in line]
