"""A node that users share: a victim whose job a scheduler proves, and processes of another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents import Agent
from jobs import ROOT, SimulatedJob
from nodes import Node, wait_until

from exporters.inspector.totals.inheritance import BIRTH_SECONDS

VICTIM, MALLORY, AGENT = 1000, 1001, 990
JOB = "4711"
RANKS = 4
RIGHTS = "+sys_ptrace,+dac_read_search"
STEP_DAEMON = 'exec -a "slurmstepd: [$1.0]" bash <"$2"'
"""Stands in for Slurm's daemon, which is root's and an ancestor of all tasks; a real one: test_slurm.py."""
RANK = """
import os, pathlib, sys, threading
def stay():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
sys.stdin.readline()
os.kill(os.getpid(), int(sys.argv[1]))
"""


def hierarchy() -> Path | None:
    """A hierarchy of control groups in which any group may be made, without limits; None when there is none."""
    for mount in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        probe = mount / f"rankwatch-test-{os.getpid()}"
        if not (mount / "cgroup.procs").exists():
            continue
        try:
            probe.mkdir()
            (probe / "cgroup.procs").read_text()
            probe.rmdir()
        except OSError:
            continue
        return mount
    return None


@contextmanager
def control_group(path: str, uid: int = 0) -> Iterator[Path]:
    """A control group at ``path`` of a hierarchy, made by a user as far as it was not there."""
    mount = hierarchy()
    assert mount is not None
    made = []
    for folder in [*reversed((mount / path.lstrip("/")).parents), mount / path.lstrip("/")]:
        if folder.is_relative_to(mount) and not folder.exists():
            folder.mkdir()
            os.chown(folder, uid, uid)
            made.append(folder)
    try:
        yield mount / path.lstrip("/")
    finally:
        for folder in reversed(made):
            wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text(), 10.0, "an empty group")
            folder.rmdir()


def as_user(uid: int, *more: str) -> list[str]:
    """The words that start a program as a user."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *more]


class SharedNode:
    """The node, the agent on it with a user and the usual rights of its own, and the directory of the users' files."""

    def __init__(self, directory: Path, node: Node) -> None:
        self.directory = directory
        self.node = node
        self.logs = directory / "logs"
        self.logs.mkdir()
        for package in ("agent", "exporters"):
            shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name, uid in (("victim", VICTIM), ("mallory", MALLORY)):
            for folder in (self.logs / name, directory / f"{name}-job"):
                folder.mkdir()
                shutil.chown(folder, uid, uid)
        (directory / "agent-home").mkdir()
        shutil.chown(directory / "agent-home", AGENT, AGENT)
        self._programs: list[subprocess.Popen[Any]] = []

    @contextmanager
    def agent(self, *program: str, **exporters: object) -> Iterator[Agent]:
        """The agent, as the service runs with the drop-in for other users; ``program``: what Python runs instead.

        ``exporters``: sections of its configuration.
        """
        command = (
            *as_user(AGENT, f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}"),
            *(sys.executable, "-B", *(program or ("-m", "agent"))),
        )
        sections = {"inspector": {"paths": [str(self.logs)]}, "ras": {"enabled": False}, **exporters}
        home = self.directory / "agent-home"
        with Agent(
            home, {"exporters": sections}, job_id=JOB, node=self.node, command=command, root=self.directory
        ) as agent:
            yield agent

    @contextmanager
    def victim(self, *options: str) -> Iterator[SimulatedJob]:
        """The victim's job under the scheduler."""
        launch = ["bash", "-c", self._script("victim", VICTIM), "bash"]
        words = (
            "--ranks",
            str(RANKS),
            "--tp",
            "2",
            "--scheduler",
            "slurm",
            "--job-id",
            JOB,
            "--dump-interval-us",
            "50000",
            *options,
        )
        dump = ("--dump-dir", str(self.logs / "victim"))
        with SimulatedJob(
            self.directory / "victim-job", *words, *dump, node=self.node, launch=launch, root=self.directory
        ) as job:
            yield job

    def _script(self, name: str, uid: int) -> str:
        """A script that starts its arguments as a user, below a daemon of the scheduler's title that is root's."""
        inner = self.directory / f"{name}.sh"
        return (
            f'printf "%q " {" ".join(as_user(uid))} "$@" >{inner}; echo "& wait \\$!" >>{inner}; '
            f"set -- {JOB} {inner}; {STEP_DAEMON}"
        )

    def rank(
        self, uid: int, signal: int = 11, *, group: Path | None = None, **environment: str
    ) -> subprocess.Popen[Any]:
        """A process of a user that looks like a rank, in a control group; a line on its input ends it by a signal."""
        enter = [] if group is None else ["sh", "-c", 'echo $$ >"$0"/cgroup.procs; exec "$@"', str(group)]
        return self.start([*enter, *as_user(uid), sys.executable, "-S", "-c", RANK, str(signal)], environment)

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[Any]:
        """Start a program, with pipes to it; its input ends with the node."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        program = self.node.popen(argv, env={"PATH": "/usr/bin:/bin", **environment}, text=True, **pipes)
        self._programs.append(program)
        return program

    def close(self) -> None:
        """End what was started here."""
        for program in self._programs:
            if program.stdin is not None:
                program.stdin.close()
            program.wait(20.0)
            if program.stdout is not None:
                program.stdout.close()


@contextmanager
def shared_node() -> Iterator[SharedNode]:
    """A node with two users, and what was started on it until its end."""
    with tempfile.TemporaryDirectory(prefix="rankwatch-test-") as path, Node("shared") as node:
        Path(path).chmod(0o755)
        place = SharedNode(Path(path), node)
        try:
            yield place
        finally:
            place.close()


def end(program: subprocess.Popen[Any]) -> None:
    """Have a rank of ``SharedNode.rank`` end by its signal, and wait for that."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    program.wait(10.0)


def victims_series(agent: Agent) -> dict[str, Any]:
    """What the agent shows of the victim's job, but for what differs from run to run."""
    endings = {str(rank): agent.ending(str(rank)) for rank in range(RANKS)}
    return {
        "states": agent.states(),
        "endings": {rank: ending for rank, ending in endings.items() if ending is not None},
        "proven": {s.value for s in agent.samples("rankwatch_job_proven")},
        "live pids": len({s.labels["pid"] for s in agent.samples("rankwatch_rank_info")}),
        "expected": {s.value for s in agent.samples("rankwatch_job_expected_ranks")},
        "bandwidth": {s.labels["rank"] for s in agent.samples("rankwatch_collective_operations_total", job_id=JOB)},
    }


def operations(agent: Agent, directory: Path) -> tuple[float, int]:
    """The collective operations that the agent counts for the victim's job, and those in its files."""
    shown = sum(s.value for s in agent.samples("rankwatch_collective_operations_total", job_id=JOB))
    written = sum(path.read_bytes().count(b'"coll_perf"') for path in directory.glob("*.log"))
    return shown, written


def wait_until_read(agent: Agent, directory: Path) -> None:
    """Wait until all that the victim's files hold is counted, and no more."""
    wait_until(lambda: len(set(operations(agent, directory))) == 1, BIRTH_SECONDS + 20.0, "records and counters alike")
