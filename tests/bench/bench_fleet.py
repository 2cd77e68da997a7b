"""A thousand nodes of eight ranks, played by one process, in a real Prometheus with the shipped scrape jobs and rules.

.venv/bin/python tests/bench/bench_fleet.py

Prints the table of docs/benchmarks.md; needs root and Prometheus, takes minutes; run on a quiet machine.

The pages come from a real agent on one node of a simulated job, with eight GPUs (the stub of NVIDIA's library) and
eight NICs. Ranks, jobs, communicators and GPUs are renamed for each node, and counters grow at their recorded rate. The
first node of each job also has RAS series, recorded from a real job of that size."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/nvmlstub", "tests/unit", "tests/e2e", "tests/bench", ".")]

from bench_hardware import tree  # noqa: E402  # after the change of the path
from bench_ras import machines  # noqa: E402  # likewise
from clusters import Cluster, ClusterJob, Peculiarity  # noqa: E402  # likewise
from nodes import wait_until  # noqa: E402  # likewise
from nvml_stub import Node  # noqa: E402  # likewise
from ports import free_port  # noqa: E402  # likewise
from prometheus import Prometheus  # noqa: E402  # likewise
from ras_jobs import WORLD, RasJob  # noqa: E402  # likewise
from rules import DEPLOY, build_rules  # noqa: E402  # likewise

NODES = 1000
RANKS_PER_NODE = 8
NODES_PER_JOB = 16
PAGES = ("?collect[]=liveness", "?exclude[]=liveness")
"""The queries of the shipped scrape jobs: liveness, and the rest."""
WARM_UP_SECONDS = 40.0
"""Pause before the first of two scrapes; the two give the counters' rates."""
BETWEEN_SECONDS = 20.0
MINUTES = 7
"""Longer than the rules' windows of five minutes."""
FIRST_REPORT_SECONDS = 60.0
LIVENESS = "collect"
NOW = (
    "rankwatch_node_time_seconds",
    "rankwatch_rank_last_progress_timestamp_seconds",
    "rankwatch_ras_report_timestamp_seconds",
    "rankwatch_communicator_last_launch_timestamp_seconds",
)
"""Metrics whose values are times, and advance with the clock."""
EXPECTED = "rankwatch_job_expected_ranks"
_LINE = re.compile(r"^(?P<name>\w+)(?P<labels>\{.*\})? (?P<value>\S+)$")


class Recorded(NamedTuple):
    """Pages of recorded agents: a node's pages at two times, RAS series, and communicators within one node."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    ras: str
    local_comms: set[str]


class Place(NamedTuple):
    """A node's position: its job's number, its first rank, and the job's number of ranks."""

    job: int
    first_rank: int
    ranks: int


def place_of(node: int, large_job_nodes: int) -> Place:
    """Return a node's position: one job has the first ``large_job_nodes`` nodes, each other job has NODES_PER_JOB."""
    if node < large_job_nodes:
        return Place(0, node * RANKS_PER_NODE, large_job_nodes * RANKS_PER_NODE)
    number, within = divmod(node - large_job_nodes, NODES_PER_JOB)
    return Place(number + (large_job_nodes > 0), within * RANKS_PER_NODE, NODES_PER_JOB * RANKS_PER_NODE)


class Page(NamedTuple):
    """A node's page: the constant text, the growing counters (name with labels, value, rate), and the times."""

    still: str
    moving: list[tuple[str, float, float]]
    times: list[str]


def equip(folder: Path) -> dict[str, Any]:
    """Give a node eight GPUs and eight NICs."""
    (folder / "driver").mkdir()
    library = Node(folder / "driver").library
    return {"flags": ("--path.sysfs", str(tree(folder / "sys"))), "env": {"LD_LIBRARY_PATH": str(library.parent)}}


