"""What alerts fire when jobs end, fail and lose nodes, from the agent's own tables through the shipped rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_jobs import Job
from fleets import (
    ABORTED,
    ENDED_WELL,
    KILLED,
    OOM_KILLED,
    REFUSED_SECONDS,
    TERMINATED,
    TIMEOUT_SECONDS,
    UNKNOWN,
    as_test,
    crashed,
    failed,
)
from rules import judge_rules, promtools, why_no_promtool

FULL = os.environ.get("RANKWATCH_TEST_FULL") == "1"
SEEDS = range(2 if FULL else 1)
DURATION_SECONDS = 520 if FULL else 400
"""Most events come in the 100th second, the last in the 340th."""

pytestmark = [
    pytest.mark.skipif(why_no_promtool() is not None, reason=why_no_promtool() or ""),
    pytest.mark.timeout(240),
]


Scenario = Callable[[Job], dict[str, str]]
QUIET: dict[str, str] = {}


def finish(job: Job) -> dict[str, str]:
    """All ranks leave with status 0."""
    job.end_all(100, 8, ENDED_WELL)
    return QUIET


def finish_with_statuses_unknown(job: Job) -> dict[str, str]:
    """All ranks leave, nobody can tell how."""
    job.end_all(100, 20, UNKNOWN)
    return QUIET


def finish_while_one_saves(job: Job) -> dict[str, str]:
    """Rank 0 saves for four minutes after the others have left."""
    job.end_all(100, 3, ENDED_WELL, but=(0,))
    job.end(340, 0, ENDED_WELL)
    return QUIET


def finish_and_abort(job: Job) -> dict[str, str]:
    """Rank 0 leaves in order, and the others abort when its store is gone."""
    job.end(100, 0, ENDED_WELL, finalized=True)
    job.end_all(101, 3, ABORTED, but=(0,))
    return QUIET


def cancel(job: Job) -> dict[str, str]:
    """SIGTERM to all; some take their time and are killed."""
    job.end_all(100, 2, TERMINATED, but=(3, 9))
    job.end(130, 3, KILLED)
    job.end(131, 9, KILLED)
    return QUIET


def cancel_and_abort(job: Job) -> dict[str, str]:
    """SIGTERM reaches one node first; the ranks of the other lose their peers and abort."""
    for rank in range(8):
        job.end(100 + rank * 0.01, rank, TERMINATED)
        job.end(100.3 + rank * 0.1, 8 + rank, ABORTED)
    return QUIET


def preempt(job: Job) -> dict[str, str]:
    """Half of the ranks save at SIGTERM and are killed after a minute."""
    for rank in range(8):
        job.end(100 + rank * 0.1, rank * 2, TERMINATED)
        job.end(160 + rank * 0.1, rank * 2 + 1, KILLED)
    return QUIET


def suspend(job: Job) -> dict[str, str]:
    """All ranks are stopped by the scheduler."""
    for rank in range(job.world):
        job.stop(100, rank)
    return QUIET


def agent_restart(job: Job) -> dict[str, str]:
    """An agent is away for 20 seconds and goes on from its checkpoint."""
    job.agent(100, job.nodes[0], up=False, answer=REFUSED_SECONDS)
    job.at(119, job.nodes[0].restart_agent)
    job.agent(120, job.nodes[0], up=True)
    return QUIET


def agent_gone(job: Job) -> dict[str, str]:
    """An agent is gone for good, its machine and ranks are not."""
    job.agent(100, job.nodes[0], up=False, answer=REFUSED_SECONDS)
    return {"RankwatchDown": "ticket"}


def agent_hangs(job: Job) -> dict[str, str]:
    """An agent accepts and does not answer; the job goes on."""
    job.agent(100, job.nodes[0], up=False, answer=TIMEOUT_SECONDS)
    return {"RankwatchDown": "ticket"}


def agent_no_target(job: Job) -> dict[str, str]:
    """A node is taken out of the targets; the job goes on."""
    job.agent(100, job.nodes[0], up=False, answer=None)
    return QUIET


def out_of_memory(job: Job) -> dict[str, str]:
    """The OOM killer takes one rank, the others hang."""
    job.end(100, 3, OOM_KILLED)
    return {"RankDead": "page"}


def crash_and_teardown(job: Job) -> dict[str, str]:
    """One rank crashes, and the launchers end the others."""
    job.end(100, 3, crashed())
    job.end_all(100.5, 5, TERMINATED, but=(3,))
    return {"JobFailed": "page"}


def crash_and_victims(job: Job) -> dict[str, str]:
    """One rank crashes, and the ranks of the other node abort."""
    job.end(100, 3, crashed())
    job.end_all(100.5, 3, ABORTED, but=(3,))
    return {"JobFailed": "page"}


def out_of_memory_last(job: Job) -> dict[str, str]:
    """The OOM killer's rank is seen to leave last of all."""
    job.end_all(100, 3, TERMINATED, but=(8,))
    job.end(103, 8, OOM_KILLED)
    return {"JobFailed": "page"}


def killed(job: Job) -> dict[str, str]:
    """One rank is killed, the others hang."""
    job.end(100, 3, KILLED)
    return {"RankDead": "page"}


def left(job: Job) -> dict[str, str]:
    """One rank leaves, nobody can tell how, the others hang."""
    job.end(100, 3, UNKNOWN)
    return {"RankDead": "page"}


