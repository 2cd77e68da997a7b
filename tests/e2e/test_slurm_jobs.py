"""The ends of jobs under a real Slurm, by the scripts of deploy/slurm: the agent's series and verdicts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Series
from full import full
from machines import alive
from nodes import wait_until
from slurm import END_SECONDS, HIGH, LOW, START_SECONDS, Site, idle_rank, why_no_slurm

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or ""),
    pytest.mark.timeout(240),
]

WORD_SECONDS = 20.0
"""Time from a job's end to its record: the epilog's start, its wait, and a busy machine."""
SCRIPT_SECONDS = 2.5
"""A script's limit on a busy machine: shorter than the wait of its background part. tests/unit has a tighter limit."""


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Provide a running Slurm with the scripts."""
    site = Site(tmp_path_factory.mktemp("slurm"))
    with site.slurm:
        yield site


@pytest.fixture
def site(running_site: Site) -> Iterator[Site]:
    """Provide Slurm without jobs; at the end all its scripts must have exited with 0, in time."""
    yield running_site
    running_site.slurm.cancel_all()
    took = running_site.took()
    assert {name for name, _, _ in took} >= {"Prolog", "Epilog"}
    assert [each for each in took if each[1] != 0 or each[2] > SCRIPT_SECONDS] == []


@pytest.fixture
def agent(site: Site, tmp_path: Path) -> Iterator[Agent]:
    """Provide an agent on Slurm's node that reads the files of jobs."""
    sections: dict[str, Any] = {
        "inspector": {"paths": [str(tmp_path / "nothing")]},
        "jobs": {"directory": str(site.jobs)},
    }
    with Agent(tmp_path, {"exporters": sections}, node=site.slurm.node) as agent:
        (site.directory / "address").write_text(f"127.0.0.1:{agent.port}\n")
        yield agent


def begin(site: Site, agent: Agent, *options: str, end: Path | None = None, status: int | None = None) -> None:
    """Submit a job of two ranks and wait until they run."""
    command = shlex.join(idle_rank(end=end, status=status))
    agent.job_id = site.slurm.submit(f"srun --kill-on-bad-exit {command}", "--ntasks=2", *options)
    agent.wait_for_states(alive(2), START_SECONDS)


def shown_ends(agent: Agent) -> list[str]:
    """Return the job's states in job_end_timestamp_seconds."""
    return [sample.labels["state"] for sample in of_job(agent, "rankwatch_job_end_timestamp_seconds")]


def of_job(agent: Agent, name: str) -> list[Series]:
    """Return the series of the job, without those of earlier jobs, whose files still exist."""
    return agent.samples(name, job_id=agent.job_id or "")


def starts(agent: Agent) -> dict[str, float]:
    """Return the start time of each rank."""
    return {s.labels["rank"]: s.value for s in agent.samples("rankwatch_rank_start_timestamp_seconds")}


def wait_for_end(agent: Agent, state: str, seconds: float = WORD_SECONDS) -> None:
    """Wait until the agent exports the job's end with this state."""
    wait_until(lambda: shown_ends(agent) == [state], seconds, f"the end {state}")


def test_a_cancelled_job_is_finished_whatever_its_ranks_leave_with(site: Site, agent: Agent, tmp_path: Path) -> None:
    """Ranks that exit with status 1 are finished once Slurm has reported the cancel."""
    begin(site, agent, end=tmp_path / "never", status=1)
    [allocated] = of_job(agent, "rankwatch_job_allocation_info")
    assert (allocated.labels["user"], allocated.labels["partition"], allocated.labels["nodes"]) == ("root", LOW, "1")
    assert agent.job_id is not None
    site.slurm.cancel(agent.job_id)
    wait_for_end(agent, "CANCELLED", END_SECONDS + WORD_SECONDS)
    agent.wait_for_states({"0": "finished", "1": "finished"})
    wait_until(lambda: site.word(agent.job_id or "") == "CANCELLED", WORD_SECONDS, "jobcomp's word")


@full
def test_a_preempted_job_is_requeued(site: Site, agent: Agent, tmp_path: Path) -> None:
    """A preempted job has no dead rank; jobcomp has the reason, and the new run has its own file and start times."""
    begin(site, agent, f"--partition={LOW}", "--requeue")
    before = starts(agent)
    other = site.slurm.submit("srun sleep infinity", "--ntasks=1", f"--partition={HIGH}", "--exclusive")
    wait_for_end(agent, "REQUEUED", START_SECONDS + WORD_SECONDS)
    agent.wait_for_states({"0": "finished", "1": "finished"})
    wait_until(lambda: site.word(agent.job_id or "") == "PREEMPTED", WORD_SECONDS, "jobcomp's word")
    site.slurm.cancel(other)
    agent.wait_for_states(alive(2), 2 * START_SECONDS)
    wait_until(lambda: shown_ends(agent) == [], WORD_SECONDS, "the new run's file")
    assert all(after > before[rank] for rank, after in starts(agent).items())
    assert [sample.labels["restarts"] for sample in agent.samples("rankwatch_job_info")] == ["1"]


@full
def test_tasks_of_an_array(site: Site, agent: Agent) -> None:
    """Each task of an array is a job with its own end."""
    array = site.slurm.submit(f"srun {shlex.join(idle_rank())}", "--ntasks=1", "--array=0-1")
    wait_until(lambda: len(agent.samples("rankwatch_job_allocation_info")) == 2, START_SECONDS, "both tasks")
    wait_until(lambda: len(agent.samples("rankwatch_rank_up")) == 2, START_SECONDS, "both ranks")
    tasks = {sample.labels["job_id"] for sample in agent.samples("rankwatch_job_allocation_info")}
    site.slurm.cancel(array)

    def ends() -> list[str]:
        ended = agent.samples("rankwatch_job_end_timestamp_seconds")
        return [series.labels["state"] for series in ended if series.labels["job_id"] in tasks]

    wait_until(lambda: ends() == ["CANCELLED"] * 2, END_SECONDS + WORD_SECONDS, "both ends")


@full
def test_a_broken_directory_harms_no_job(site: Site, agent: Agent, tmp_path: Path) -> None:
    """If the scripts cannot write their files, a job runs and ends as usual, and the node is idle afterwards."""
    for path in [*site.jobs.glob("*"), site.jobs]:
        path.rmdir() if path.is_dir() else path.unlink()
    site.jobs.write_text("")
    try:
        begin(site, agent, end=tmp_path / "end")
        (tmp_path / "end").touch()
        agent.wait_for_states({"0": "finished", "1": "finished"}, END_SECONDS)
        wait_until(lambda: "idle" in site.slurm.ask("sinfo", "--noheader", "--format=%T"), END_SECONDS, "an idle node")
    finally:
        site.jobs.unlink()
