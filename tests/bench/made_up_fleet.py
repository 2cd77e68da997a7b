"""A thousand nodes of eight ranks that one process plays, in a real Prometheus with the shipped scrape jobs and rules.

The pages are those of a real agent on one node of a simulated job, with ranks, jobs and communicators renamed for each
node, and counters that go on at the pace they had.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agents import free_port
from clusters import Cluster, ClusterJob
from nodes import wait_until
from prometheus import Prometheus
from watches import DEPLOY, build_rules

NODES = 1000
RANKS_PER_NODE = 8
NODES_PER_JOB = 16
RECORDED_SECONDS = 40.0
"""How old the counters on the recorded pages are."""
MINUTES = 7
"""Longer than the rules' windows of five minutes."""
LIVENESS = "collect"
_LINE = re.compile(r"^(?P<name>\w+)(?P<labels>\{.*\})? (?P<value>\S+)$")


class Recorded(NamedTuple):
    """What an agent showed: the liveness page, the other one, and the communicators that are its node's alone."""

    liveness: str
    other: str
    local_comms: set[str]


def record(folder: Path) -> Recorded:
    """Run a job on two nodes; return the first one's pages."""
    with (
        Cluster(folder, 2) as cluster,
        ClusterJob(cluster, "base", cluster.nodes, 2 * RANKS_PER_NODE, "--tp", str(RANKS_PER_NODE)),
    ):
        agent = cluster.nodes[0].agent
        wait_until(lambda: len(agent.states()) == RANKS_PER_NODE, 30.0, "the job's ranks")
        time.sleep(RECORDED_SECONDS)
        liveness = agent.page("?collect[]=ranks&collect[]=process&collect[]=health")
        other = agent.page("?exclude[]=ranks&exclude[]=process&exclude[]=health")
    info = re.findall(r"^rankwatch_communicator_info\{(.*)\}", liveness, re.MULTILINE)
    local = {re.search(r'comm="(\w+)"', each)[1] for each in info if 'nodes="1"' in each}  # type: ignore[index]
    return Recorded(liveness, other, local)


def renamed(page: str, node: int, local_comms: set[str]) -> list[tuple[str, float, str]]:
    """Return a node's lines: name with labels, value, and how it goes on (``counter``, ``now`` or nothing)."""
    job, first = node // NODES_PER_JOB, node % NODES_PER_JOB * RANKS_PER_NODE

    def rename(match: re.Match[str]) -> str:
        label, value = match[1], match[2]
        if label == "job_id":
            return f'job_id="{value}{job}"'
        if label == "rank":
            return f'rank="{int(value) + first}"'
        return f'comm="{value[:8]}{node if value in local_comms else job:06x}"' if value != "other" else match[0]

    lines = []
    for match in map(_LINE.match, page.splitlines()):
        if match is not None:
            labels = re.sub(r'\b(job_id|rank|comm)="([^"]*)"', rename, match["labels"] or "")
            is_now = "last_progress" in match["name"] or match["name"] == "rankwatch_node_time_seconds"
            kind = "counter" if match["name"].endswith("_total") else "now" if is_now else ""
            lines.append((match["name"] + labels, float(match["value"]), kind))
    return lines


def serve(recorded: Recorded, port: int) -> None:
    """Play all nodes; each has an address of its own."""
    began = time.time()
    pages = {
        (address(node), query): renamed(page, node, recorded.local_comms)
        for node in range(NODES)
        for query, page in ((True, recorded.liveness), (False, recorded.other))
    }

    def body(host: str, is_liveness: bool) -> bytes:
        now = time.time()
        factor = 1.0 + (now - began) / RECORDED_SECONDS
        parts = []
        for name, value, kind in pages[host, is_liveness]:
            parts.append(f"{name} {value * factor if kind == 'counter' else now if kind == 'now' else value!r}\n")
        return "".join(parts).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                host = re.search(r"Host: ([\d.]+)", head)
                assert host is not None
                page = body(host[1], LIVENESS in head.split()[1])
                kind = b"Content-Type: text/plain; version=0.0.4\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"Content-Length: %d\r\n\r\n" % len(page) + page)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "0.0.0.0", port, backlog=4096)  # noqa: S104
        await server.serve_forever()

    asyncio.run(run())


def address(node: int) -> str:
    """Return a node's address: all of 127.0.0.0/8 is this machine."""
    return f"127.1.{node // 250}.{node % 250 + 1}"


def measure_fleet() -> Iterator[tuple[str, str]]:
    """Run it for MINUTES; yield what was measured, and how much."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "base").mkdir()
        recorded = record(folder / "base")
        port = free_port()
        player = multiprocessing.get_context("spawn").Process(target=serve, args=(recorded, port), daemon=True)
        player.start()
        try:
            targets = [{"targets": [f"{address(node)}:{port}"], "labels": {}} for node in range(NODES)]
            (folder / "targets.json").write_text(json.dumps(targets))
            shipped = (DEPLOY / "scrape" / "file_sd.yml").read_text()
            scrape = shipped.replace("/etc/prometheus/rankwatch/*.json", str(folder / "targets.json"))
            rules = build_rules(folder, {}, {})
            config = f"global: {{evaluation_interval: 15s}}\nrule_files: ['{rules}/*.yml']\n{scrape}"
            with Prometheus(folder / "prometheus", config) as prometheus:
                began, cpu = time.time(), cpu_seconds(prometheus.pid)
                time.sleep(MINUTES * 60)
                cpu = (cpu_seconds(prometheus.pid) - cpu) / (time.time() - began)
                yield "Prometheus' CPU, mean", f"{cpu:.2f} cores"
                yield from figures(prometheus)
        finally:
            player.terminate()
            player.join()


def figures(prometheus: Prometheus) -> Iterator[tuple[str, str]]:
    """Yield what Prometheus tells of itself."""
    status = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB", Path(f"/proc/{prometheus.pid}/status").read_text(), re.MULTILINE))
    yield (
        "Prometheus' memory (RSS, and its peak)",
        f"{int(status['VmRSS']) / 2**20:.2f}, {int(status['VmHWM']) / 2**20:.2f} GiB",
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/metrics") as answer:
        own = dict(re.findall(r"^(prometheus_tsdb_head_series) (\S+)$", answer.read().decode(), re.MULTILINE))
    yield "series in its head", f"{float(own['prometheus_tsdb_head_series']):,.0f}"
    for job in ("rankwatch-liveness", "rankwatch"):
        up, down = (prometheus.value(f'count(up{{job="{job}"}} == {value})') or 0 for value in (1, 0))
        samples = prometheus.value(f'avg(scrape_samples_scraped{{job="{job}"}})') or 0
        yield f"targets of {job}: up, failing, samples a scrape", f"{up:.0f}, {down:.0f}, {samples:.0f}"
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/api/v1/rules") as answer:
        groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
    for group in groups:
        slowest = max(group["rules"], key=lambda rule: rule["evaluationTime"])
        yield (
            f"{group['name']}, every {group['interval']:g} s",
            f"{group['evaluationTime']:.2f} s, of it {slowest['name']} {slowest['evaluationTime']:.2f} s",
        )
    firing = prometheus.query('count by (alertname) (ALERTS{alertstate="firing"})')
    yield "alerts firing", ", ".join(f"{each['metric']['alertname']} {each['value'][1]}" for each in firing)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0
