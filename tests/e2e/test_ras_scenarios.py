"""What alerts fire when RAS is a witness: of ranks without an agent, of hangs, and against those who look lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_jobs import Job
from fleets import ENDED_WELL, KILLED, REFUSED_SECONDS, TERMINATED, TIMEOUT_SECONDS, as_test
from rules import judge_rules, promtools, why_no_promtool

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
SEEDS = range(4 if FULL else 1)
DURATION_SECONDS = 560
"""Most events come in the 100th second; a hang alerts more than five minutes later."""

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(240),
]

Scenario = Callable[[Job], dict[str, str]]
QUIET: dict[str, str] = {}


def stands_still(job: Job) -> dict[str, str]:
    """Return the page of a job that makes no progress, by its records if it has any."""
    return {"JobStalled" if job.records else "CommunicatorStalled": "page"}


def killed_without_an_agent(job: Job) -> dict[str, str]:
    """A rank is killed on a node without an agent."""
    job.without_agent(job.nodes[1])
    job.end(100, 11, KILLED)
    return stands_still(job)


def node_lost_without_an_agent(job: Job) -> dict[str, str]:
    """A node without an agent loses power."""
    job.without_agent(job.nodes[1])
    job.lose(100, job.nodes[1], None)
    return stands_still(job)


def killed_where_an_agent_is(job: Job) -> dict[str, str]:
    """A rank is killed on the other node; its own agent tells."""
    job.end(100, 11, KILLED)
    return {"RankDead": "page"}


def left_long_ago(job: Job) -> dict[str, str]:
    """A rank left in order, the others still miss it when its record of an ended rank is gone."""
    job.end(100, 11, ENDED_WELL, finalized=True)
    return QUIET


def finish_without_an_agent(job: Job) -> dict[str, str]:
    """All ranks leave with status 0, rank 0 last; the other node has no agent."""
    job.without_agent(job.nodes[1])
    job.end_all(100, 5, ENDED_WELL, but=(0,))
    job.end(340, 0, ENDED_WELL)
    return QUIET


def cancel_without_an_agent(job: Job) -> dict[str, str]:
    """SIGTERM ends the ranks without an agent; those of the other node, all that is seen, are killed later."""
    job.without_agent(job.nodes[1])
    for rank in range(8):
        job.end(100 + rank * 0.1, 8 + rank, TERMINATED)
        job.end(130 + rank * 0.1, rank, KILLED)
    return QUIET


def hang(job: Job) -> dict[str, str]:
    """A rank does not reach the next collective, and is no less alive."""
    job.hang(100, 11)
    return stands_still(job)


def hang_without_an_agent(job: Job) -> dict[str, str]:
    """A rank on a node without an agent does not reach the next collective."""
    job.without_agent(job.nodes[1])
    job.hang(100, 11)
    return stands_still(job)


def pause(job: Job) -> dict[str, str]:
    """All ranks save for eight minutes after the same collective."""
    job.pause(100, 580)
    return {"JobStalled": "ticket"} if job.records else QUIET


def stop_and_resume(job: Job) -> dict[str, str]:
    """A rank is stopped for two minutes and is dead to the others from then on, though the job goes on."""
    job.stop(100, 11, resume_seconds=220)
    return {"RankUnresponsive": "page"}


def stop_and_resume_beside_the_reporter(job: Job) -> dict[str, str]:
    """A rank of the asking node is stopped for two minutes; from then on it says that all others are dead."""
    job.stop(100, 3, resume_seconds=220)
    return {"RankUnresponsive": "page"}


def stop_and_resume_without_an_agent(job: Job) -> dict[str, str]:
    """As before, on a node without an agent."""
    job.without_agent(job.nodes[1])
    job.stop(100, 11, resume_seconds=220)
    return QUIET


def agent_hangs(job: Job) -> dict[str, str]:
    """An agent accepts and does not answer, without records to show that the job goes on."""
    job.agent(100, job.nodes[1], up=False, answer=TIMEOUT_SECONDS)
    return {"NodeLost": "page"}


def agent_gone(job: Job) -> dict[str, str]:
    """An agent is gone, without records to show that the job goes on."""
    job.agent(100, job.nodes[1], up=False, answer=REFUSED_SECONDS)
    return {"NodeLost": "page"}


def node_lost_and_no_target(job: Job) -> dict[str, str]:
    """A node is gone, and from the targets too, without records to show that the job has stopped."""
    job.lose(100, job.nodes[1], None)
    return {"NodeLost": "page"}


def reporter_lost(job: Job) -> dict[str, str]:
    """The node of rank 0 loses power and leaves the targets; the other node asks in its place."""
    job.lose(100, job.nodes[0], None)
    return {"NodeLost": "page"}


SCENARIOS: list[tuple[bool, Scenario]] = [
    *(
        (True, each)
        for each in (
            killed_without_an_agent,
            node_lost_without_an_agent,
            killed_where_an_agent_is,
            left_long_ago,
            finish_without_an_agent,
            cancel_without_an_agent,
            hang,
            hang_without_an_agent,
            pause,
            stop_and_resume,
            stop_and_resume_beside_the_reporter,
            stop_and_resume_without_an_agent,
        )
    ),
    *(
        (False, each)
        for each in (
            killed_without_an_agent,
            hang,
            pause,
            stop_and_resume_without_an_agent,
            agent_hangs,
            agent_gone,
            node_lost_and_no_target,
            reporter_lost,
            finish_without_an_agent,
            cancel_without_an_agent,
        )
    ),
]


@pytest.mark.parametrize(("records", "scenario"), SCENARIOS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_alerts(tmp_path: Path, records: bool, scenario: Scenario) -> None:
    """Exactly these alerts fire, with Inspector's records and without, whenever scrapes and queries come."""
    tests = []
    for seed in SEEDS:
        job = Job(seed, ras=True, records=records)
        expected = scenario(job)
        name = f"{scenario.__name__}, seed {seed}: {scenario.__doc__}"
        tests.append(as_test(name, job.run(DURATION_SECONDS), expected | {"Watchdog": "info"}, DURATION_SECONDS))
    assert judge_rules(tmp_path, tests, promtools() if FULL else promtools()[:1]) == []
