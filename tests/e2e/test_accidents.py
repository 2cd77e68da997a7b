"""If Inspector's files are changed while a job runs, the agent loses no record, and counts none twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from agents import Agent
from full import full
from jobs import SimulatedJob
from machines import Machine, alive, records
from nodes import wait_until

from exporters.inspector.totals.inheritance import BIRTH_SECONDS

RANKS = 4
BUSY = ("--ranks", str(RANKS), "--tp", "2", "--records-per-second", "200", "--flush-at-end")
OPERATIONS = "rankwatch_collective_operations_total"
RECORDS = "rankwatch_inspector_records_total"
SAVE_SECONDS = 8.0
Accident = Callable[[SimulatedJob, Agent], None]


def written(job: SimulatedJob) -> Counter[str]:
    """Return the number of records that each rank wrote, from the ranks' own files."""
    counts: Counter[str] = Counter()
    for path in job.job_dir.glob("written-*.json"):
        summary = json.loads(path.read_text())
        counts[str(summary["rank"])] += sum(record["records"] for record in summary["records"])
    return counts


def shown(agent: Agent, job_id: str) -> Counter[str]:
    """Return the agent's count of operations of each rank."""
    counts: Counter[str] = Counter()
    for sample in agent.samples(OPERATIONS, job_id=job_id):
        counts[sample.labels["rank"]] += int(sample.value)
    return counts


def wait_for_checkpoint(agent: Agent) -> None:
    """Wait for a checkpoint that includes everything read up to now."""
    since = time.time() + SAVE_SECONDS
    wait_until(lambda: agent.saved_at() > since, 25.0, "a checkpoint")


def end(job: SimulatedJob) -> Counter[str]:
    """End the job in order; return the numbers of written records."""
    job.signal_launcher(signal.SIGUSR1)
    assert job.wait() == 0
    return written(job)


def wait_for_exactly(agent: Agent, job_id: str, expected: Counter[str]) -> None:
    """Wait until the agent's counts equal these, and check that they stay equal."""
    wait_until(
        lambda: shown(agent, job_id) == expected, BIRTH_SECONDS + 30.0, f"{expected}, it is {shown(agent, job_id)}"
    )
    time.sleep(1.0)
    assert shown(agent, job_id) == expected


def go_on(job: SimulatedJob, agent: Agent) -> None:
    """Wait until two hundred more records are counted."""
    before = agent.value(RECORDS, result="accepted") or 0.0
    wait_until(lambda: (agent.value(RECORDS, result="accepted") or 0.0) > before + 200, 15.0, "more records")


def rename(job: SimulatedJob, agent: Agent) -> None:
    """Rename the files, as logrotate does by default, to names that still match Inspector's."""
    for path in list(job.dump_dir.iterdir()):
        path.rename(path.with_suffix(".1.log"))


def remove_directory(job: SimulatedJob, agent: Agent) -> None:
    """Remove the directory with its files, and make it again."""
    shutil.rmtree(job.dump_dir)
    job.dump_dir.mkdir()


def copytruncate(job: SimulatedJob, agent: Agent) -> None:
    """Truncate the files after they are read, as logrotate's copytruncate does; the writers write on after a hole."""
    pids = [job.pid(rank) for rank in range(RANKS)]
    for pid in pids:
        job.kill(pid, signal.SIGSTOP)
    whole = sum(len(records(path)) for path in job.dump_dir.iterdir())
    agent.wait_for(RECORDS, whole, result="accepted")
    for path in job.dump_dir.iterdir():
        os.truncate(path, 0)
    for pid in pids:
        job.kill(pid, signal.SIGCONT)


def kill_agent(job: SimulatedJob, agent: Agent) -> None:
    """Kill the agent long after its last checkpoint, and start it again."""
    wait_for_checkpoint(agent)
    go_on(job, agent)
    agent.kill9()
    agent.start()


def both(*accidents: Accident) -> Accident:
    """Return one accident that consists of these accidents."""

    def happen(job: SimulatedJob, agent: Agent) -> None:
        for accident in accidents:
            accident(job, agent)

    return happen


ACCIDENTS = {
    "rename_then_kill": both(rename, kill_agent),
    "kill_then_remove_directory": both(kill_agent, go_on, remove_directory),
    "copytruncate_then_kill": both(copytruncate, kill_agent),
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "name", ["rename_then_kill", *(pytest.param(name, marks=full) for name in list(ACCIDENTS)[1:])]
)
def test_a_live_job_loses_and_doubles_nothing(tmp_path: Path, name: str) -> None:
    """After any accident, each rank's counters equal the operations that it wrote."""
    machine = Machine(tmp_path)
    with machine.agent(dump_dir=tmp_path / "job" / "inspector") as agent, machine.job(*BUSY) as job:
        job.wait_for("ready")
        agent.wait_for_states(alive(RANKS))
        go_on(job, agent)
        ACCIDENTS[name](job, agent)
        go_on(job, agent)
        wait_for_exactly(agent, machine.job_id, end(job))


def is_hollow(directory: Path, least_bytes: int) -> bool:
    """Return whether the holes of the directory's files are larger than ``least_bytes`` in total."""
    found = [path.stat() for path in directory.iterdir()]
    return sum(one.st_size - one.st_blocks * 512 for one in found) > least_bytes


@full
@pytest.mark.timeout(120)
def test_reclaim_is_nothing_to_a_live_writer(tmp_path: Path) -> None:
    """The agent frees disk space before its saved offset while a job runs; no record is lost, even after a kill."""
    machine = Machine(tmp_path)
    dump_dir = tmp_path / "job" / "inspector"
    section = {"paths": [str(dump_dir)], "reclaim": {"enabled": True}}
    fast = ("--ranks", "2", "--tp", "2", "--records-per-second", "1500", "--flush-at-end")
    with (
        Agent(tmp_path, {"exporters": {"inspector": section}}, job_id=machine.job_id) as agent,
        machine.job(*fast) as job,
    ):
        job.wait_for("ready")
        for bytes_freed in (2_000_000, 4_000_000):
            wait_until(partial(is_hollow, dump_dir, bytes_freed), 40.0, "holes")
            agent.kill9()
            agent.start()
        wait_for_exactly(agent, machine.job_id, end(job))
        for path in dump_dir.iterdir():
            status = path.stat()
            assert status.st_blocks * 512 < status.st_size / 2
            assert path.read_bytes().startswith(b'{"header"')
        assert not agent.samples("rankwatch_inspector_reclaim_errors_total")
        assert agent.value(RECORDS, result="malformed") == 0
