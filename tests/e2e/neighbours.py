"""A node that users share: a victim whose job a scheduler proves, and processes of another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents import Agent
from jobs import SimulatedJob
from nodes import Node, wait_until
from users import as_user, open_directory

from exporters.inspector.totals.inheritance import BIRTH_SECONDS

VICTIM, MALLORY, AGENT = 1000, 1001, 990
JOB = "4711"
RANKS = 4
RIGHTS = "+sys_ptrace,+dac_read_search"
STEP_DAEMON = 'exec -a "slurmstepd: [$1.0]" bash <"$2"'
"""Replaces Slurm's daemon, which runs as root and is an ancestor of all tasks. test_slurm.py tests a real daemon."""
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
    """Return a hierarchy of control groups in which the test can make any group, without limits, or None."""
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
    """Make a control group at ``path`` of a hierarchy as a user, with the missing groups above it."""
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


class SharedNode:
    """The node, the agent with its own user and the usual rights, and the directory of the users' files."""

    def __init__(self, directory: Path, node: Node) -> None:
        self.directory = directory
        self.node = node
        self.logs = directory / "logs"
        self.logs.mkdir()
        for name, uid in (("victim", VICTIM), ("mallory", MALLORY)):
            for folder in (self.logs / name, directory / f"{name}-job"):
                folder.mkdir()
                shutil.chown(folder, uid, uid)
        self._programs: list[subprocess.Popen[Any]] = []

    @contextmanager
    def agent(self, *program: str, **exporters: object) -> Iterator[Agent]:
        """Return the agent as the service with the drop-in for other users. ``program``: Python runs it instead.

        ``exporters``: sections of its configuration."""
        command = (
            *as_user(AGENT, f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}"),
            *(sys.executable, "-B", *(program or ("-m", "agent"))),
        )
        sections = {"inspector": {"paths": [str(self.logs)]}, "ras": {"enabled": False}, **exporters}
        home = self.directory / "home"
        more = {"node": self.node, "command": command, "root": self.directory}
        with Agent(home, {"exporters": sections}, job_id=JOB, **more) as agent:
            yield agent

    @contextmanager
    def victim(self) -> Iterator[SimulatedJob]:
        """Return the victim's job under the scheduler."""
        launch = ["bash", "-c", self._script("victim", VICTIM), "bash"]
        words = ("--ranks", str(RANKS), "--tp", "2", "--scheduler", "slurm", "--job-id", JOB)
        dump = ("--dump-interval-us", "50000", "--dump-dir", str(self.logs / "victim"))
        home = self.directory / "victim-job"
        with SimulatedJob(home, *words, *dump, node=self.node, launch=launch, root=self.directory) as job:
            yield job

    def _script(self, name: str, uid: int) -> str:
        """Return a script that runs its arguments as a user, below a root process with the scheduler daemon's title."""
        inner = self.directory / f"{name}.sh"
        return (
            f'printf "%q " {" ".join(as_user(uid))} "$@" >{inner}; echo "& wait \\$!" >>{inner}; '
            f"set -- {JOB} {inner}; {STEP_DAEMON}"
        )

    def rank(
        self, uid: int, signal: int = 11, *, group: Path | None = None, **environment: str
    ) -> subprocess.Popen[Any]:
        """Start a user's process that looks like a rank, in a control group; a line on its standard input ends it."""
        enter = [] if group is None else ["sh", "-c", 'echo $$ >"$0"/cgroup.procs; exec "$@"', str(group)]
        return self.start([*enter, *as_user(uid), sys.executable, "-S", "-c", RANK, str(signal)], environment)

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[Any]:
        """Start a program with pipes; ``close`` ends it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        program = self.node.popen(argv, env={"PATH": "/usr/bin:/bin", **environment}, text=True, **pipes)
        self._programs.append(program)
        return program

    def close(self) -> None:
        for program in self._programs:
            if program.stdin is not None:
                program.stdin.close()
            program.wait(20.0)
            if program.stdout is not None:
                program.stdout.close()


@contextmanager
def shared_node() -> Iterator[SharedNode]:
    """Provide a node with two users, and end its programs."""
    with open_directory(AGENT) as path, Node("shared") as node:
        place = SharedNode(path, node)
        try:
            yield place
        finally:
            place.close()


def end(program: subprocess.Popen[Any]) -> None:
    """Send the line that ends a rank of ``SharedNode.rank``, and wait for the rank's end."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    program.wait(10.0)


def victims_series(agent: Agent) -> dict[str, Any]:
    """Return the agent's series of the victim's job, without those that vary between runs."""
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
    """Return the number of the victim's collective operations by the agent, and by the victim's files."""
    shown = sum(s.value for s in agent.samples("rankwatch_collective_operations_total", job_id=JOB))
    written = sum(path.read_bytes().count(b'"coll_perf"') for path in directory.glob("*.log"))
    return shown, written


def wait_until_read(agent: Agent, directory: Path) -> None:
    """Wait until the agent has counted all operations in the victim's files, and no more."""
    wait_until(lambda: len(set(operations(agent, directory))) == 1, BIRTH_SECONDS + 20.0, "records and counters alike")
