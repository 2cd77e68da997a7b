"""The container image: small, without rights by default, and as the DaemonSet runs it an agent of the whole node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from agents import free_port, select
from images import Image, Mount, image, running, why_no_images
from jobs import ROOT, SimulatedJob
from nodes import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_images() is not None, reason=why_no_images() or ""),
    pytest.mark.timeout(240),
]
MAX_BYTES = 150_000_000
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
POD = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--net", "--ipc", "--uts")
"""Namespaces that a pod has of its own."""
DAEMON_SET = yaml.safe_load((ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text())
CONTAINER = DAEMON_SET["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image."""
    with image(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@contextlib.contextmanager
def pod(job_dir: Path, *options: str) -> Iterator[None]:
    """A job of another user in namespaces of its own, whose variable names it; its end takes all of them."""
    command = [*POD, *AS_NOBODY, sys.executable, "-B", "-m", "agent.simulate", "--job-dir", str(job_dir), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RANKWATCH_JOB_ID": "train-7"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    try:
        yield
    finally:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        process.wait(10)


def page(port: int) -> str:
    """The agent's page; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_it_is_small_and_says_how_it_is_run(built: Image) -> None:
    """Below 150 MB; another user than root, a health check by the program itself, the metrics' port."""
    assert built.size() < MAX_BYTES
    assert built.config["User"] == "65532:65532"
    assert built.config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/rankwatch", "status", "--brief"]
    assert set(built.config["ExposedPorts"]) == {"19028/tcp"}
    print(f"{built.size() / 1e6:.0f} MB")  # noqa: T201  # stands in docs/containers.md


def test_without_any_right(built: Image, tmp_path: Path) -> None:
    """Its own user, no capability, its own processes: it serves what it knows of itself."""
    port = free_port()
    arguments = [f"--web.listen-address=127.0.0.1:{port}"]
    with running(built, tmp_path, user=65532, sees_host=False, arguments=arguments):
        wait_until(lambda: "rankwatch_build_info" in page(port), 30, "the agent")
        assert 'rankwatch_exporter_up{exporter="process"} 1' in page(port)
        assert select(page(port), "rankwatch_rank_up") == []


def test_as_the_daemon_set_runs_it(built: Image, tmp_path: Path, open_to_all: Path) -> None:
    """With three capabilities it names other users' ranks, also those of a pod with its own namespaces."""
    assert CONTAINER["securityContext"]["capabilities"]["drop"] == ["ALL"]
    capabilities = [f"CAP_{name}" for name in CONTAINER["securityContext"]["capabilities"]["add"]]
    state, config, home = open_to_all / "state", open_to_all / "config", open_to_all / "jobs"
    for path in (state, config, home, state / "inspector"):
        path.mkdir()
    for path in (state / "inspector", home):
        path.chmod(0o1777)
    port = free_port()
    own = yaml.safe_load((ROOT / "deploy/kubernetes/base/rankwatch.yml").read_text())
    assert own["web"]["listen_address"] == ":19028"
    own["web"]["listen_address"] = f":{port}"
    (config / "rankwatch.yml").write_text(json.dumps(own))
    mounts = [Mount(state, "/var/lib/rankwatch", writable=True), Mount(config, "/etc/rankwatch")]
    mounts += [Mount(Path("/dev/kmsg"), "/dev/kmsg")] if os.path.exists("/dev/kmsg") else []
    options = ("--ranks", "2", "--dump-dir", str(state / "inspector"), "--records-per-second", "100")
    bare = SimulatedJob(home / "bare", *options, "--scheduler", "slurm", "--job-id", "77", launch=AS_NOBODY)
    arguments = list(CONTAINER["args"])
    with (
        bare,
        pod(home / "pod", *options),
        running(built, tmp_path, user=0, capabilities=capabilities, mounts=mounts, arguments=arguments),
    ):

        def shown() -> set[tuple[str, str]]:
            alive = select(page(port), "rankwatch_rank_state", state="alive")
            return {(each.labels["job_id"], each.labels["rank"]) for each in alive}

        wanted = {(job, rank) for job in ("77", "train-7") for rank in ("0", "1")}
        wait_until(lambda: shown() == wanted, 60, f"{wanted}, but {shown()}")
        infos = select(page(port), "rankwatch_rank_info", job_id="77")
        assert {each.labels["user"] for each in infos} == {"nobody"}

        def counted() -> set[str]:
            series = select(page(port), "rankwatch_collective_operations_total")
            return {each.labels["job_id"] for each in series if each.value > 0}

        wait_until(lambda: counted() == {"77", "train-7"}, 60, "records of both")
