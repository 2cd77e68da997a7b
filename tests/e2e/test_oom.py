"""The OOM killer, for real: a rank in a memory group that is too small for it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines import Machine
from nodes import wait_until

LIMIT_BYTES = 64 * 1024 * 1024
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

RANK = """
import pathlib, sys, threading
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
def stay():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
sys.stdin.readline()
hoard = []
while True:
    hoard.append(b"x" * (1 << 20))
"""


def own_group() -> tuple[Path, str] | None:
    """Return the directory of this process' memory group and the name of its limit; None without a controller."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return V1 / path.lstrip("/"), "memory.limit_in_bytes"
    if (V2 / "cgroup.controllers").exists() and "memory" in (V2 / "cgroup.subtree_control").read_text().split():
        return V2, "memory.max"  # groups beside the process' own: one that holds processes has no children of its own
    return None


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Provide a memory group of LIMIT_BYTES."""
    found = own_group()
    if found is None:
        pytest.skip("no memory controller for groups of our own")
    group = found[0] / f"rankwatch-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / found[1]).write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no memory group can be made: {error.strerror}")
    yield group

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError:  # busy until its last process is reaped
            return False
        return True

    wait_until(removed)


@pytest.fixture
def rank() -> Iterator[Callable[[str, Path, str], subprocess.Popen[str]]]:
    """Provide a way to start a rank of two of a job in a memory group; a line on its input makes it grow."""
    started: list[subprocess.Popen[str]] = []

    def start(number: str, group: Path, job_id: str) -> subprocess.Popen[str]:
        env = {**os.environ, "RANK": number, "WORLD_SIZE": "2", "SLURM_JOB_ID": job_id}
        command = [sys.executable, "-S", "-c", RANK, str(group)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("ioctl", [True, False])
def test_a_rank_that_the_oom_killer_took_is_dead_at_once(
    tmp_path: Path, small_group: Path, rank: Callable[[str, Path, str], subprocess.Popen[str]], ioctl: bool
) -> None:
    """SIGKILL by the OOM killer is not any SIGKILL: dead at once, its peer alive, and a SIGKILL later is another."""
    machine = Machine(tmp_path, ioctl=ioctl)
    victim, peer = (rank(number, small_group, machine.job_id) for number in "01")
    with machine.agent() as agent:
        agent.wait_for_states({"0": "alive", "1": "alive"})
        assert victim.stdin is not None
        victim.stdin.write("\n")
        victim.stdin.flush()
        agent.wait_for_states({"0": "dead", "1": "alive"})
        assert agent.ending("0") == ("oom_killed", "SIGKILL", "")
        assert victim.wait(5.0) == -9
        peer.kill()
        agent.wait_for_ending("1", ("signaled", "SIGKILL", ""))
