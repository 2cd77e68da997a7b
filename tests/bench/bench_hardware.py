"""Measures the cost of the hardware exporters: eight GPUs (a stub of NVIDIA's library), eight NICs, kernel log,
storage.

.venv/bin/python tests/bench/bench_hardware.py [SECONDS]

Runs two agents, one after the other: one with every hardware exporter and one with none. The difference is the cost,
helpers included, but without the driver's own time, because the stub returns at once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / place) for place in ("tests/nvmlstub", "tests/e2e", ".")]

import psutil  # noqa: E402  # after the change of the path
from agents import Agent  # noqa: E402  # its folder is put on the path above
from nvml_stub import Node  # noqa: E402  # likewise

NICS = 8
HARDWARE = ("nvml", "rdma", "netdev", "kernel_log", "storage")
OTHERS = ("amdgpu", "inspector", "process", "ras")
WARM_UP_SECONDS = 25.0


def tree(root: Path) -> Path:
    """Make a sysfs with eight copies of the recorded ConnectX and as many network devices."""
    rdma, net = ROOT / "tests/data/rdma/sys/class/infiniband/mlx5_0", ROOT / "tests/data/netdev/sys/class/net/ens1f0np0"
    for number in range(NICS):
        shutil.copytree(rdma, root / f"class/infiniband/mlx5_{number}", ignore=shutil.ignore_patterns("device"))
        shutil.copytree(net, root / f"class/net/ens{number}np0", symlinks=True)
    return root


def measured(directory: Path, enabled: bool, seconds: float) -> tuple[float, float, int]:
    """Return CPU seconds per second, PSS in MB, and series of an agent and its helpers."""
    (directory / "driver").mkdir(parents=True)
    node = Node(directory / "driver")
    exporters: dict[str, dict[str, object]] = {name: {"enabled": enabled} for name in HARDWARE} | {
        name: {"enabled": False} for name in OTHERS
    }
    if enabled:
        exporters["storage"] = {"enabled": True, "paths": [str(directory)]}
    flags = ("--path.sysfs", str(tree(directory / "sys")))
    env = {"LD_LIBRARY_PATH": str(node.library.parent)}
    with Agent(directory, {"exporters": exporters}, flags=flags, env=env) as agent:
        time.sleep(WARM_UP_SECONDS)
        family = psutil.Process(agent.pid())
        processes = [family, *family.children(recursive=True)]
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            agent.page()
            time.sleep(15.0)  # the interval of the other scrape job
        used = sum(sum(process.cpu_times()[:2]) for process in processes) - before
        took = time.monotonic() - began
        memory = sum(process.memory_full_info().pss for process in processes) / 1e6
        series = sum(not line.startswith("#") for line in agent.page().splitlines())
        return used / took, memory, series


def main() -> None:
    """Print the lines of docs/benchmarks.md."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory() as folder:
        without = measured(Path(folder, "without"), enabled=False, seconds=seconds)
        whole = measured(Path(folder, "with"), enabled=True, seconds=seconds)
    print("| agent | CPU, % of a core | PSS, MB | series |\n|---|---|---|---|")
    for name, (cpu, memory, series) in (("no hardware", without), ("all of it", whole)):
        print(f"| {name} | {100 * cpu:.2f} | {memory:.0f} | {series} |")
    difference = 100 * (whole[0] - without[0])
    print(f"\nThe difference: {difference:.2f} % of a core ({os.cpu_count()} cores, scraped every 15 s)")


if __name__ == "__main__":
    main()
