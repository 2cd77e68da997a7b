"""Memory groups that are too small for a rank that grows."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from nodes import wait_until

RANK = """
import pathlib, sys, threading
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
def stay():
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("NCCL RAS")
    threading.Event().wait()
threading.Thread(target=stay, daemon=True).start()
hoard = []
while sys.stdin.readline():
    for _ in range(1 << 20):
        hoard.append(b"x" * (1 << 20))
"""
"""`python -c RANK GROUP`: a rank that joins the group, and allocates memory after it reads a line."""
LIMIT_BYTES = 64 * 1024 * 1024
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def own_group() -> tuple[Path, str] | None:
    """Return the directory of this process's memory group and the name of its limit; None without a controller."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return V1 / path.lstrip("/"), "memory.limit_in_bytes"
    if (V2 / "cgroup.controllers").exists() and "memory" in (V2 / "cgroup.subtree_control").read_text().split():
        return V2, "memory.max"  # groups next to the process's own, because a group with processes has no children
    return None


class NoMemoryGroupError(Exception):
    """The reason why no group can be made."""


@contextlib.contextmanager
def small_group(limit_bytes: int = LIMIT_BYTES) -> Iterator[Path]:
    """Provide a memory group with a limit in bytes; raises NoMemoryGroupError."""
    found = own_group()
    if found is None:
        raise NoMemoryGroupError("no memory controller for groups of our own")
    group = found[0] / f"rankwatch-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        (group / found[1]).write_text(str(limit_bytes))
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
