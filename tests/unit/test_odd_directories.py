"""What a job's user can do with names of directories."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from rank_table import environment, facts

from agent.app.supervisor import Supervisor
from agent.core.checkpoint import StateFile
from agent.core.log import Logger
from agent.ranks.writer import RankWriter
from agent.sdk.exporter import Roots
from agent.sdk.system import ProcFS


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """The working directory of a process, as ProcFS has it; its name is not UTF-8."""
    odd = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(odd)
    process = subprocess.Popen([sys.executable, "-c", "input()"], cwd=odd, stdin=subprocess.PIPE)
    try:
        return ProcFS(Path("/proc")).directory(process.pid)
    finally:
        process.communicate(b"\n")


async def test_a_working_directory_that_is_no_text_ends_no_tick(tmp_path: Path, directory: str) -> None:
    """A rank whose working directory has a name that is not UTF-8 does not end the supervisor's loop."""
    supervisor = Supervisor(FakeClock(), "here", Roots(), StateFile(tmp_path / "checkpoint", "boot", Logger("test")))
    odd = msgspec.structs.replace(facts(10, environment(0)), directory=directory)
    RankWriter(supervisor.ranks, "process").observe_process(odd)
    beat = asyncio.Event()
    run = asyncio.create_task(supervisor.run(beat))
    await asyncio.wait({run}, timeout=0.3)
    over = run.done()
    if over:
        raise AssertionError(f"the loop ended: {run.exception()!r}")
    run.cancel()
