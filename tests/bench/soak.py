"""An hour of jobs that come, hang, die and go, before one agent with everything on; prints what grew.

    tests/e2e/isolated-python tests/bench/soak.py [MINUTES]

Each job has eight ranks; one in three ends in order, one loses a rank by SIGKILL, one hangs. A bundle of evidence may
be taken each minute, stacks are on. Once a minute: memory, descriptors, threads, series and CPU time of the agent and
its helpers. The slopes are those of a line through the second half.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

from agents import Agent  # noqa: E402  # after the change of the path
from jobs import SimulatedJob  # noqa: E402  # likewise

RANKS = 8
JOB_SECONDS = 100
ACTS: tuple[tuple[str, ...], ...] = (
    ("--duration", str(JOB_SECONDS - 20)),
    ("--kill", "3", "--kill-at", "30", "--teardown", "srun", "--grace", "15"),
    ("--stuck", "5", "--stuck-at-step", "300", "--duration", str(JOB_SECONDS - 20), "--grace", "10"),
)
AS_SHIPPED = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""As deploy/systemd/rankwatch.service has it."""
PY_SPY = Path(sys.executable).with_name("py-spy")


def sections(place: Path) -> dict[str, Any]:
    """What the agent is told: evidence often, stacks on, short silences."""
    return {
        "inspector": {"paths": [str(place / "inspector")], "reclaim": {"enabled": True, "delete_after_seconds": 60}},
        "evidence": {"path": str(place / "evidence"), "minutes_between": 1, "silence_seconds": 20},
        "stacks": {"enabled": True, "py_spy": str(PY_SPY), "silence_seconds": 20},
        "job_log": {"paths": [str(place / "*.out")]},
    }


def look(agent: Agent) -> dict[str, float]:
    """Return what the agent takes now."""
    process = psutil.Process(agent.pid())
    everybody = [process, *process.children(recursive=True)]
    lines = [line for line in agent.page().splitlines() if line and not line.startswith("#")]
    times = process.cpu_times()
    return {
        "agent MiB": process.memory_info().rss / 2**20,
        "helpers MiB": sum(each.memory_info().rss for each in everybody[1:]) / 2**20,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "series": len(lines),
        "CPU s": times.user + times.system + times.children_user + times.children_system,
        "bundles": agent.value("rankwatch_evidence_bundles") or 0,
        "stacks": agent.value("rankwatch_rank_stack_dumps_total", result="read") or 0,
    }


def slope(minutes: list[float], values: list[float]) -> float:
    """Return how much a value grows in an hour, by a line through its points."""
    return 60 * statistics.linear_regression(minutes, values).slope if len(values) > 2 else 0.0


def main(minutes: float) -> None:
    """Run, and print a line each minute and the slopes."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "inspector").mkdir()
        (place / "agent").mkdir()
        began = time.monotonic()
        found: list[dict[str, float]] = []
        with Agent(place / "agent", {"exporters": sections(place)}, env=AS_SHIPPED) as agent:
            number = 0
            while time.monotonic() - began < 60 * minutes:
                act = ACTS[number % len(ACTS)]
                number += 1
                options = ("--job-id", str(number), "--dump-dir", str(place / "inspector"), "--ranks", str(RANKS), *act)
                with SimulatedJob(place / f"job-{number}", "--scheduler", "slurm", *options) as job:
                    until = time.monotonic() + JOB_SECONDS
                    while time.monotonic() < until and (job.process.poll() is None or time.monotonic() < until - 60):
                        time.sleep(1.0)
                        if time.monotonic() - began >= 60 * len(found):
                            found.append({"minute": (time.monotonic() - began) / 60, **look(agent)})
                            print({key: round(value, 1) for key, value in found[-1].items()}, flush=True)
        half = found[len(found) // 2 :]
        at = [each["minute"] for each in half]
        for key in found[0]:
            values = [each[key] for each in half]
            middle, grows = statistics.median(values), slope(at, values)
            print(f"{key}: median {middle:.1f}, most {max(values):.1f}, {grows:+.1f} an hour")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
