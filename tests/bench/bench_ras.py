"""Measures the cost of RAS queries by the size of the job; prints the table of docs/benchmarks.md. Needs root.

.venv/bin/python tests/bench/bench_ras.py [RANKS...]

Each rank is a process with NVIDIA's RAS thread. Eight ranks and the agent are on one node (namespaces), all other ranks
on a second node, eight per address. The communicators are a world, tensor-parallel groups of eight, and data-parallel
groups across them."""

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
from nodes import Node  # noqa: E402  # likewise
from ras_jobs import VERSION, WORLD, RasJob  # noqa: E402  # likewise

SIZES = (64, 256, 1024)
RANKS_PER_NODE = 8
QUERIES = 12
PAUSE_SECONDS = 2.0
OWN_QUERIES = 5
OWN_SECONDS = 60.0
"""The agent's own queries are measured until OWN_QUERIES queries or OWN_SECONDS, and at least one is."""
JOB = "bench"
FIRST_REPORT_SECONDS = 60.0


def machines(cluster: Cluster, nodes: int) -> list[tuple[str, Node]]:
    """Return the nodes' addresses: the first is the agent's, all others are on the second machine."""
    near, far = cluster.nodes
    run_ip(near.machine, "route", "add", "10.0.1.0/24", "dev", "eth0")
    addresses = [f"10.0.1.{number}" for number in range(1, nodes)]
    for address in addresses:
        run_ip(far.machine, "address", "add", f"{address}/32", "dev", "lo")
    return [(near.name, near.machine), *((address, far.machine) for address in addresses)]


def query(node: Node) -> tuple[float, int]:
    """Query as the agent does; return the seconds from the command to the report's end, and its bytes."""
    with node.connect(28028, timeout=30.0) as client:
        client.sendall(b"SET FORMAT json\n")
        assert client.recv(100) == b"OK\n"
        began, length = time.monotonic(), 0
        client.sendall(b"STATUS\n")
        while piece := client.recv(1 << 20):
            length += len(piece)
        return time.monotonic() - began, length


def processes_of(agent: Agent) -> list[psutil.Process]:
    """Return the agent and its helpers."""
    main = psutil.Process(agent.pid())
    return [main, *main.children(recursive=True)]


def cpu_seconds(agent: Agent) -> float:
    """Return the CPU time of the agent and its helpers, ended helpers included."""
    total = 0.0
    for process in processes_of(agent):
        times = process.cpu_times()
        total += times.user + times.system
    ended = psutil.Process(agent.pid()).cpu_times()
    return total + ended.children_user + ended.children_system


def measure(ranks: int) -> str:
    """Measure one row of the table."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), 2) as cluster:
        agent = cluster.nodes[0].agent
        places = machines(cluster, ranks // RANKS_PER_NODE)
        with RasJob(Path(folder), ranks, ranks_per_node=RANKS_PER_NODE, machines=places, job_id=JOB) as job:
            job.groups(RANKS_PER_NODE)
            labels = {"job_id": JOB, "comm": WORLD, "state": "responding"}
            agent.wait_for("rankwatch_communicator_ranks", ranks, seconds=FIRST_REPORT_SECONDS, **labels)
            asked = []
            for _ in range(QUERIES):
                asked.append(query(cluster.nodes[0].machine))
                time.sleep(PAUSE_SECONDS)
            seconds, lengths = zip(*asked, strict=True)
            latency = f"{statistics.median(seconds) * 1e3:.0f} ms, {max(seconds) * 1e3:.0f} ms"
            return "| ".join(
                ("", f"{ranks:,} ", f"{len(job.members)} ", f"{latency} ", f"{lengths[-1] / 1e6:.2f} MB ", own(agent))
            )


def own(agent: Agent) -> str:
    """Measure the agent's own queries: interval, CPU and memory, failures."""
    wait_for_query(agent)
    began, spent, queries = time.monotonic(), cpu_seconds(agent), 0
    while queries < OWN_QUERIES and time.monotonic() < began + OWN_SECONDS:
        wait_for_query(agent)
        queries += 1
    took = time.monotonic() - began
    share = (cpu_seconds(agent) - spent) / took
    memory = [process.memory_full_info().pss / 1e6 for process in processes_of(agent)]
    failed = sum(sample.value for sample in agent.samples("rankwatch_ras_query_errors_total"))
    shown = " + ".join(f"{each:.0f} MB" for each in memory)
    return f"{took / queries:.0f} s | {share:.1%} | {shown} | {failed:.0f} |"


def wait_for_query(agent: Agent) -> None:
    """Wait until the agent has queried once more."""
    before = agent.value("rankwatch_ras_report_timestamp_seconds")
    while agent.value("rankwatch_ras_report_timestamp_seconds") == before:
        time.sleep(0.5)


def main() -> None:
    """Print the table."""
    print(f"NCCL {VERSION}, {QUERIES} queries each; load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    print("| ranks | communicators | query: p50, max | report | own interval | agent's CPU | PSS + helper | failed |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for ranks in map(int, sys.argv[1:] or SIZES):
        print(measure(ranks), flush=True)


if __name__ == "__main__":
    main()
