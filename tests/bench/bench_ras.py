"""What asking RAS costs, by the size of the job; prints the table of docs/benchmarks.md. Needs root.

    .venv/bin/python tests/bench/bench_ras.py [RANKS...]

Each rank is a process with NVIDIA's RAS thread; eight of them, and the agent, are on one node (namespaces), all others
on a second one with an address for each eight. There are a world communicator, tensor-parallel groups of eight and
data-parallel ones across them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT)]

import psutil  # noqa: E402  # after the change of the path
from agents import Agent  # noqa: E402  # its folder is put on the path above
from clusters import Cluster, run_ip  # noqa: E402  # likewise
from nodes import Node, wait_until  # noqa: E402  # likewise
from ras_jobs import VERSION, WORLD, RasJob  # noqa: E402  # likewise

SIZES = (64, 256, 1024)
RANKS_PER_NODE = 8
QUERIES = 10
JOB = "bench"
FIRST_REPORT_SECONDS = 60.0
LONGEST_INTERVAL_SECONDS = 120.0


def machines(cluster: Cluster, nodes: int) -> list[tuple[str, Node]]:
    """The nodes' addresses: the first is the agent's, all others are on the second machine."""
    near, far = cluster.nodes
    run_ip(near.machine, "route", "add", "10.0.1.0/24", "dev", "eth0")
    addresses = [f"10.0.1.{number}" for number in range(1, nodes)]
    for address in addresses:
        run_ip(far.machine, "address", "add", f"{address}/32", "dev", "lo")
    return [(near.name, near.machine), *((address, far.machine) for address in addresses)]


def report_bytes(node: Node) -> int:
    """How long a report is."""
    with node.connect(28028, timeout=30.0) as client:
        client.sendall(b"SET FORMAT json\nSTATUS\n")
        length = -len("OK\n")
        while piece := client.recv(1 << 20):
            length += len(piece)
    return length


def processes_of(agent: Agent) -> list[psutil.Process]:
    """The agent and its helpers."""
    main = psutil.Process(agent.pid())
    return [main, *main.children(recursive=True)]


def cpu_seconds(agent: Agent) -> float:
    """The CPU time of the agent and its helpers, those that ended included."""
    total = 0.0
    for process in processes_of(agent):
        times = process.cpu_times()
        total += times.user + times.system
    ended = psutil.Process(agent.pid()).cpu_times()
    return total + ended.children_user + ended.children_system


def measure(ranks: int) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 2) as cluster:
        agent = cluster.nodes[0].agent
        places = machines(cluster, ranks // RANKS_PER_NODE)
        with RasJob(Path(folder), ranks, ranks_per_node=RANKS_PER_NODE, machines=places, job_id=JOB) as job:
            job.groups(RANKS_PER_NODE)
            labels = {"job_id": JOB, "comm": WORLD, "state": "responding"}
            agent.wait_for("rankwatch_communicator_ranks", ranks, seconds=FIRST_REPORT_SECONDS, **labels)
            return _row(ranks, agent, len(job.members), report_bytes(cluster.nodes[0].machine))


def _row(ranks: int, agent: Agent, communicators: int, length: int) -> str:
    durations: list[float] = []
    at: list[float] = []
    spent = 0.0
    for number in range(QUERIES + 1):
        before = agent.value("rankwatch_ras_query_duration_seconds")
        wait_until(
            lambda before=before: agent.value("rankwatch_ras_query_duration_seconds") != before,
            LONGEST_INTERVAL_SECONDS,
            "a query",
        )
        durations.append(agent.value("rankwatch_ras_query_duration_seconds") or 0.0)
        at.append(time.monotonic())
        if number == 0:
            spent = cpu_seconds(agent)
    took = at[-1] - at[0]
    share = (cpu_seconds(agent) - spent) / took
    memory = [process.memory_full_info().pss for process in processes_of(agent)]
    errors = sum(each.value for each in agent.samples("rankwatch_ras_query_errors_total"))
    p50, longest = statistics.median(durations), max(durations)
    cells = (
        f"{ranks:,}",
        str(communicators),
        f"{p50 * 1e3:.0f} ms, {longest * 1e3:.0f} ms",
        f"{length / 1e6:.2f} MB",
        f"{took / QUERIES:.0f} s",
        f"{share:.1%}",
        f"{memory[0] / 1e6:.0f} MB" + "".join(f" + {each / 1e6:.0f} MB" for each in memory[1:]),
        f"{errors:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    print(f"NCCL {VERSION}, {QUERIES + 1} queries each; load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    print("| ranks | communicators | query: p50, max | report | interval | agent's CPU | PSS, helper | failed |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for ranks in map(int, sys.argv[1:] or SIZES):
        print(measure(ranks), flush=True)


if __name__ == "__main__":
    main()
