"""The default number of series of a node with eight ranks, as far as it can be counted without hardware and processes.

The test counts inspector (a simulated job's records), nvml (the stub of NVIDIA's library), rdma, netdev and kernel_log
(recorded trees), and the agent's own series. The other numbers come from docs/benchmarks.md, where
tests/bench/bench_series.py counts all series on a node."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from pathlib import Path

import nvml_stub
import psutil
from bench import DATA, HOSTNAME, Bench

from agent.app.discovery import exporter_names, load_spec
from agent.export.agent_families import ExporterStatus, SelfSnapshot, families
from agent.export.registry import SourceCounts
from agent.simulate.layout import make_layout
from agent.simulate.writer import CommunicatorLog, InspectorFile, SimulatedRecord

ROOT = Path(__file__).parents[2]
RANKS = 8
TP = 4
MOST_PER_RANK = 134
NOT_COUNTED = {"ranks": 92, "health": 23, "process": 55}
"""Series by exporter (docs/benchmarks.md), for ranks with data loaders and page faults, and groups with pressure."""
ABSENT = ("amdgpu", "flight_recorder", "inspector_prom", "madengine", "nixl_ep", "nvrx", "ras", "storage")
"""Exporters without a source on the node."""
CALLED = {"flight_recorder": None, "inspector_prom": None, "nvml": True, "nvrx": None, "ras": None, "storage": None}
"""Whether each exporter's helper was called."""
ASKED = re.compile(r"\brankwatch_[a-z0-9_]+\b")


def write_records(directory: Path) -> None:
    """Write the Inspector files of one step of a simulated job, a process per rank."""
    layout = make_layout(RANKS, hosts=1, tp=TP, job_id="job", seed=0)
    for rank in range(RANKS):
        logs = {comm.kind: CommunicatorLog(comm, rank) for comm in layout.of(rank)}
        numbers: Counter[tuple[str, str]] = Counter()
        for kind, collective, size in layout.step:
            logs[kind].add(SimulatedRecord(collective, numbers[kind, collective], size, kernel_us=100 + 10 * rank))
            numbers[kind, collective] += 1
        file = InspectorFile(str(directory), HOSTNAME, 100 + rank)
        file.dump(list(logs.values()))
        file.close()


def make_devices(sys_root: Path) -> None:
    """Copy the recorded ConnectX and a network device once for each rank."""
    rdma, net = DATA / "rdma/sys/class/infiniband/mlx5_0", DATA / "netdev/sys/class/net/ens1f0np0"
    for number in range(RANKS):
        shutil.copytree(rdma, sys_root / f"class/infiniband/mlx5_{number}", ignore=shutil.ignore_patterns("device"))
        shutil.copytree(net, sys_root / f"class/net/ens{number}np0", symlinks=True)


def shown(name: str, root: Path, section: str = "enabled: auto") -> int:
    """Return the number of an exporter's series on ``root`` after its second update."""

    async def look() -> int:
        bench = Bench(name, root, section)
        await bench.look()
        await bench.exporter.update()
        series = sum(len(metric.labels) for metric in bench.families(bench.exporter.snapshot()))
        await bench.end()
        return series

    return asyncio.run(look())


def agents_own(series: dict[str, int]) -> int:
    """Return the number of the agent's own series, given the number of each source's series."""
    exporters = (ExporterStatus(name, up=True, present=name not in ABSENT) for name in exporter_names())
    snapshot = SelfSnapshot(
        age_seconds=90.0,
        exporters=tuple(exporters),
        counts={name: SourceCounts(count) for name, count in [*series.items(), ("agent", 1)]},
        refused=0,
        helpers={name: (called, {}) for name, called in CALLED.items() if called is not None},
        loop_lag_seconds=0.0,
        reload_ok=True,
        save_errors=0,
    )
    return sum(len(metric.labels) for metric in families(snapshot, psutil.Process()))


def test_a_node_stays_within_its_series_per_rank(tmp_path: Path) -> None:
    """A node with eight ranks, GPUs, NICs and network devices stays within the limit of series."""
    (tmp_path / "records").mkdir()
    write_records(tmp_path / "records")
    make_devices(tmp_path / "sys")
    node = nvml_stub.Node(tmp_path)
    series = {
        "inspector": shown("inspector", tmp_path, f"paths: ['{tmp_path / 'records'}']"),
        "nvml": shown("nvml", tmp_path, f"library: '{node.library}'"),
        "rdma": shown("rdma", tmp_path),
        "netdev": shown("netdev", tmp_path),
        "kernel_log": shown("kernel_log", DATA / "kernel_log", (DATA / "kernel_log/section.yml").read_text()),
        **NOT_COUNTED,
    }
    series["agent"] = agents_own(series)
    assert min(series.values()) > 0
    assert sum(series.values()) <= MOST_PER_RANK * RANKS, series


def test_what_rules_and_dashboards_ask_for_is_shown_by_default() -> None:
    """Rules and dashboards read only metrics that are exported by default."""
    files = [*ROOT.glob("deploy/prometheus/rules/*.yml"), *ROOT.glob("grafana/dashboards/*.json")]
    asked = {name for path in files for name in ASKED.findall(path.read_text())}
    if_asked = {
        family.name for name in exporter_names() for family in load_spec(name).families if "only with" in family.cost
    }
    assert if_asked
    assert if_asked & asked == set()