def record(folder: Path) -> Recorded:
    """Run a job on two nodes, then RAS of a whole job of the fleet; return the pages of the first node's agent."""
    (folder / "job").mkdir()
    (folder / "ras").mkdir()
    with (
        Cluster(folder / "job", 2, peculiar=dict.fromkeys(range(2), Peculiarity(equip=equip))) as cluster,
        ClusterJob(cluster, "base", cluster.nodes, 2 * RANKS_PER_NODE, "--tp", str(RANKS_PER_NODE)),
    ):
        agent = cluster.nodes[0].agent
        wait_until(lambda: len(agent.states()) == RANKS_PER_NODE, 30.0, "the job's ranks")
        time.sleep(WARM_UP_SECONDS)
        before = tuple(map(agent.page, PAGES))
        time.sleep(BETWEEN_SECONDS)
        after = tuple(map(agent.page, PAGES))
    info = re.findall(r"^rankwatch_communicator_info\{(.*)\}", "\n".join(after), re.MULTILINE)
    local = {re.search(r'comm="(\w+)"', comm_info)[1] for comm_info in info if 'nodes="1"' in comm_info}  # type: ignore[index]
    return Recorded(before, after, record_ras(folder / "ras"), local)


def record_ras(folder: Path) -> str:
    """Return the RAS series of a job of NODES_PER_JOB nodes, as its reporter exports them."""
    ranks = NODES_PER_JOB * RANKS_PER_NODE
    with Cluster(folder, 2) as cluster:
        agent = cluster.nodes[0].agent
        places = machines(cluster, NODES_PER_JOB)
        with RasJob(folder, ranks, ranks_per_node=RANKS_PER_NODE, machines=places, job_id="base") as job:
            job.groups(RANKS_PER_NODE)
            labels = {"job_id": "base", "comm": WORLD, "state": "responding"}
            agent.wait_for("rankwatch_communicator_ranks", ranks, seconds=FIRST_REPORT_SECONDS, **labels)
            page = agent.page("?collect[]=ras")
    return "\n".join(line for line in page.splitlines() if 'job_id="base"' in line)


def renamed(before: str, after: str, node: int, job_part: Place, local_comms: set[str]) -> Page:
    """Return the later page with another node's names, and its counters' rates."""
    job, first = job_part.job, job_part.first_rank

    def rename(match: re.Match[str]) -> str:
        label, value = match[1], match[2]
        if label == "job_id":
            return f'job_id="{value}{job}"'
        if label == "rank":
            return f'rank="{int(value) + first}"'
        if label == "uuid":
            return f'uuid="{value[:-6]}{node:06x}"'
        return f'comm="{value[:8]}{node if value in local_comms else job:06x}"' if value != "other" else match[0]

    earlier = {match["name"] + (match["labels"] or ""): float(match["value"]) for match in _lines(before)}
    page = Page("", [], [])
    still = []
    for match in _lines(after):
        series = match["name"] + re.sub(r'\b(job_id|rank|comm|uuid)="([^"]*)"', rename, match["labels"] or "")
        value = job_part.ranks if match["name"] == EXPECTED else float(match["value"])
        pace = (value - earlier.get(match["name"] + (match["labels"] or ""), value)) / BETWEEN_SECONDS
        if match["name"] in NOW:
            page.times.append(series)
        elif match["name"].endswith(("_total", "_start_age_seconds")) and pace > 0:
            page.moving.append((series, value, pace))
        else:
            still.append(f"{series} {value}\n")
    return page._replace(still="".join(still))


def _lines(page: str) -> Iterator[re.Match[str]]:
    return filter(None, map(_LINE.match, page.splitlines()))


def serve(recorded: Recorded, port: int, large_job_nodes: int) -> None:
    """Serve all nodes' pages, each at its own address. Only jobs of NODES_PER_JOB nodes have RAS series."""
    began = time.time()
    pages = {}
    for node in range(NODES):
        for number, (before, after) in enumerate(zip(recorded.before, recorded.after, strict=True)):
            job_part = place_of(node, large_job_nodes)
            asks = number == 1 and job_part.first_rank == 0 and job_part.ranks == NODES_PER_JOB * RANKS_PER_NODE
            page = f"{after}\n{recorded.ras}" if asks else after
            pages[address(node), number] = renamed(before, page, node, job_part, recorded.local_comms)

    def body(host: str, number: int) -> bytes:
        now = time.time()
        page, passed = pages[host, number], now - began
        moving = [f"{name} {value + pace * passed}\n" for name, value, pace in page.moving]
        return (page.still + "".join(moving) + "".join(f"{name} {now}\n" for name in page.times)).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                host = re.search(r"Host: ([\d.]+)", head)
                assert host is not None
                page = body(host[1], 0 if LIVENESS in head.split()[1] else 1)
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
    """Return a node's address in 127.0.0.0/8, which is this machine."""
    return f"127.1.{node // 250}.{node % 250 + 1}"


