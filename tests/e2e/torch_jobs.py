"""Jobs of real torchrun (PyTorch 2.13, gloo on CPUs), on this machine or with a launcher on each of several nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import Agent
from clusters import ClusterNode
from full import full
from jobs import ROOT
from nodes import Closing
from ports import free_port

from agent.page.describe import how_ended
from agent.page.ranks_json import read

TORCHRUN = ROOT / ".cache/torch/bin/torchrun"
PROGRAMS = Path(__file__).parent / "torchrun"
HERE = "127.0.0.1"
LEAVE_SECONDS = 240.0
needs_torch = [
    full,
    pytest.mark.skipif(not TORCHRUN.exists(), reason="no PyTorch in .cache: scripts/test --full installs it"),
    pytest.mark.timeout(600),
]
WITHOUT_NCCL = {"process": {"without_nccl": True}}


class TorchJob(Closing):
    """Ranks of torchrun/reduce.py; a context manager. ``orders``: the directory of the files that say how ranks end.

    ``nodes``: nodes with a launcher from the start; none: this machine. ``nnodes``: torchrun's option. ``launch``:
    words before its command line."""

    def __init__(
        self,
        directory: Path,
        job_id: str,
        ranks_per_node: int = 2,
        *options: str,
        nodes: Sequence[ClusterNode] = (),
        nnodes: str = "",
        reduces: bool = True,
        env: Mapping[str, str] | None = None,
        launch: Sequence[str] = (),
    ) -> None:
        self.job_id = job_id
        self.ranks_per_node = ranks_per_node
        self.orders = directory / f"orders-{job_id}"
        self.orders.mkdir()
        self._head = nodes[0].name if nodes else HERE
        self._command = [
            *launch,
            str(TORCHRUN),
            f"--nproc-per-node={ranks_per_node}",
            f"--nnodes={nnodes or len(nodes) or 1}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self._head}:{free_port()}",
            f"--rdzv-id={job_id}",
            *options,
        ]
        self._program = [str(PROGRAMS / "reduce.py"), str(self.orders), "reduces" if reduces else "waits"]
        self._env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0" if nodes else "lo",
            **(env or {}),
        }
        self.launchers: list[subprocess.Popen[Any]] = []
        for node in nodes or (None,):
            self.join(node)

    def join(self, node: ClusterNode | None) -> None:
        """Start a launcher, on a node or on this machine."""
        popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen if node is None else node.machine.popen
        address = HERE if node is None else node.name
        is_head = f"--rdzv-conf=is_host={int(address == self._head)},last_call_timeout=3"
        command = [*self._command, is_head, f"--local-addr={address}", *self._program]
        self.launchers.append(popen(command, env=self._env, cwd=self.orders))

    def order(self, rank: int, how: str) -> None:
        """Let a rank end in this way."""
        draft = self.orders / "draft"
        draft.write_text(how)
        draft.rename(self.orders / str(rank))

    def end(self) -> list[int]:
        """Let all ranks return; return the launchers' exit statuses."""
        (self.orders / "end").touch()
        return [launcher.wait(LEAVE_SECONDS) for launcher in self.launchers]

    def terminate(self, number: int) -> None:
        """Send SIGTERM to one of the launchers."""
        pid = self.launchers[number].pid
        if self._head != HERE:  # the pid is nsenter's, which forks the program into the pid namespace
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        for number, launcher in enumerate(self.launchers):
            if launcher.poll() is None:
                with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
                    self.terminate(number)
        for launcher in self.launchers:
            launcher.wait(LEAVE_SECONDS)


def ends(agent: Agent, job_id: str) -> dict[str, tuple[str, str]]:
    """Return each rank's end, in the page's words, and its state; a running rank has no words."""
    ranks = read(agent.get("/api/v1/ranks").body.encode()).ranks
    return {r.rank: ("" if r.ended is None else how_ended(r.ended), r.state) for r in ranks if r.job_id == job_id}
