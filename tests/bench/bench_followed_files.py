"""Measures the agent's cost on a node with 1,024 rank processes of 5 users; prints a line of docs/benchmarks.md.

.venv/bin/python tests/bench/bench_followed_files.py

Needs root (users). The processes sleep under the name of one of NCCL's threads; each user has one job."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e")]

import psutil  # noqa: E402  # after the change of the path
from agents import Agent  # noqa: E402  # likewise
from nodes import wait_until  # noqa: E402  # likewise

PROCESSES, USERS = 1024, 5
SETTLE_SECONDS, MEASURE_SECONDS = 75.0, 30.0


def crowd(folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start the processes, users in turn."""
    name = folder / "NCCL sleep"
    name.symlink_to("/bin/sleep")
    found = []
    for number in range(PROCESSES):
        uid, rank = 3000 + number % USERS, number // USERS
        env = {"SLURM_JOB_ID": str(uid), "RANK": str(rank), "WORLD_SIZE": str(PROCESSES // USERS + 1)}
        argv = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", str(name), "900"]
        found.append(subprocess.Popen(argv, env={**env, "MASTER_ADDR": "a", "MASTER_PORT": str(uid)}))
    return found


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        sleeping = crowd(Path(path))
        try:
            home = Path(path) / "agent"
            home.mkdir()
            with Agent(home, {"exporters": {}}) as agent:
                began = time.monotonic()
                up = "rankwatch_rank_up"
                wait_until(lambda: len(agent.samples(up)) == PROCESSES, 60.0, "all ranks")
                found = time.monotonic() - began
                worst = agent.value("rankwatch_event_loop_lag_seconds") or 0.0
                time.sleep(SETTLE_SECONDS)
                measured = psutil.Process(agent.pid())
                before = sum(measured.cpu_times()[:2])
                time.sleep(MEASURE_SECONDS)
                share = (sum(measured.cpu_times()[:2]) - before) / MEASURE_SECONDS
                lag = agent.value("rankwatch_event_loop_lag_seconds") or 0.0
        finally:
            for process in sleeping:
                process.kill()
                process.wait()
    print(  # the result
        f"{PROCESSES} ranks of {USERS} users: all shown after {found:.1f} s (lag of the loop {worst * 1000:.0f} ms), "
        f"then {share:.1%} of a core, lag of the loop {lag * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
