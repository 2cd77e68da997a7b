"""Real causes of waiting rank processes, made on this machine: each appears in its series within two updates."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from agents import Agent
from jobs import ROOT
from neighbours import RIGHTS
from nodes import wait_until
from slow_files import slow_file
from users import as_user, open_directory

from exporters.process.observation import THREADS_SECONDS

LOOKS_SECONDS = 8 * THREADS_SECONDS
"""Limit of a wait for totals: two updates on an idle machine, more on a busy one."""
GROUPS = Path("/sys/fs/cgroup")
AGENT = 60701
MIB = 1024 * 1024
WAITS = "rankwatch_rank_wait_seconds_total"
BLOCKED = "rankwatch_rank_blocked_threads"
THROTTLED = "rankwatch_job_cpu_throttled_seconds_total"
PRESSURE = "rankwatch_job_pressure_waiting_seconds_total"
FAULTS = "rankwatch_rank_major_page_faults_total"
CPU = "rankwatch_rank_cpu_seconds_total"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for control groups and mounts"),
]


def group_in(stack: contextlib.ExitStack, controller: str) -> Path:
    """Make a control group in a version 1 hierarchy, or in version 2 (`unified`); ``stack`` removes it."""
    mount = GROUPS / controller
    if not (mount / "cgroup.procs").exists():
        pytest.skip(f"no control groups can be made here ({controller})")
    group = mount / f"rankwatch-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    stack.callback(lambda: wait_until(lambda: _removed(group), 10.0, "an empty group"))
    return group


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:  # busy until its last process is reaped
        return False
    return True


class Held:
    """A working rank and its agent; ``agent`` is only queried about the rank's job."""

    def __init__(self, agent: Agent, stack: contextlib.ExitStack, *work: str, groups: tuple[Path, ...] = ()) -> None:
        self.agent = agent
        enter = "".join(f'echo $$ >"{group}/cgroup.procs" && ' for group in groups)
        argv = ["sh", "-c", f'{enter}exec "$@"', "sh", sys.executable, str(ROOT / "tests/e2e/held_rank.py"), *work]
        env = {"SLURM_JOB_ID": uuid.uuid4().hex[:12], "RANK": "0", "WORLD_SIZE": "2"}
        env["NCCL_INSPECTOR_DUMP_DIR"] = str(agent.config_path.parents[1] / "records")
        self.process = subprocess.Popen(argv, env={**os.environ, **env}, start_new_session=True)
        stack.callback(self._end)
        pid = str(self.process.pid)
        info = wait_until(lambda: agent.samples("rankwatch_rank_info", pid=pid), 20.0, "the rank's name")
        self.job_id = info[0].labels["job_id"]
        wait_until(lambda: self.value(CPU, part="children") is not None, 20.0, "the rank's first looks")

    @property
    def loader(self) -> int:
        """Return the pid of the rank's child."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the rank's series, or None."""
        return self.agent.value(name, job_id=self.job_id, **labels)

    def grows(self, name: str, share: float, **labels: str) -> None:
        """Wait until a total grows by this share of the time; raises AssertionError after LOOKS_SECONDS."""
        begun, before = time.monotonic(), self.value(name, **labels) or 0.0
        wait_until(
            lambda: (self.value(name, **labels) or 0.0) - before > share * (time.monotonic() - begun),
            LOOKS_SECONDS,
            f"{name} {labels} to grow: {before}",
        )

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    """Provide a stack that cleans up after the test."""
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def directory() -> Iterator[Path]:
    """Provide a directory for the agent, with a directory of records and a mount point."""
    with open_directory(AGENT) as path:
        for name in ("records", "mount"):
            (path / name).mkdir()
        yield path


def agent_with(directory: Path, stack: contextlib.ExitStack, *start: str) -> Agent:
    """Start an agent with these words before its command."""
    config = {"exporters": {"inspector": {"paths": [str(directory / "records")]}, "ras": {"enabled": False}}}
    command = (*start, sys.executable, "-B", "-m", "agent")
    return stack.enter_context(Agent(directory / "home", config, command=command, root=directory))


@pytest.fixture
def agent(directory: Path, stack: contextlib.ExitStack) -> Agent:
    """Provide an agent that runs as root."""
    return agent_with(directory, stack)


def test_a_quota_of_cpu_time(agent: Agent, stack: contextlib.ExitStack) -> None:
    """A rank in a control group with 2 % of a CPU is throttled, and its group waits for CPUs."""
    group, pressed = group_in(stack, "cpu"), group_in(stack, "unified")
    rank = Held(agent, stack, "spin", groups=(group, pressed))
    (group / "cpu.cfs_quota_us").write_text("2000")
    rank.grows(THROTTLED, 0.5)
    rank.grows(PRESSURE, 0.3, resource="cpu")


def test_too_little_memory(agent: Agent, stack: contextlib.ExitStack, tmp_path: Path) -> None:
    """A rank in a control group smaller than its file has page faults, and the group waits for memory."""
    data = tmp_path / "data"
    with data.open("wb") as file:
        file.write(os.urandom(64 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else its pages count for another group
    group, pressed = group_in(stack, "memory"), group_in(stack, "unified")
    rank = Held(agent, stack, "touch", str(data), groups=(group, pressed))
    (group / "memory.limit_in_bytes").write_text(str(24 * MIB))
    rank.grows(FAULTS, 10.0)
    rank.grows(PRESSURE, 0.01, resource="memory")


@pytest.mark.parametrize(("rights", "wait"), [
    ((), "fuse"),
    (as_user(AGENT, f"--inh-caps={RIGHTS}", f"--ambient-caps={RIGHTS}"), "fuse"),
    (as_user(AGENT), "other"),
], ids=["root", "other-users", "none"])  # fmt: skip
def test_slow_storage(directory: Path, stack: contextlib.ExitStack, rights: Sequence[str], wait: str) -> None:
    """A rank that reads from slow storage is blocked; with the right to read its stack, the kind is known."""
    try:
        path = stack.enter_context(slow_file(directory / "mount"))
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
    agent = agent_with(directory, stack, *rights)
    rank = Held(agent, stack, "read", str(path))
    agent.wait_for(BLOCKED, 1.0, seconds=LOOKS_SECONDS, job_id=rank.job_id, wait=wait)
    assert None not in (rank.value(WAITS, resource="cpu"), rank.value(CPU, part="rank"))
    assert agent.value("rankwatch_exporter_skipped_total", exporter="process") is None


def test_a_process_that_hangs_in_exec(agent: Agent, directory: Path, stack: contextlib.ExitStack) -> None:
    """A process that hangs in exec hides no other: meanwhile the agent finds a new rank, and that rank's death."""
    may_close = threading.Event()
    try:
        path = stack.enter_context(slow_file(directory / "mount", may_close))
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
    code = f"import os; os.open({str(path)!r}, os.O_RDONLY); os.execv('/bin/sleep', ['sleep', '600'])"
    stuck = subprocess.Popen([sys.executable, "-S", "-c", code], user=AGENT)
    stack.callback(stuck.wait)
    stack.callback(stuck.kill)
    stack.callback(may_close.set)
    memory = Path(f"/proc/{stuck.pid}/statm")
    wait_until(lambda: memory.read_text().split()[3] == "0", 20.0, "a process without a text: in exec")
    rank = Held(agent, stack, "wait")
    rank.process.kill()
    agent.wait_for("rankwatch_rank_up", 0.0, seconds=10.0, job_id=rank.job_id)
    assert memory.read_text().split()[3] == "0"
