"""Ranks of jax.distributed and of Ray's actors on CPUs: which ranks the agent finds, and their pages."""

from __future__ import annotations

import contextlib
import json
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
from prometheus import Prometheus, why_no_prometheus
from rules import build_rules, prometheus_config
from torch_jobs import HERE, WITHOUT_NCCL, ends

JAX, RAY = (ROOT / f".cache/{name}/bin/python" for name in ("jax", "ray"))
TORCH = next((ROOT / ".cache/torch/lib").glob("python3*/site-packages"), None)
MISSING = [name for name, path in (("JAX", JAX), ("Ray", RAY), ("PyTorch", TORCH)) if path is None or not path.exists()]
pytestmark = [
    full,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} in .cache: scripts/test --full installs it"),
    pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or ""),
    pytest.mark.timeout(400),
]
PROGRAMS = Path(__file__).parent / "launchers"
SEEN_SECONDS = 150.0
ENDED_SECONDS = 30.0
PAGE_SECONDS = 90.0
LARGE_AND_OLD = {"page_lived": "long|short", "page_ranks": 2}
JAX_JOB, RAY_JOB = "jax", "01000000"
"""Ray counts its jobs from 1 in each of its clusters."""
JAX_ENDS, RAY_ENDS = "jax-ends", "ray-ends"
ALIVE = {"0": "alive", "1": "alive"}


class Launched(NamedTuple):
    """An agent, its Prometheus, the pids of ranks by job (``named``), and the pids of other processes."""

    agent: Agent
    prometheus: Prometheus
    named: dict[str, list[int]]
    unnamed: list[int]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Provide pairs of processes: JAX processes with a coordinator, JAX processes with Open MPI's variables, and Ray
    actors. Two of the jobs, one of JAX and one of Ray, end normally."""
    directory = tmp_path_factory.mktemp("launched")
    over = directory / "over"
    (targets := directory / "targets").mkdir()
    config = prometheus_config(targets, build_rules(directory, LARGE_AND_OLD), free_port())
    with (
        contextlib.ExitStack() as stack,
        (directory / "log").open("w") as log,
        Agent(directory, {"exporters": WITHOUT_NCCL}) as agent,
        Prometheus(directory / "prometheus", config) as prometheus,
    ):
        (targets / "node.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))

        def start(python: Path, program: str, *arguments: str, **more: str) -> subprocess.Popen[Any]:
            env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(directory), **more}
            command = [str(python), str(PROGRAMS / program), *arguments]
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(end, process)
            return process

        def jax(number: int, *arguments: str, **more: str) -> int:
            return start(JAX, "jax_processes.py", *arguments, JAX_PLATFORMS="cpu", **more).pid

        def mpi(job_id: str, number: int, **more: str) -> list[int]:
            both = {
                "PBS_JOBID": job_id,
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_MCA_orte_hnp_uri": f"{number << 12}.0;tcp://{HERE}:1",
            }
            ranks = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
            return [jax(rank, **both, **more, **dict.fromkeys(ranks, str(rank))) for rank in range(2)]

        def ray(*variables: str) -> list[int]:
            session = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            env = {"PYTHONPATH": str(TORCH), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
            groups = [f"{free_port()}{named}" for named in variables]
            stdout = start(RAY, "ray_actors.py", session, *groups, **env).stdout
            assert stdout is not None
            return [int(pid) for pid in stdout.readline().split()]

        coordinator = f"{HERE}:{free_port()}"
        unnamed = [jax(number, coordinator, str(number)) for number in range(2)]
        named = {JAX_JOB: mpi(JAX_JOB, 1), JAX_ENDS: mpi(JAX_ENDS, 2, END=str(over))}
        actors = ray("", ",GLOO_SOCKET_IFNAME=lo")
        unnamed += actors[:2]
        named |= {RAY_JOB: actors[2:], RAY_ENDS: ray(f",PBS_JOBID={RAY_ENDS},END={over}")}
        for job_id in named:
            agent.wait_for_states(ALIVE, SEEN_SECONDS, job_id=job_id)
        over.touch()
        yield Launched(agent, prometheus, named, unnamed)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process with its children, because JAX ignores SIGTERM."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.communicate()


@pytest.mark.parametrize("job_id", [JAX_JOB, RAY_JOB, JAX_ENDS, RAY_ENDS])
def test_named_processes_are_ranks(launched: Launched, job_id: str) -> None:
    """Processes with a number in MPI's variables or Ray's runtime_env become ranks, with their pids."""
    series = launched.agent.samples("rankwatch_rank_info", job_id=job_id)
    pids = {s.labels["rank"]: int(s.labels["pid"]) for s in series}
    assert pids == dict(zip("01", launched.named[job_id], strict=True))


def test_processes_without_a_number_are_not_seen(launched: Launched) -> None:
    """JAX processes with a coordinator, and actors whose code sets RANK, are no ranks."""
    pids = {int(series.labels["pid"]) for series in launched.agent.samples("rankwatch_rank_info")}
    assert pids == {pid for job in launched.named.values() for pid in job}
    assert launched.agent.value("rankwatch_processes_without_nccl") == 0
    assert all(psutil.pid_exists(pid) for pid in launched.unnamed)


@pytest.mark.parametrize(("job_id", "peer"), [(JAX_JOB, "crashed (SIGABRT)"), (RAY_JOB, "exited with status 1")])
def test_a_killed_process(launched: Launched, job_id: str, peer: str) -> None:
    """After SIGKILL of rank 0 its peer aborts (JAX) or Ray ends the peer; the one page names rank 0 only."""
    os.kill(launched.named[job_id][0], signal.SIGKILL)
    wait_until(lambda: all(words for words, _ in ends(launched.agent, job_id).values()), ENDED_SECONDS, "both exits")
    ended = ends(launched.agent, job_id)
    assert (ended["0"][0], ended["1"][0]) == ("killed (SIGKILL)", peer)
    page = f'ALERTS{{job_id="{job_id}", severity="page", alertstate="firing"}}'
    [alert] = wait_until(lambda: launched.prometheus.query(page), PAGE_SECONDS, "a page")
    assert {"alertname": "RankDead", "rank": "0", "class": "torn"}.items() <= alert["metric"].items()


@pytest.mark.parametrize(
    ("job_id", "end"),
    [(JAX_ENDS, ("exited with status 0", "finished")), (RAY_ENDS, ("exited with status 1", "exited"))],
)
def test_a_clean_end_is_silent(launched: Launched, job_id: str, end: tuple[str, str]) -> None:
    """If JAX processes finish, or Ray ends its workers with status 1, no alert fires for the job."""
    assert ends(launched.agent, job_id) == dict.fromkeys("01", end)
    assert launched.prometheus.query(f'last_over_time(ALERTS{{job_id="{job_id}", alertstate="firing"}}[1h])') == []
