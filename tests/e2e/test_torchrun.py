"""Real torchrun (PyTorch 2.13, gloo): how its ranks end, what the agent says of each, and that clean ends are quiet."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from agents import Agent, select
from full import full
from jobs import ROOT
from nodes import wait_until
from ports import free_port

from agent.page.describe import how_ended
from agent.page.document import read

TORCHRUN = ROOT / ".cache/torch/bin/torchrun"
pytestmark = [
    full,
    pytest.mark.skipif(not TORCHRUN.exists(), reason="no PyTorch in .cache: scripts/test --full installs it"),
    pytest.mark.timeout(400),
]
STARTED_SECONDS = 120.0
ENDED_SECONDS = 60.0


class Ends(NamedTuple):
    """How rank 1 ends, what the page says of it, and the class and cause of its exit; empty: no exit leads."""

    how: str
    words: str
    state: str
    kind: str = ""
    cause: str = ""
    options: tuple[str, ...] = ()


ENDS = (
    Ends("end", "exited with status 0", "finished", "ok"),
    Ends("key", "exited with status 1, raised KeyError", "dead", "fail", "program_error"),
    Ends("oom", "exited with status 1, raised torch.OutOfMemoryError", "dead", "fail", "cuda_oom"),
    Ends("own", "exited with status 1, raised exception", "dead", "fail", "program_error"),
    Ends("early", "exited with status 0", "exited", "left"),
    Ends("SIGKILL", "killed (SIGKILL)", "dead", "torn"),
    Ends("SIGABRT", "crashed (SIGABRT)", "dead", "fail"),
    Ends("SIGSEGV", "crashed (SIGSEGV)", "dead", "crash"),
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent that watches ranks without NCCL, and one job for each end, whose ranks all run."""
    directory = tmp_path_factory.mktemp("torchrun")
    go, jobs = directory / "go", []
    with Agent(directory, {"exporters": {"process": {"without_nccl": True}}}) as agent:
        for end in ENDS:
            program = [str(Path(__file__).parent / "torchrun/train.py"), str(go), end.how]
            rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
            command = [str(TORCHRUN), "--nproc-per-node", "2", *rendezvous, "--rdzv-id", job_of(end), *program]
            jobs.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=directory))
        wait_until(lambda: agent.value("rankwatch_processes_without_nccl") == 0.0 and up(agent), STARTED_SECONDS)
        go.touch()
        yield agent
        for job in jobs:
            job.send_signal(signal.SIGTERM)
            job.wait(40.0)


def job_of(end: Ends) -> str:
    """Return the job's id."""
    return f"torchrun-{end.how.lower()}"


def up(agent: Agent) -> bool:
    """Return whether all ranks run."""
    running = {(one.labels["job_id"], one.labels["rank"]) for one in agent.samples("rankwatch_rank_up") if one.value}
    return {(job_of(end), rank) for end in ENDS for rank in "01"} <= running


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.how)
def test_an_end(agent: Agent, end: Ends) -> None:
    """The page words the end of rank 1, its exit has the class and the cause, and nothing shows the user's words."""

    def shown() -> tuple[str, str] | None:
        ranks = read(agent.get("/api/v1/ranks").body.encode()).ranks
        rank = next((rank for rank in ranks if (rank.job_id, rank.rank) == (job_of(end), "1")), None)
        return None if rank is None or rank.ended is None else (how_ended(rank.ended), rank.state)

    def exits() -> set[tuple[str, str]]:
        series = select(agent.page(), "rankwatch_exit_age_seconds", job_id=job_of(end), rank="1")
        return {(one.labels["class"], one.labels["cause"]) for one in series}

    wait_until(lambda: shown() == (end.words, end.state), ENDED_SECONDS, f"{end}")
    wait_until(exits, ENDED_SECONDS, "an exit")
    assert exits() == {(end.kind, end.cause)}
    assert "secret" not in agent.page()
    assert "TheUsersOwnWord" not in agent.page()
