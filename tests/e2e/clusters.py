"""A cluster under test: nodes with one agent each, connected to a monitoring node."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agents import Agent
from jobs import SimulatedJob
from nodes import Closing, Node, why_no_nodes

MONITOR = "10.0.0.1"
FAST_AGENT = Path(__file__).with_name("fast_agent.py")
Equip = Callable[[Path], Mapping[str, Any]]
"""Adds hardware below a node's directory; returns further arguments of its agent (``flags``, ``env``)."""


class Peculiarity(NamedTuple):
    """Special settings of a node: the labels of its target, the seconds by which its clock is fast, its hardware.

    ``exporters``: further sections of its agent's configuration."""

    labels: Mapping[str, str] = {}
    fast_seconds: float = 0.0
    equip: Equip | None = None
    exporters: Mapping[str, Any] = {}


def why_no_cluster() -> str | None:
    """Return the reason why clusters cannot be made (for a skipped test), or None."""
    return why_no_nodes() or (None if shutil.which("ip") else "ip (iproute2) not found")


class ClusterNode:
    """One node: its machine, its agent, and its address, by which rules and pages name it."""

    def __init__(self, cluster: Cluster, number: int, exit_status_ioctl: bool, peculiar: Peculiarity) -> None:
        self.name = f"10.0.0.{number + 10}"
        self.machine = Node(f"gpu-node-{number:02}")
        self._directory = cluster.directory / self.machine.hostname
        self._directory.mkdir()
        self._inspector_dir = cluster.inspector_dir
        self._ioctl = exit_status_ioctl
        cluster.wire(self)
        self.agent = self._make_agent(peculiar)
        (cluster.targets_dir / f"{self.machine.hostname}.json").write_text(
            json.dumps([{"targets": [f"{self.name}:{self.agent.port}"], "labels": peculiar.labels}])
        )

    def _make_agent(self, peculiar: Peculiarity) -> Agent:
        exporters = {
            "inspector": {"paths": [str(self._inspector_dir)]},
            "process": {"exit_status_ioctl": self._ioctl},
            **peculiar.exporters,
        }
        program = (str(FAST_AGENT), str(peculiar.fast_seconds)) if peculiar.fast_seconds else ("-m", "agent")
        return Agent(
            self._directory,
            {"exporters": exporters},
            node=self.machine,
            host="0.0.0.0",  # noqa: S104
            command=(sys.executable, *program),
            **(peculiar.equip(self._directory) if peculiar.equip else {}),
        )

    def cut(self) -> None:
        """Take the node off the network; its programs keep running."""
        run_ip(self.machine, "link", "set", "eth0", "down")

    def join(self) -> None:
        run_ip(self.machine, "link", "set", "eth0", "up")

    def lose_power(self) -> None:
        """Kill everything on the node, without a packet on the network."""
        self.cut()
        self.machine.power_off()
        self.agent.went_with_its_node()

    def close(self) -> None:
        self.machine.close()


class Cluster(Closing):
    """A monitoring node and ``size`` nodes on one bridge with a shared file system; a context manager.

    ``peculiar``: special settings by node number."""

    def __init__(
        self,
        directory: Path,
        size: int,
        *,
        exit_status_ioctl: bool = True,
        peculiar: Mapping[int, Peculiarity] | None = None,
    ) -> None:
        self.directory = directory
        self.inspector_dir = directory / "inspector"
        self.targets_dir = directory / "targets"
        self.nodes: list[ClusterNode] = []
        self.inspector_dir.mkdir()
        self.targets_dir.mkdir()
        self.monitor = Node("monitor")
        try:
            run_ip(self.monitor, "link", "add", "bridge", "type", "bridge")
            run_ip(self.monitor, "address", "add", f"{MONITOR}/24", "dev", "bridge")
            run_ip(self.monitor, "link", "set", "bridge", "up")
            for number in range(size):
                of_node = (peculiar or {}).get(number, Peculiarity())
                self.nodes.append(ClusterNode(self, number, exit_status_ioctl, of_node))
        except BaseException:
            self.close()
            raise

    def wire(self, node: ClusterNode) -> None:
        port, machine = f"port{len(self.nodes)}", node.machine
        run_ip(
            self.monitor, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(machine.init_pid)
        )
        run_ip(self.monitor, "link", "set", port, "master", "bridge", "up")
        run_ip(machine, "address", "add", f"{node.name}/24", "dev", "eth0")
        run_ip(machine, "link", "set", "eth0", "up")

    def cut(self) -> None:
        """Disconnect the monitoring node from all nodes."""
        run_ip(self.monitor, "link", "set", "bridge", "down")

    def join(self) -> None:
        """Put the monitoring node back on the network."""
        run_ip(self.monitor, "link", "set", "bridge", "up")

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.monitor.close)
            for node in self.nodes:
                stack.callback(node.close)


class ClusterJob(Closing):
    """A simulated job on some of a cluster's nodes, with a launcher on each; a context manager."""

    def __init__(self, cluster: Cluster, job_id: str, nodes: list[ClusterNode], ranks: int, *options: str) -> None:
        self.job_id = job_id
        self.cluster = cluster
        self.nodes = nodes
        self.ranks = ranks
        named = ("--scheduler", "slurm", "--job-id", job_id, "--ranks", str(ranks), "--hosts", str(len(nodes)))
        self._options = (*named, "--dump-dir", str(cluster.inspector_dir / job_id), "--dataloaders", "0", *options)
        self._left: list[SimulatedJob] = []
        self.parts = self._start()

    def _start(self) -> list[SimulatedJob]:
        directory = self.cluster.directory / "jobs" / self.job_id / f"attempt{len(self._left)}"
        directory.mkdir(parents=True)
        return [
            SimulatedJob(directory, *self._options, "--host-index", str(index), node=node.machine)
            for index, node in enumerate(self.nodes)
        ]

    def requeue(self, nodes: list[ClusterNode]) -> None:
        """Start the job again on other nodes under the same id, once all its ranks have exited."""
        for part in self.parts:
            part.wait()
        self._left += self.parts
        self.nodes = nodes
        self.parts = self._start()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in [*self._left, *self.parts]:
                stack.callback(part.close)

    def node_of(self, rank: int) -> ClusterNode:
        return self.nodes[rank * len(self.nodes) // self.ranks]

    def signal_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        part = self.parts[self.nodes.index(self.node_of(rank))]
        part.kill(part.pid(rank), number)

    def signal_launchers(self, number: int) -> None:
        for part in self.parts:
            part.signal_launcher(number)


def run_ip(node: Node, *arguments: str) -> None:
    """Run ip(8) in a node's network namespace, with this machine's pids."""
    command = ["nsenter", f"--target={node.init_pid}", "--net", "--", "ip", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, (arguments, done.stderr)
