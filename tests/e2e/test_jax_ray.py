"""Ranks of jax.distributed and of Ray's actors on CPUs: which the agent sees, which not, and how their deaths look."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from agents import Agent
from full import full
from jobs import ROOT
from nodes import wait_until
from ports import free_port
from torch_jobs import WITHOUT_NCCL, ends

JAX, RAY = (ROOT / f".cache/{name}/bin/python" for name in ("jax", "ray"))
TORCH = next((ROOT / ".cache/torch/lib").glob("python3*/site-packages"), None)
MISSING = [name for name, path in (("JAX", JAX), ("Ray", RAY), ("PyTorch", TORCH)) if path is None or not path.exists()]
pytestmark = [
    full,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} in .cache: scripts/test --full installs it"),
    pytest.mark.timeout(300),
]
PROGRAMS = Path(__file__).parent / "launchers"
SEEN_SECONDS = 150.0
ENDED_SECONDS = 30.0
JAX_JOB, RAY_JOB = "jax", "01000000"
"""Ray counts its jobs from 1 in each of its clusters."""


class Launched(NamedTuple):
    """An agent, and the pids of ranks: by job, those that their environment names; and the others."""

    agent: Agent
    named: dict[str, list[int]]
    unnamed: list[int]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Two processes of JAX that open a coordinator, two under variables of Open MPI, and actors of two Ray clusters."""
    directory = tmp_path_factory.mktemp("launched")
    with (
        contextlib.ExitStack() as stack,
        (directory / "log").open("w") as log,
        Agent(directory, {"exporters": WITHOUT_NCCL}) as agent,
    ):

        def start(python: Path, program: str, *arguments: str, **more: str) -> subprocess.Popen[Any]:
            env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(directory), **more}
            command = [str(python), str(PROGRAMS / program), *arguments]
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(end, process)
            return process

        def jax(number: int, *arguments: str, **more: str) -> int:
            return start(JAX, "jax_processes.py", *arguments, JAX_PLATFORMS="cpu", **more).pid

        def ray(*named: str) -> list[int]:
            session = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            env = {"PYTHONPATH": str(TORCH), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
            stdout = start(RAY, "ray_actors.py", str(free_port()), session, *named, **env).stdout
            assert stdout is not None
            return [int(pid) for pid in stdout.readline().split()]

        coordinator = f"127.0.0.1:{free_port()}"
        unnamed = [jax(number, coordinator, str(number)) for number in range(2)]
        mpi = {"PBS_JOBID": JAX_JOB, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "77.0;tcp://127.0.0.1:34911"}
        numbers = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
        named = {JAX_JOB: [jax(number, **mpi, **dict.fromkeys(numbers, str(number))) for number in range(2)]}
        unnamed += ray()
        named[RAY_JOB] = ray("named")
        yield Launched(agent, named, unnamed)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process, with those that it started; JAX does not end by SIGTERM."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("job_id", [JAX_JOB, RAY_JOB])
def test_named_processes_are_ranks(launched: Launched, job_id: str) -> None:
    """Processes that MPI's variables or Ray's runtime_env number are ranks a minute later, those of their pids."""
    alive = {"0": "alive", "1": "alive"}
    launched.agent.wait_for_states(alive, SEEN_SECONDS, job_id=job_id)
    pids = {
        s.labels["rank"]: int(s.labels["pid"]) for s in launched.agent.samples("rankwatch_rank_info", job_id=job_id)
    }
    assert pids == dict(zip("01", launched.named[job_id], strict=True))


def test_processes_without_a_number_are_not_seen(launched: Launched) -> None:
    """Processes of JAX with a coordinator, and actors that get RANK from their code, run and are no ranks."""
    pids = {int(series.labels["pid"]) for series in launched.agent.samples("rankwatch_rank_info")}
    assert pids == {pid for job in launched.named.values() for pid in job}
    assert launched.agent.value("rankwatch_processes_without_nccl") == 0
    assert all(psutil.pid_exists(pid) for pid in launched.unnamed)


@pytest.mark.parametrize(
    ("job_id", "killed", "peer"),
    [(JAX_JOB, "killed", "crashed (SIGABRT)"), (RAY_JOB, "torn", "exited with status 1")],
)
def test_a_killed_process(launched: Launched, job_id: str, killed: str, peer: str) -> None:
    """After SIGKILL of rank 0 its peer aborts (JAX) or fails (Ray); rank 0 is the first, and so dies alone."""
    os.kill(launched.named[job_id][0], signal.SIGKILL)
    wait_until(lambda: all(words for words, _ in ends(launched.agent, job_id).values()), ENDED_SECONDS, "both exits")
    ended = ends(launched.agent, job_id)
    assert (ended["0"][0], ended["1"][0]) == ("killed (SIGKILL)", peer)

    def classes() -> dict[str, str]:
        exits = launched.agent.samples("rankwatch_exit_age_seconds", job_id=job_id)
        return {series.labels["rank"]: series.labels["class"] for series in exits if series.value >= 0}

    wait_until(lambda: classes().get("0") == killed, ENDED_SECONDS, f"{killed}, not {classes()}")
