"""Large RAS reports, sound and hostile, end to end: they cost a helper process, within its bound, not the agent."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agents import Agent
from lone_rank import LARGE_COMMUNICATORS, LARGE_RANKS
from nodes import wait_until
from ports import free_port

MIB = 1024 * 1024
KINDS = {"report": 0, "padding": 41 * MIB, "nesting": 30 * MIB, "hunger": 30 * MIB}
"""What each of four jobs' RAS sends, and how much of it."""
ALL_ASKED_SECONDS = 45.0
AGENT_GROWTH_BYTES = 8 * MIB
HELPER_BYTES = (64 + 24) * MIB
"""Its bound, and the interpreter."""


class Job:
    """One rank, whose RAS sends one kind of report at a port of its own."""

    def __init__(self, directory: Path, job_id: str, kind: str, length: int) -> None:
        library = directory / "libnccl.so.2.32.3"
        library.write_bytes(bytes(4096))
        self.port = free_port()
        argv = [sys.executable, Path(__file__).with_name("lone_rank.py"), library, str(self.port), kind, str(length)]
        env = {**os.environ, "SLURM_JOB_ID": job_id, "RANK": "0", "WORLD_SIZE": "1"}
        env |= {"NCCL_RAS_ADDR": f"127.0.0.1:{self.port}", "NCCL_RAS_TIMEOUT_FACTOR": "1"}  # no file adds to it
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[dict[str, Job]]:
    """A job of each kind, called job-KIND."""
    with ExitStack() as stack:
        yield {kind: stack.enter_context(Job(tmp_path, f"job-{kind}", kind, size)) for kind, size in KINDS.items()}


def agent_of(jobs: list[Job], directory: Path) -> Agent:
    """An agent that asks these jobs."""
    have_helpers = ("flight_recorder", "inspector_prom", "nvml", "nvrx", "storage")
    others = {name: {"enabled": False} for name in have_helpers}
    ras = {"addresses": [f"127.0.0.1:{job.port}" for job in jobs]}
    return Agent(directory, {"exporters": {"ras": ras, **others}})


def peak_bytes(pid: int) -> int:
    """The most memory that a process had; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return 1024 * int(found[1]) if found else 0
    return 0


def helper_of(agent: Agent) -> int | None:
    """The pid of the agent's helper process, if there is one: the child of its main thread."""
    found = Path(f"/proc/{agent.pid()}/task/{agent.pid()}/children").read_text().split()
    assert len(found) <= 1
    return int(found[0]) if found else None


def calls(agent: Agent) -> dict[str, float]:
    """The helper's calls by result."""
    found = agent.samples("rankwatch_helper_calls_total", helper="ras")
    return {each.labels["result"]: each.value for each in found}


@pytest.mark.timeout(120)
def test_hostile_reports_cost_the_helper_alone(jobs: dict[str, Job], tmp_path: Path) -> None:
    """A report of 38 MiB is shown; too long, too deep and too hungry ones are counted; the agent does not grow."""
    with agent_of([*jobs.values()], tmp_path) as agent:
        before, helper_peak = peak_bytes(agent.pid()), 0

        def all_asked() -> bool:
            nonlocal helper_peak
            if (pid := helper_of(agent)) is not None:
                helper_peak = max(helper_peak, peak_bytes(pid))
            failed = sum(each.value for each in agent.samples("rankwatch_ras_query_errors_total"))
            return failed >= 3 and sum(calls(agent).values()) >= 3

        wait_until(all_asked, ALL_ASKED_SECONDS, "a query of each job")
        wait_until(lambda: agent.samples("rankwatch_communicator_ranks", job_id="job-report"), 10.0, "the report")
        found = agent.samples("rankwatch_communicator_ranks", job_id="job-report", state="responding")
        assert [each.value for each in found] == [LARGE_RANKS] * LARGE_COMMUNICATORS
        stages = {each.labels["stage"]: each.value for each in agent.samples("rankwatch_ras_query_errors_total")}
        assert {stage for stage, count in stages.items() if count} == {"size", "parse"}
        assert calls(agent)["failed"] >= 1
        assert "hung" not in calls(agent)
        lag = agent.value("rankwatch_event_loop_lag_seconds")
        print(f"helper {helper_peak >> 20} MiB, agent +{(peak_bytes(agent.pid()) - before) >> 10} KiB, lag {lag} s")  # noqa: T201
        assert 40 * MIB < helper_peak < HELPER_BYTES
        assert peak_bytes(agent.pid()) - before < AGENT_GROWTH_BYTES


@pytest.mark.timeout(120)
def test_a_stopped_helper_holds_up_no_stop_and_no_scrape(tmp_path: Path) -> None:
    """With its helper stopped by somebody, the agent serves, and leaves in order within its time; the helper too."""
    with Job(tmp_path, "job-report", "report", 0) as job, agent_of([job], tmp_path) as agent:
        # Between two calls: an answer under way is waited for, and the next one comes seconds later.
        wait_until(lambda: calls(agent).get("ok", 0) >= 1, ALL_ASKED_SECONDS, "the first report")
        helper = helper_of(agent)
        assert helper is not None
        os.kill(helper, signal.SIGSTOP)
        assert agent.get("/metrics").status == 200
        assert agent.stop() == 0
        assert not Path(f"/proc/{helper}").exists()