def left_well(job: Job) -> dict[str, str]:
    """One rank leaves with status 0, and the others go on."""
    job.end(100, 3, ENDED_WELL)
    return {"RankDead": "info"}


def stopped(job: Job) -> dict[str, str]:
    """One rank is stopped, the others wait for it."""
    job.stop(100, 3)
    return {"RankUnresponsive": "page"}


def restart_elsewhere(job: Job) -> dict[str, str]:
    """A rank dies and is started on another node within seconds; later the job ends."""
    job.end(100, 3, crashed())
    job.start(102, 3, job.nodes[2])
    job.end_all(200, 5, ENDED_WELL)
    return QUIET


def node_lost(job: Job) -> dict[str, str]:
    """A node loses power; the others hang."""
    job.lose(100, job.nodes[1], TIMEOUT_SECONDS)
    return {"NodeLost": "page"}


def node_lost_and_abort(job: Job) -> dict[str, str]:
    """A node loses power; half a minute later the others abort."""
    job.lose(100, job.nodes[1], TIMEOUT_SECONDS)
    for rank in range(8):
        job.end(130 + rank, rank, ABORTED)
    return {"NodeLost": "page"}


def node_lost_and_no_target(job: Job) -> dict[str, str]:
    """A node is gone, and from the targets too; the others hang."""
    job.lose(100, job.nodes[1], None)
    return {"NodeLost": "page"}


def node_reboot(job: Job) -> dict[str, str]:
    """A node is started anew under the job."""
    job.lose(100, job.nodes[1], TIMEOUT_SECONDS)
    job.at(200, job.nodes[1].reboot)
    job.agent(200, job.nodes[1], up=False, answer=REFUSED_SECONDS)
    job.agent(210, job.nodes[1], up=True)
    return {"NodeLost": "page"}


def node_lost_abort_and_reboot(job: Job) -> dict[str, str]:
    """A node loses power, half a minute later the others abort, and two minutes after that the node is back."""
    node_lost_and_abort(job)
    job.at(250, job.nodes[1].reboot)
    job.agent(255, job.nodes[1], up=True)
    return {"NodeLost": "page"}


def nodes_taken_and_requeued(job: Job) -> dict[str, str]:
    """Both nodes are taken away, one stays a target; the job starts on a third a minute later, rank by rank."""
    job.lose(100, job.nodes[0], None)
    job.lose(101, job.nodes[1], TIMEOUT_SECONDS)
    job.at(150, job.running.clear)
    for rank in range(job.world):
        job.start(160 + rank * 4, rank, job.nodes[2])
    return {"RankwatchDown": "ticket"}


def nodes_end_with_the_job(job: Job) -> dict[str, str]:
    """The job ends and its nodes are taken away a second later."""
    job.end_all(100, 1, ENDED_WELL)
    job.agent(102, job.nodes[0], up=False, answer=TIMEOUT_SECONDS)
    job.agent(102.5, job.nodes[1], up=False, answer=None)
    return {"RankwatchDown": "ticket"}


LARGE: list[Scenario] = [
    finish,
    finish_with_statuses_unknown,
    finish_while_one_saves,
    finish_and_abort,
    cancel,
    cancel_and_abort,
    preempt,
    suspend,
    agent_restart,
    agent_gone,
    agent_hangs,
    agent_no_target,
    out_of_memory,
    crash_and_teardown,
    crash_and_victims,
    out_of_memory_last,
    killed,
    left,
    left_well,
    stopped,
    restart_elsewhere,
    node_lost,
    node_lost_and_abort,
    node_lost_and_no_target,
    node_reboot,
    node_lost_abort_and_reboot,
    nodes_taken_and_requeued,
    nodes_end_with_the_job,
]


def failed_young(job: Job) -> dict[str, str]:
    """A program leaves with status 1."""
    job.end(100, 1, failed(1))
    job.end_all(100.2, 2, TERMINATED, but=(1,))
    return {"JobFailed": "info"}


def crashed_young(job: Job) -> dict[str, str]:
    """A rank crashes, the others hang."""
    job.end(100, 1, crashed())
    return {"RankDead": "info"}


SMALL_AND_YOUNG: list[Scenario] = [finish, finish_and_abort, failed_young, crashed_young, out_of_memory]
CASES = [(16, 900.0, ras, each) for ras in (False, True) for each in LARGE]
CASES += [(4, 60.0, False, each) for each in SMALL_AND_YOUNG]


@pytest.mark.parametrize(
    ("world", "age_seconds", "ras", "scenario"), CASES, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_alerts(tmp_path: Path, world: int, age_seconds: float, ras: bool, scenario: Scenario) -> None:
    """Whenever scrapes come, exactly these alerts fire in the minutes after the event, whether RAS is asked or not."""
    tests = []
    for seed in SEEDS:
        job = Job(seed, world, age_seconds, ras=ras)
        expected = scenario(job)
        name = f"{scenario.__name__}, seed {seed}: {scenario.__doc__}"
        tests.append(as_test(name, job.run(DURATION_SECONDS), expected | {"Watchdog": "info"}, DURATION_SECONDS))
    assert judge_rules(tmp_path, tests, promtools() if FULL else promtools()[:1]) == []
