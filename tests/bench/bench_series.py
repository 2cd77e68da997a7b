"""Counts the series of one node with eight ranks, by exporter: eight GPUs (stub of NVIDIA's library) and eight NICs.

.venv/bin/python tests/bench/bench_series.py

The ranks are those of ``rankwatch simulate``, with Inspector's records; hardware and configuration are the defaults."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / place) for place in ("tests/nvmlstub", "tests/e2e", "tests/bench", ".")]

from agents import Agent  # noqa: E402  # after the change of the path
from bench_hardware import tree  # noqa: E402  # likewise
from jobs import SimulatedJob  # noqa: E402  # likewise
from nvml_stub import Node  # noqa: E402  # likewise

from agent.app.discovery import exporter_names, load_spec  # noqa: E402  # likewise
from agent.export import agent_families  # noqa: E402  # likewise
from agent.ranks import (  # noqa: E402  # likewise
    families as ranks,  # likewise
    health,
    liveness_families,
)

RANKS = 8
MOST_PER_RANK = 127
"""The goal for the defaults; tests/contract/test_series_of_a_node.py tests the part that needs no node."""
JOB = "series"
WARM_UP_SECONDS = 40.0
"""The GPUs are read every 10 s, and shares of clock reasons need two reads."""


def page() -> Counter[str]:
    """Return the number of the node's series by metric, without those of other jobs on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "driver").mkdir()
        (folder / "records").mkdir()
        env = {"LD_LIBRARY_PATH": str(Node(folder / "driver").library.parent)}
        exporters = {"inspector": {"paths": [str(folder / "records")]}}
        flags = ("--path.sysfs", str(tree(folder / "sys")))
        with Agent(folder, {"exporters": exporters}, flags=flags, env=env) as agent:
            options = ("--dump-dir", str(folder / "records"), "--scheduler", "slurm", "--job-id", JOB)
            with SimulatedJob(folder / "job", *options):
                time.sleep(WARM_UP_SECONDS)
                agent.page()  # the first page has no counts of the agent itself
                lines = agent.page().splitlines()
    shown = [line for line in lines if not line.startswith("#") and ("job_id=" not in line or f'"{JOB}"' in line)]
    return Counter(each.partition(" ")[0].partition("{")[0] for each in shown)


def owners() -> dict[str, str]:
    """Return the exporter of each metric."""
    found = {family.name: name for name in exporter_names() for family in load_spec(name).families}
    found |= {family.name: "nvml" for family in load_spec("nvml").families}  # nvml and amdgpu share some metrics
    tables = {
        "ranks": ranks.FAMILIES,
        "liveness": liveness_families.FAMILIES,
        "health": health.FAMILIES,
        "agent": agent_families.FAMILIES,
    }
    return found | {family.name: name for name, families in tables.items() for family in families}


def main() -> None:
    """Print the lines of docs/benchmarks.md, the distance to the goal, and the families with the most series."""
    metrics, whose = page(), owners()
    by_owner: Counter[str] = Counter()
    for metric, series in metrics.items():
        by_owner[whose[metric]] += series
    print("| owner | series | per rank |\n|---|---|---|")
    for owner, series in by_owner.most_common():
        print(f"| {owner} | {series} | {series / RANKS:.1f} |")
    per_rank = sum(metrics.values()) / RANKS
    print(f"| all | {sum(metrics.values())} | {per_rank:.1f} |")
    print(f"goal: {MOST_PER_RANK} per rank, {'kept' if per_rank <= MOST_PER_RANK else 'MISSED'}")
    for metric, series in metrics.most_common():
        print(f"{series:6} {metric}")


if __name__ == "__main__":
    main()
