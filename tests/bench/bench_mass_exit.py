"""Measures how long the event loop is held when all ranks of a node are killed at once; prints a table.

.venv/bin/python tests/bench/bench_mass_exit.py [--ranks 1024] [--jobs 1] [--signal SIGKILL] [--runs 3]

The ranks are real processes (`sleep` with the name of an NCCL thread) in one process group, which one call kills.
Supervisor, rank table and process exporter run in this process, on a loop whose selector measures each iteration: from
the return of one select to the call of the next. The script exits with status 1 if a run holds the loop for 0.3 s or
more in total."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agent.app.daemon import SWITCH_INTERVAL_SECONDS  # noqa: E402
from agent.app.discovery import ExporterPlan, Prepared  # noqa: E402
from agent.app.supervisor import Supervisor  # noqa: E402
from agent.core.checkpoint import StateFile  # noqa: E402
from agent.core.clock import Clock  # noqa: E402
from agent.core.log import Logger  # noqa: E402
from agent.sdk.exporter import Roots  # noqa: E402  # likewise
from exporters.process import SPEC, ProcessConfig  # noqa: E402

GOAL_SECONDS = 0.3
FOUND_SECONDS = 120.0
SETTLE_SECONDS = 5.0
"""The loop's normal load is measured for this long before the kill, and subtracted."""
LEFT_SECONDS = 120.0

# One process group for all ranks; the launcher is outside, and reaps them as they end.
LAUNCHER = """
import os, sys
program, ranks, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
group = 0
for number in range(ranks):
    job, rank = divmod(number, -(-ranks // jobs))
    env = {"RANK": str(rank), "WORLD_SIZE": str(-(-ranks // jobs)), "SLURM_JOB_ID": str(4711 + job)}
    pid = os.posix_spawn(program, ["sleep", "3600"], env, setpgroup=group)
    group = group or pid
print(group, flush=True)
for _ in range(ranks):
    os.wait()
"""


class TimedSelector(selectors.DefaultSelector):
    """Adds up the time that the loop spends outside of select, in which nothing else can run."""

    def __init__(self) -> None:
        super().__init__()
        self._returned_at = time.monotonic()
        self.reset()

    def reset(self) -> None:
        """Start at zero."""
        self.held_seconds = self.longest_seconds = 0.0
        self.iterations = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Add the time since the last return, then select."""
        held = time.monotonic() - self._returned_at
        self.held_seconds += held
        self.longest_seconds = max(self.longest_seconds, held)
        self.iterations += 1
        found = super().select(timeout)
        self._returned_at = time.monotonic()
        return found


async def measured(group: int, number: int, ranks: int, selector: TimedSelector) -> dict[str, float]:
    """Kill the group once all ranks are in the table; return the loop's busy times until all statuses are known."""
    state = StateFile(None, "", Logger("checkpoint"))
    supervisor = Supervisor(Clock(), "bench", Roots(), state)
    await supervisor.begin(ExporterPlan({"process": Prepared(SPEC, ProcessConfig())}, ()))
    ticks = asyncio.create_task(supervisor.run(asyncio.Event()))

    def left() -> tuple[int, int]:
        views = supervisor.ranks.snapshot().ranks
        return len(views), sum(view.process.exit is not None for view in views)

    await until(lambda: left()[0] == ranks, FOUND_SECONDS)
    await asyncio.sleep(1.0)
    selector.reset()
    cpu = time.thread_time()
    await asyncio.sleep(SETTLE_SECONDS)
    idle_share, idle_cpu_share = selector.held_seconds / SETTLE_SECONDS, (time.thread_time() - cpu) / SETTLE_SECONDS
    selector.reset()
    began, began_seconds, cpu = time.monotonic(), time.time(), time.thread_time()
    os.killpg(group, number)
    # Polling uses the loop as well, so it is rare.
    await until(lambda: left()[1] == ranks, LEFT_SECONDS, pause_seconds=1.0)
    took, used = time.monotonic() - began, time.thread_time() - cpu
    views = supervisor.ranks.snapshot().ranks
    delays = sorted(view.process.exited_seconds - began_seconds for view in views)
    ticks.cancel()
    await asyncio.gather(ticks, return_exceptions=True)
    await supervisor.stop()
    return {
        "held": selector.held_seconds - idle_share * took,
        "longest": selector.longest_seconds,
        "cpu": used - idle_cpu_share * took,
        "iterations": selector.iterations,
        "last_exit": delays[-1],
        "states": len({view.process.verdict.state for view in views if view.process.verdict}),
    }


async def until(condition: Any, seconds: float, pause_seconds: float = 0.5) -> None:
    """Wait for a condition; raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(pause_seconds)


def run(program: Path, ranks: int, jobs: int, number: int) -> dict[str, float]:
    """Run once, with new ranks."""
    command = [sys.executable, "-S", "-c", LAUNCHER, str(program), str(ranks), str(jobs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        group = int(launcher.stdout.readline())
        try:
            selector = TimedSelector()
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
                return runner.run(measured(group, number, ranks, selector))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def main() -> int:
    """Print one line for each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sleep = shutil.which("sleep")
    assert sleep is not None
    worst = 0.0
    print("| ranks | jobs | loop held, in all | longest | CPU of the loop's thread | last exit noted after | load |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "NCCL RAS")
        program.symlink_to(sleep)
        for _ in range(options.runs):
            load = os.getloadavg()[0]
            done = run(program, options.ranks, options.jobs, signal.Signals[options.signal])
            worst = max(worst, done["held"])
            print(
                f"| {options.ranks} | {options.jobs} | {done['held']:.3f} s | {done['longest'] * 1e3:.0f} ms "
                f"| {done['cpu']:.3f} s | {done['last_exit']:.2f} s | {load:.1f} |",
                flush=True,
            )
    return int(worst >= GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
