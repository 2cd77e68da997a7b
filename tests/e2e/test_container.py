"""The container image is small and has no rights by default; with the DaemonSet's rights it observes the whole node."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import select
from attempts_expected import FILTER, WAYS
from container_lines import QUADLETS, of_the_page, of_the_quadlet, of_the_unit, on, rights
from dockers import Docker, why_no_docker
from full import full
from images import NAME, Container, Image, Mount, image, why_no_images
from jobs import ROOT, SimulatedJob
from nodes import Node, wait_until
from pods import CGROUPS, PodPlaces, pod

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(why_no_images() is not None, reason=why_no_images() or ""),
    pytest.mark.timeout(1200),
]
MAX_BYTES = 150_000_000
PORT = 19028
IMAGES_USER, NOBODY = 19028, 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
E2E = Path(__file__).parent
OPENED = {
    "memory, read as a file",
    "environment",
    "memory file, written",
    "root's file by its root, read",
    "all users' file by its root, written",
}
"""Attempts that SYS_PTRACE and DAC_READ_SEARCH permit if the node's processes are visible: docs/security.md."""
NOT_AS_IN_THE_UNIT = {
    # The container has no such path.
    "root's file, written": "ENOENT",
    "all users' file, written": "ENOENT",
    # The profile itself refuses unshare and setns; it must leave setuid, which runtimes call, to the kernel.
    "unshare": FILTER,
    "setns": FILTER,
    "setuid": "EPERM",
}
IN_THE_CONTAINER = {
    name: "done" if name in OPENED else NOT_AS_IN_THE_UNIT.get(name, way.refusal) for name, way in WAYS.items()
}
OF_ITSELF = {"keyctl", "add_key", "request_key", "userfaultfd", "io_uring_setup", "unshare"}
"""Calls that affect no other process; runtimes' default profiles differ in these calls."""
PROFILE = ROOT / "deploy/container/seccomp.json"
CONFIG = ROOT / "deploy/kubernetes/base/rankwatch.yml"
POD = yaml.safe_load((ROOT / "deploy/kubernetes/base/daemonset.yaml").read_text())["spec"]["template"]["spec"]

