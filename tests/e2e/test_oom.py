"""The real OOM killer: a rank in a memory group that is too small for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import memory_groups
import pytest
from machines import Machine


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Provide a memory group that is too small."""
    try:
        with memory_groups.small_group() as group:
            yield group
    except memory_groups.NoMemoryGroupError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def rank() -> Iterator[Callable[[str, Path, str], subprocess.Popen[str]]]:
    """Provide a function that starts one of a job's two ranks in a memory group; the test lets the rank grow."""
    started: list[subprocess.Popen[str]] = []

    def start(number: str, group: Path, job_id: str) -> subprocess.Popen[str]:
        env = {**os.environ, "RANK": number, "WORLD_SIZE": "2", "SLURM_JOB_ID": job_id}
        command = [sys.executable, "-S", "-c", memory_groups.RANK, str(group)]
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
    """A rank that the OOM killer ends is dead at once; a later SIGKILL is not an OOM kill."""
    machine = Machine(tmp_path, ioctl=ioctl)
    victim, peer = (rank(number, small_group, machine.job_id) for number in "01")
    with machine.agent() as agent:
        agent.wait_for_states({"0": "alive", "1": "alive"})
        assert victim.stdin is not None
        victim.stdin.write("grow\n")
        victim.stdin.flush()
        agent.wait_for_states({"0": "dead", "1": "alive"})
        assert agent.ending("0") == ("oom_killed", "SIGKILL", "")
        assert victim.wait(5.0) == -9
        peer.kill()
        agent.wait_for_ending("1", ("signaled", "SIGKILL", ""))
