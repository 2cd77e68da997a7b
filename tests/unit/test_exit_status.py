"""The exit status of real processes that are not children of the agent, read from /proc and from a pidfd."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sdk.ranks import ExitStatus, ProcessKey
from agent.sdk.system import ProcFS
from exporters.process.exits import from_pidfd, from_zombie

PROC = ProcFS(Path("/proc"))
ENDS = [("os._exit(0)", 0, 0), ("os._exit(3)", 0, 3), ("os.kill(os.getpid(), 9)", signal.SIGKILL, 0)]


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Provide a child that has exited as the parameter says, and is not yet reaped."""
    process = subprocess.Popen([sys.executable, "-S", "-c", f"import os; {request.param}"])
    while (stat := PROC.stat(process.pid)) is not None and stat.state != "Z":
        time.sleep(0.001)
    yield process
    process.wait()


def key_of(process: subprocess.Popen[bytes]) -> ProcessKey:
    """Return the key of an existing process."""
    stat = PROC.stat(process.pid)
    return stat.key


@pytest.mark.parametrize(("child", "number", "code"), ENDS, indirect=["child"])
def test_zombie(child: subprocess.Popen[bytes], number: int, code: int) -> None:
    """With ptrace permission, /proc gives a zombie's status; after reaping or reuse of the pid it does not."""
    key = key_of(child)
    assert from_zombie(PROC, key, may_ptrace=True) == ExitStatus(known=True, signal=number, code=code)
    assert from_zombie(PROC, key, may_ptrace=False) is None
    assert from_zombie(PROC, key._replace(start_ticks=1), may_ptrace=True) is None
    child.wait()
    assert from_zombie(PROC, key, may_ptrace=True) is None


@pytest.mark.parametrize(("child", "number", "code"), ENDS, indirect=["child"])
def test_pidfd(child: subprocess.Popen[bytes], number: int, code: int) -> None:
    """After reaping, a pidfd gives the status; before kernel 6.15 it gives None."""
    pidfd = os.pidfd_open(child.pid)
    try:
        before = from_pidfd(pidfd)
        child.wait()
        after = from_pidfd(pidfd)
    finally:
        os.close(pidfd)
    expected = ExitStatus(known=True, signal=number, code=code)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert before in (None, expected)
    assert after == (expected if release >= (6, 15) else None)


def test_running_process_has_no_status() -> None:
    """A running process has no status in /proc."""
    assert from_zombie(PROC, PROC.stat(os.getpid()).key, may_ptrace=True) is None