_AGENT = POD["containers"][0]
WITHOUT_RIGHTS = {
    **_AGENT,
    "command": ["/usr/bin/rankwatch"],
    "securityContext": {
        **_AGENT["securityContext"],
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
"""The settings of components/without-rights (test_kubernetes.py)."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Provide the image."""
    with image(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture
def node() -> Iterator[Node]:
    """Provide a node."""
    with Node("gpu-node-07") as made:
        yield made


@pytest.fixture
def host() -> Iterator[Path]:
    """Provide the node's paths that the DaemonSet mounts, by volume name; other users can reach them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        root = Path(made)
        root.chmod(0o755)
        for name in ("state", "jobs", "pods", "config", "seccomp"):
            (root / name).mkdir()
        shutil.copy(CONFIG, root / "config")
        yield root


def page(node: Node) -> str:
    """Return the agent's page; empty without one."""
    try:
        reply = node.curl(PORT, "/metrics")
    except OSError:
        return ""
    return reply.body if reply.status == 200 else ""


def of_the_daemon_set(node: Node, built: Image, host: Path, bundle: Path, spec: dict[str, Any]) -> Container:
    """Return one of the DaemonSet's containers, with its rights and mounts; its command replaces the image's."""
    security = spec["securityContext"]
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["allowPrivilegeEscalation"] is False
    wanted = security["seccompProfile"]
    profile = None
    if wanted["type"] == "Localhost":
        profile = json.loads((host / "seccomp" / wanted["localhostProfile"]).read_text())
    volumes = {"cgroup": CGROUPS, "agent": None}
    mounts = [
        Mount(
            volumes.get(volumemount["name"], host / volumemount["name"]),
            volumemount["mountPath"],
            not volumemount.get("readOnly"),
        )
        for volumemount in spec["volumeMounts"]
    ]
    command = [*spec.get("command", built.config["Entrypoint"]), *spec.get("args", ())]
    capabilities = [f"CAP_{name}" for name in security["capabilities"].get("add", ())]
    return Container(
        node,
        built,
        bundle,
        command,
        user=security["runAsUser"],
        capabilities=capabilities,
        mounts=mounts,
        read_only=security["readOnlyRootFilesystem"],
        seccomp=profile,
    )


def states(node: Node, state: str) -> set[tuple[str, str]]:
    """Return the ranks in a state, by job and rank."""
    samples = select(page(node), "rankwatch_rank_state", state=state)
    return {(sample.labels["job_id"], sample.labels["rank"]) for sample in samples if sample.value}


def test_it_is_small_and_says_how_it_is_run(built: Image) -> None:
    """The image is below 150 MB, runs as a user, and has a health check; one program has capabilities."""
    assert built.size() < MAX_BYTES
    assert built.config["User"] == f"{IMAGES_USER}:{IMAGES_USER}"
    assert built.config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/rankwatch", "status", "--brief"]
    assert set(built.config["ExposedPorts"]) == {f"{PORT}/tcp"}
    programs = [path for path in built.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in programs if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    carrying = [path for path in programs if "security.capability" in os.listxattr(path)]
    assert [path.relative_to(built.root) for path in carrying] == [Path("usr/lib/rankwatch/setpriv")]
    print(f"{built.size() / 1e6:.0f} MB")  # noqa: T201  # stands in docs/containers.md


@full
def test_without_any_right(built: Image, node: Node, tmp_path: Path) -> None:
    """Without any capability the container is healthy and serves the metrics about itself."""
    command = [*built.config["Entrypoint"], *built.config["Cmd"]]
    given = {"user": IMAGES_USER, "mounts": [Mount(CONFIG.parent, "/etc/rankwatch")]}
    container = Container(node, built, tmp_path / "agent", command, **given, sees_host=False, read_only=False)

    def up() -> set[float]:
        return {sample.value for sample in select(page(node), "rankwatch_exporter_up")}

    with container.running():
        wait_until(lambda: up() == {1.0}, 30, "all exporters up")
        assert select(page(node), "rankwatch_rank_up") == []
        check = container.execute(IMAGES_USER, *built.config["Healthcheck"]["Test"][1:])
        assert check.returncode == 0, check.stderr


def test_as_the_daemon_set_runs_it(built: Image, node: Node, host: Path, tmp_path: Path) -> None:
    """With the DaemonSet's rights the agent names ranks of users and pods, with their records and exits."""
    prepared(node, built, host, tmp_path)
    [second] = POD["containers"]
    assert (host / "seccomp/rankwatch.json").read_bytes() == PROFILE.read_bytes()
    assert (host / "state").stat().st_uid == IMAGES_USER
    dumps = host / "state" / "inspector"
    assert dumps.stat().st_mode & 0o7777 == 0o1777
    home = host / "home"
    home.mkdir()
    home.chmod(0o1777)
    options = ("--ranks", "2", "--records-per-second", "100")
    bare = (*options, "--dump-dir", str(dumps), "--scheduler", "slurm", "--job-id", "77")
    places = PodPlaces(dumps, host / "pods", home / "pod")
    agent = of_the_daemon_set(node, built, host, tmp_path / "agent", second)
    with (
        SimulatedJob(home / "bare", *bare, node=node, launch=AS_NOBODY),
        pod(node, places, "team-a", "train-7", *options),
        agent.running(),
    ):
        wanted = {(job, rank) for job in ("77", "team-a/train-7") for rank in ("0", "1")}
        wait_until(lambda: states(node, "alive") == wanted, 60, "two jobs")
        infos = {
            sample.labels["job_id"]: sample.labels for sample in select(page(node), "rankwatch_rank_info", rank="0")
        }
        assert {labels["user"] for labels in infos.values()} == {"nobody"}

        def counted() -> set[str]:
            series = select(page(node), "rankwatch_collective_operations_total")
            return {result.labels["job_id"] for result in series if result.value > 0}

        wait_until(lambda: counted() == {"77", "team-a/train-7"}, 60, "records of both")
        assert node.run(["kill", "-KILL", infos["team-a/train-7"]["pid"]]).returncode == 0
        killed = {"job_id": "team-a/train-7", "rank": "0", "signal": "SIGKILL"}
        wait_until(lambda: select(page(node), "rankwatch_rank_exit_info", **killed), 30, "how it ended")
        check = agent.execute(IMAGES_USER, *built.config["Healthcheck"]["Test"][1:])
        assert check.returncode == 0, check.stderr


def prepared(node: Node, built: Image, host: Path, directory: Path) -> None:
    """Run the DaemonSet's first container."""
    [first] = POD["initContainers"]
    made = of_the_daemon_set(node, built, host, directory / "init", first).run()
    assert made.returncode == 0, made.stderr


def answers(node: Node, built: Image, host: Path, bundle: Path, spec: dict[str, Any]) -> dict[str, str]:
    """Return the replies to attempts on a root process of the node, made with this container's rights."""
    attacked = host / "attacked"
    attacked.mkdir()
    for name in ("attempts.py", "attempted.py"):
        shutil.copy(E2E / name, attacked)
    tries = [*spec["command"][:-1], "/usr/bin/python3", "-B", "/attacked/attempts.py", "/attacked/attacked.json"]
    spec = {**spec, "command": tries, "args": [], "volumeMounts": [{"name": "attacked", "mountPath": "/attacked"}]}
    running = node.popen([sys.executable, "-B", attacked / "attempted.py", attacked / "attacked.json"])
    try:
        wait_until((attacked / "attacked.json").exists, 20, "the process to attack")
        done = of_the_daemon_set(node, built, host, bundle, spec).run()
    finally:
        running.kill()
        running.wait()
    assert done.returncode == 0, done.stderr
    answered: dict[str, str] = json.loads(done.stdout)
    return answered


@full
def test_what_the_daemon_set_may_do_to_other_processes(built: Image, node: Node, host: Path, tmp_path: Path) -> None:
    """The agent's container writes to no process and no file of root; it reads what docs/security.md lists."""
    prepared(node, built, host, tmp_path)
    profile = host / "seccomp/rankwatch.json"
    profile.write_text(json.dumps({**json.loads(profile.read_text()), "defaultErrnoRet": errno.ENOANO}))
    assert answers(node, built, host, tmp_path / "tries", _AGENT) == IN_THE_CONTAINER


@full
def test_what_it_may_do_without_rights(built: Image, node: Node, host: Path, tmp_path: Path) -> None:
    """With the component without-rights the container reads and writes nothing of other users' processes."""
    answered = answers(node, built, host, tmp_path / "tries", WITHOUT_RIGHTS)
    assert {name for name, answer in answered.items() if answer == "done"} <= OF_ITSELF


@full
def test_root_with_the_default_profile_writes_everywhere(built: Image, node: Node, host: Path, tmp_path: Path) -> None:
    """As root with the runtime's default profile all attempts succeed, so the attempts are real."""
    security = {**_AGENT["securityContext"], "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    answered = answers(node, built, host, tmp_path / "tries", {**_AGENT, "securityContext": security})
    written = {"process_vm_writev", "memory, written as a file", "root's file by its root, written", "ptrace"}
    assert {name for name in written if answered[name] == "done"} == written


@full
def test_without_rights_records_name_ranks(built: Image, node: Node, host: Path, tmp_path: Path) -> None:
    """With the Kustomize component `without-rights`, Inspector's records, which the agent can read, name the ranks of
    another user."""
    os.chown(host / "state", IMAGES_USER, IMAGES_USER)
    dumps, home = host / "state/inspector", host / "home"
    for directory in (dumps, home):
        directory.mkdir()
        directory.chmod(0o1777)
    agent = of_the_daemon_set(node, built, host, tmp_path / "agent", WITHOUT_RIGHTS)
    options = ("--ranks", "2", "--records-per-second", "100", "--dump-dir", str(dumps))
    with SimulatedJob(home / "job", *options, node=node, launch=AS_NOBODY), agent.running():
        wait_until(lambda: {rank for _, rank in states(node, "alive")} == {"0", "1"}, 60, "both ranks")


@pytest.mark.skipif(why_no_docker() is not None, reason=why_no_docker() or "")
@pytest.mark.parametrize("words", [of_the_page(), pytest.param(of_the_unit(), marks=full)], ids=["page", "unit"])
def test_as_docker_runs_it(built: Image, node: Node, host: Path, tmp_path: Path, words: list[str]) -> None:
    """With the docs' command line or unit, the agent sees other users' ranks and the kernel log, and stops in order."""
    config, state = host / "etc/rankwatch", host / "var/lib/rankwatch"
    for path in (config, state / "inspector"):
        path.mkdir(parents=True)
    os.chown(state, IMAGES_USER, IMAGES_USER)
    shutil.copy(CONFIG, config)
    shutil.copy(PROFILE, config)
    built.save(tmp_path / "image.tar")
    health = ["--detach", "--health-interval=1s"]
    options = ("--ranks", "2", "--scheduler", "slurm", "--job-id", "77")
    home = host / "home"
    home.mkdir()
    home.chmod(0o1777)
    with Docker(node, host / "docker") as docker, SimulatedJob(home / "job", *options, node=node, launch=AS_NOBODY):
        assert docker.run("load", "--input", tmp_path / "image.tar").returncode == 0
        started = docker.run("run", *health, *on(host, NAME, words))
        assert started.returncode == 0, started.stderr
        wait_until(lambda: states(node, "alive") == {("77", "0"), ("77", "1")}, 60, "the job")
        read = {"exporter": "kernel_log"}
        wait_until(lambda: select(page(node), "rankwatch_exporter_update_duration_seconds", **read), 30, "kernel's log")
        status_format = "{{.State.Health.Status}}"
        wait_until(
            lambda: docker.run("inspect", "--format", status_format, "rankwatch").stdout == "healthy\n",
            30,
            "its health",
        )
        assert docker.run("stop", "rankwatch").returncode == 0
        wait_until(lambda: page(node) == "", 10, "its end")
        docker.run("rm", "--force", "rankwatch")


def test_docker_has_the_same_rights() -> None:
    """Docker's unit gives the rights of the docs' command line."""
    assert rights(of_the_unit()) == rights(of_the_page())


@pytest.mark.skipif(not QUADLETS.exists(), reason="no podman in .cache: scripts/test --full fetches it")
def test_podman_has_the_same_rights() -> None:
    """The quadlet gives the rights of the docs' command line, and no more."""
    no_more = ("--security-opt", "no-new-privileges")
    assert rights(of_the_quadlet()) == rights(of_the_page()) | {no_more}
