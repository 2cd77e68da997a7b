"""Real torchrun (PyTorch 2.13) with NVIDIA's libnccl in its ranks, and in a memory group that is too small."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import Agent
from jobs import ROOT
from memory_groups import NoMemoryGroupError, small_group
from nodes import wait_until
from ports import free_port
from prometheus import Prometheus, why_no_prometheus
from ras_jobs import in_a_rank, why_no_ras
from rules import build_rules, prometheus_config
from torch_jobs import TorchJob, ends, needs_torch

pytestmark = [*needs_torch, pytest.mark.skipif(why_no_ras() is not None, reason=why_no_ras() or "")]
STARTED_SECONDS = 120.0
REPORT_SECONDS = 30.0
ENDED_SECONDS = 60.0
PAGE_SECONDS = 120.0
LIMIT_BYTES = 3 << 29
GPU = "/dev/nvidia0"
WITH_A_GPU = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none "$0"; cp -a /dev/null /dev/zero /dev/random /dev/urandom "$0"; mkdir "$0/shm"; '
    'touch "$0/nvidia0"; mount --bind "$0" /dev; exec "$@"',
)
"""Words before a command that give it a /dev with a file for a GPU; the next word is a directory."""


@pytest.mark.parametrize(("evidence", "names"), [("thread", "1"), ("library", "0")])
def test_libnccl_proves_the_ranks(tmp_path: Path, evidence: str, names: str) -> None:
    """Processes with libnccl are ranks at once, by its threads' names or its GPU, and RAS has their communicator."""
    job_id, port = f"nccl-{evidence}", free_port()
    device = tmp_path / "dev"
    device.mkdir()
    env = {
        "RASRANK": in_a_rank(tmp_path),
        "NCCL_SET_THREAD_NAME": names,
        "NCCL_RAS_ADDR": f"127.0.0.1:{port}",
        "GPU": GPU if evidence == "library" else "",
    }
    launch = (*WITH_A_GPU, str(device)) if evidence == "library" else ()
    config = {"exporters": {"ras": {"addresses": [f"127.0.0.1:{port}"]}}}
    with Agent(tmp_path, config, job_id=job_id) as agent, TorchJob(tmp_path, job_id, env=env, launch=launch) as job:
        agent.wait_for_states({"0": "alive", "1": "alive"}, STARTED_SECONDS)
        assert {line["evidence"] for line in agent.named()} == {evidence}
        agent.wait_for("rankwatch_communicator_ranks", 2, state="responding", seconds=REPORT_SECONDS)
        job.order(1, "SIGKILL")
        wait_until(lambda: ends(agent, job_id).get("1") == ("killed (SIGKILL)", "dead"), ENDED_SECONDS)
        wait_until(lambda: ends(agent, job_id)["0"][1] == "exited", ENDED_SECONDS)


@pytest.fixture
def group() -> Iterator[Path]:
    """Provide a memory group that is too small for a rank that grows."""
    try:
        with small_group(LIMIT_BYTES) as group:
            yield group
    except NoMemoryGroupError as reason:
        pytest.skip(str(reason))


@pytest.mark.skipif(why_no_prometheus() is not None, reason=why_no_prometheus() or "")
def test_the_oom_killer_takes_a_rank(tmp_path: Path, group: Path) -> None:
    """A rank killed by the OOM killer is dead with class oom; page and `explain` say so, for a job of any size."""
    targets = tmp_path / "targets"
    targets.mkdir()
    enter = ("sh", "-c", 'echo $$ >"$0"/cgroup.procs; exec "$@"', str(group))
    env = {"RASRANK": in_a_rank(tmp_path), "NCCL_SET_THREAD_NAME": "1"}
    config = prometheus_config(targets, build_rules(tmp_path, {}), free_port())
    with (
        Agent(tmp_path, {}, job_id="oom") as agent,
        TorchJob(tmp_path, "oom", env=env, launch=enter) as job,
        Prometheus(tmp_path / "prometheus", config) as prometheus,
    ):
        (targets / "node.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"]}]))
        agent.wait_for_states({"0": "alive", "1": "alive"}, STARTED_SECONDS)
        wait_until(lambda: prometheus.value("job:rankwatch_ranks_live:sum") == 2, PAGE_SECONDS, "the job")
        job.order(1, "grow")
        wait_until(lambda: ends(agent, "oom")["1"] == ("killed by the OOM killer", "dead"), ENDED_SECONDS)
        wait_until(lambda: ends(agent, "oom")["0"][1] == "exited", ENDED_SECONDS)
        page = 'ALERTS{alertname="RankDead", alertstate="firing", severity="page"}'
        [alert] = wait_until(lambda: prometheus.query(page), PAGE_SECONDS, "a page")
        assert {"rank": "1", "class": "oom", "cause": "oom"}.items() <= alert["metric"].items()

        def explained() -> str:
            where = f"http://127.0.0.1:{prometheus.port}"
            command = [sys.executable, "-m", "agent", "explain", "oom", "--prometheus", where]
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout

        wait_until(lambda: "page RankDead" in explained(), ENDED_SECONDS, "the page in the story")
        assert "rank 1  killed by the OOM killer: first to go" in explained()