@contextmanager
def fleet(large_job_nodes: int = 0) -> Iterator[Prometheus]:
    """Start Prometheus with the shipped configuration, and serve the fleet's pages to it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "base").mkdir()
        recorded = record(folder / "base")
        port = free_port()
        arguments = (recorded, port, large_job_nodes)
        player = multiprocessing.get_context("spawn").Process(target=serve, args=arguments, daemon=True)
        player.start()
        try:
            targets = [{"targets": [f"{address(node)}:{port}"], "labels": {}} for node in range(NODES)]
            (folder / "targets.json").write_text(json.dumps(targets))
            shipped = (DEPLOY / "scrape" / "file_sd.yml").read_text()
            scrape = shipped.replace("/etc/prometheus/rankwatch/*.json", str(folder / "targets.json"))
            rules = build_rules(folder, {})
            config = f"global: {{evaluation_interval: 15s}}\nrule_files: ['{rules}/*.yml']\n{scrape}"
            own = free_port()
            config += (
                f"  - {{job_name: itself, scrape_interval: 5s, static_configs: [{{targets: ['127.0.0.1:{own}']}}]}}\n"
            )
            with Prometheus(folder / "prometheus", config, port=own) as prometheus:
                yield prometheus
        finally:
            player.terminate()
            player.join()


def measure_fleet() -> Iterator[tuple[str, str]]:
    """Run the fleet for MINUTES; yield the name and value of each measurement."""
    with fleet() as prometheus:
        began, cpu = time.time(), cpu_seconds(prometheus.pid)
        time.sleep(MINUTES * 60)
        cpu = (cpu_seconds(prometheus.pid) - cpu) / (time.time() - began)
        yield "Prometheus' CPU, mean", f"{cpu:.2f} cores"
        yield from figures(prometheus)


def figures(prometheus: Prometheus) -> Iterator[tuple[str, str]]:
    """Yield Prometheus's metrics about itself."""
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
    for group in sorted(prometheus.label_values("prometheus_rule_group_interval_seconds", "rule_group")):
        timing = {
            name: prometheus.value(expression.replace("$", f'{{rule_group="{group}"}}'))
            for name, expression in {
                "interval": "max(prometheus_rule_group_interval_seconds$)",
                "p90": "quantile_over_time(0.9, prometheus_rule_group_last_duration_seconds$[5m])",
                "missed": "increase(prometheus_rule_group_iterations_missed_total$[5m])",
            }.items()
        }
        yield (
            f"{group.rpartition(';')[2]}, every {timing['interval']:g} s",
            f"p90 {timing['p90']:.2f} s, missed {timing['missed'] or 0:.0f}; {slowest(prometheus, group)}",
        )
    firing = prometheus.query('count by (alertname) (ALERTS{alertstate="firing"})')
    yield "alerts firing", ", ".join(f"{fired['metric']['alertname']} {fired['value'][1]}" for fired in firing)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def slowest(prometheus: Prometheus, group: str) -> str:
    """Return the three slowest rules in a group's last evaluation."""
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/api/v1/rules") as answer:
        groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
    rules = [
        rule
        for group_rules in groups
        if group_rules["name"] == group.rpartition(";")[2]
        for rule in group_rules["rules"]
    ]
    longest = sorted(rules, key=lambda rule: -float(rule["evaluationTime"]))[:3]
    return ", ".join(f"{rule['name']} {rule['evaluationTime']:.2f} s" for rule in longest)


if __name__ == "__main__":
    print("| what | measured |\n|---|---|")
    for what, measured in measure_fleet():
        print(f"| {what} | {measured} |")
