"""Memory groups that are too small, and a program that grows in one, looking like a rank."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from clusters import Cluster, ClusterNode
from nodes import wait_until

LIMIT_BYTES = 64 * 1024 * 1024
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

RANK = """
import pathlib, sys, threading
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
def stay():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
sys.stdin.readline()
hoard = []
while True:
    hoard.append(b"x" * (1 << 20))
"""


def own_group() -> tuple[Path, str] | None:
    """Return the directory of this process' memory group and the name of its limit; None without a controller."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return V1 / path.lstrip("/"), "memory.limit_in_bytes"
    if (V2 / "cgroup.controllers").exists() and "memory" in (V2 / "cgroup.subtree_control").read_text().split():
        return V2, "memory.max"  # groups beside the process' own: one that holds processes has no children of its own
    return None


class NoMemoryGroupError(Exception):
    """Why no group can be made."""


@contextlib.contextmanager
def small_group() -> Iterator[Path]:
    """Provide a memory group of LIMIT_BYTES; raises NoMemoryGroupError."""
    found = own_group()
    if found is None:
        raise NoMemoryGroupError("no memory controller for groups of our own")
    group = found[0] / f"rankwatch-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / found[1]).write_text(str(LIMIT_BYTES))
    except OSError as error:
        raise NoMemoryGroupError(f"no memory group can be made: {error.strerror}") from None
    yield group

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError:  # busy until its last process is reaped
            return False
        return True

    wait_until(removed)


class HoardingJob:
    """Ranks in a memory group, one per node, that do nothing until one of them grows; a context manager."""

    def __init__(self, group: Path, cluster: Cluster, job_id: str, nodes: list[ClusterNode], ranks: int) -> None:
        self.cluster = cluster
        self.job_id = job_id
        self.ranks = ranks
        self._processes = [self._start(group, rank, node) for rank, node in enumerate(nodes)]

    def _start(self, group: Path, rank: int, node: ClusterNode) -> subprocess.Popen[str]:
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.ranks), "SLURM_JOB_ID": self.job_id}
        command = [sys.executable, "-S", "-c", RANK, str(group)]
        return node.machine.popen(command, env=env, stdin=subprocess.PIPE, text=True)

    def __enter__(self) -> HoardingJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()  # nsenter's end; the ranks end with their nodes

    def grow(self, rank: int) -> None:
        """Let a rank take memory until the OOM killer takes it."""
        stream = self._processes[rank].stdin
        assert stream is not None
        stream.write("\n")
        stream.flush()
