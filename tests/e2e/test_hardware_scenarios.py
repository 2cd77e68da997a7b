"""What alerts fire when hardware fails under ranks, from the agent's own ledger through the shipped rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_jobs import Job
from fleets import ENDED_WELL, REFUSED_SECONDS, TERMINATED, TIMEOUT_SECONDS, as_test, failed
from rules import judge_rules, promtools, why_no_promtool

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
SEEDS = range(4 if FULL else 1)
DURATION_SECONDS = 520

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(240),
]

Scenario = Callable[[Job], dict[str, str]]


def fails(job: Job) -> dict[str, str]:
    """Memory of a node breaks under a job, which goes on; then its agent is started anew."""
    job.at(100, job.nodes[0].break_down)
    job.agent(200, job.nodes[0], up=False, answer=REFUSED_SECONDS)
    job.at(219, job.nodes[0].restart_agent)
    job.agent(220, job.nodes[0], up=True)
    return {"RankUnhealthy": "page"}


def fails_and_job_dies(job: Job) -> dict[str, str]:
    """Memory of a node has just broken when a program leaves with status 1, and the launcher ends the others."""
    job.at(70, job.nodes[0].break_down)
    job.end(78, 1, failed(1))
    job.end_all(78.2, 2, TERMINATED, but=(1,))
    return {"RankDead": "page", "HardwareFailed": "ticket"}


def fails_after_the_job(job: Job) -> dict[str, str]:
    """A job fails by its program; two minutes later memory of its node breaks."""
    job.end(70, 1, failed(1))
    job.end_all(70.2, 2, TERMINATED, but=(1,))
    job.at(190, job.nodes[0].break_down)
    return {"RankDead": "info", "HardwareFailed": "ticket"}


def failed_before(job: Job) -> dict[str, str]:
    """Memory of a node was broken before the job began, which runs in spite of it until its program fails."""
    job.at(-15, job.nodes[0].break_down)
    job.end(330, 1, failed(1))
    job.end_all(330.2, 2, TERMINATED, but=(1,))
    return {"RankDead": "info", "HardwareFailed": "ticket"}


def fails_as_the_job_ends(job: Job) -> dict[str, str]:
    """Memory of a node breaks while the job's ranks leave in order."""
    job.end_all(100, 8, ENDED_WELL)
    job.at(104, job.nodes[0].break_down)
    return {"HardwareFailed": "ticket"}


def fails_and_node_is_lost(job: Job) -> dict[str, str]:
    """Memory of a node breaks, and ten seconds later the node is gone; the others hang."""
    job.at(100, job.nodes[0].break_down)
    job.lose(110, job.nodes[0], TIMEOUT_SECONDS)
    return {"NodeLost": "page"}


LARGE: list[Scenario] = [fails, fails_as_the_job_ends, fails_and_node_is_lost]
SMALL_AND_YOUNG: list[Scenario] = [fails, fails_and_job_dies, fails_after_the_job, failed_before]
CASES = [(16, 900.0, each) for each in LARGE] + [(4, 60.0, each) for each in SMALL_AND_YOUNG]


@pytest.mark.parametrize(("world", "age_seconds", "scenario"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_alerts(tmp_path: Path, world: int, age_seconds: float, scenario: Scenario) -> None:
    """Exactly these alerts fire, whenever scrapes come."""
    tests = []
    for seed in SEEDS:
        job = Job(seed, world, age_seconds)
        expected = scenario(job)
        name = f"{scenario.__name__}, seed {seed}: {scenario.__doc__}"
        tests.append(as_test(name, job.run(DURATION_SECONDS), expected | {"Watchdog": "info"}, DURATION_SECONDS))
    assert judge_rules(tmp_path, tests, promtools() if FULL else promtools()[:1]) == []
