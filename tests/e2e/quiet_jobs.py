"""Jobs of ranks that the agent observes, and that wait without records until the test ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from clusters import Cluster, ClusterNode

LEAVE_SECONDS = 20.0

RANK = """
import pathlib, sys, threading
if sys.argv[1]:
    pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
def stay():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
print("up", flush=True)
ending = sys.stdin.readline().strip()
hoard = []
while ending == "grow":
    hoard.append(b"x" * (1 << 20))
sys.exit(int(ending or 0))
"""
"""`python -c RANK GROUP`: reads a line: an exit status, or `grow`."""


class QuietJob:
    """A job of quiet ranks on some of a cluster's nodes; a context manager.

    ``group``: the memory group that all its ranks join. ``log``: the output file of a node's ranks, below the cluster's
    directory, with {job_id} and {node} (the node's number in the job); empty: none."""

    def __init__(
        self,
        cluster: Cluster,
        job_id: str,
        nodes: Sequence[ClusterNode],
        ranks: int,
        group: Path | None = None,
        log: str = "",
    ) -> None:
        self.cluster = cluster
        self.job_id = job_id
        self.nodes = list(nodes)
        self.ranks = ranks
        self._group = group
        self._log = log
        self._processes: list[subprocess.Popen[str]] = []
        self.start()

    def __enter__(self) -> QuietJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal_all(signal.SIGKILL)

    def start(self) -> None:
        """Start all ranks, or restart them after all have exited."""
        for process in self._processes:
            process.wait(LEAVE_SECONDS)
        self._processes = [self._start(rank) for rank in range(self.ranks)]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"

    def node_of(self, rank: int) -> ClusterNode:
        return self.nodes[rank * len(self.nodes) // self.ranks]

    def signal_rank(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank; raises ProcessLookupError if it has exited."""
        nsenter = self._processes[rank].pid  # forks the program into the pid namespace
        try:
            children = Path(f"/proc/{nsenter}/task/{nsenter}/children").read_text().split()
        except FileNotFoundError:
            children = []
        if not children:
            raise ProcessLookupError(f"rank {rank} of {self.job_id}")
        os.kill(int(children[0]), number)

    def signal_all(self, number: int) -> None:
        """Send a signal to all ranks that still run."""
        for rank in range(self.ranks):
            with contextlib.suppress(ProcessLookupError):
                self.signal_rank(rank, number)

    def leave(self, rank: int, code: int = 0) -> None:
        self._tell(rank, str(code))

    def log_of(self, rank: int) -> Path:
        node = self.nodes.index(self.node_of(rank))
        return self.cluster.directory / self._log.format(job_id=self.job_id, node=node)

    def say(self, rank: int, *lines: str) -> None:
        with self.log_of(rank).open("a") as log:
            log.writelines(f"{line}\n" for line in lines)

    def grow(self, rank: int) -> None:
        """Let a rank allocate memory until the OOM killer kills it."""
        self._tell(rank, "grow")

    def wait(self, rank: int) -> None:
        self._processes[rank].wait(LEAVE_SECONDS)

    def _start(self, rank: int) -> subprocess.Popen[str]:
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "SLURM_JOB_ID": self.job_id}
        command = [sys.executable, "-S", "-c", RANK, str(self._group or "")]
        with contextlib.ExitStack() as stack:
            said: IO[str] | None = None
            if self._log:
                path = self.log_of(rank)
                path.parent.mkdir(parents=True, exist_ok=True)
                said = stack.enter_context(path.open("a"))
            return self.node_of(rank).machine.popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )

    def _tell(self, rank: int, line: str) -> None:
        stream = self._processes[rank].stdin
        assert stream is not None
        stream.write(f"{line}\n")
        stream.flush()
