"""What the agent's process and its helpers use, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import msgspec
import psutil

T = TypeVar("T")


class ProcessUsage(msgspec.Struct, frozen=True):
    """What one process uses: CPU time, user and system, without its children, and memory in RAM."""

    cpu_seconds: float
    resident_bytes: int


class OwnUsage(msgspec.Struct, frozen=True):
    """What the agent's own process uses, and when it started (since the epoch); None: it could not be read."""

    process: ProcessUsage | None
    open_fds: int | None
    start_seconds: float | None


class Usage(msgspec.Struct, frozen=True):
    """Of the agent's own process, and of those of its children (by process id) that were there and could be read."""

    own: OwnUsage
    children: Mapping[int, ProcessUsage] = {}


class ProcessReader:
    """Reads what processes use, blocking; owned by one thread, the render thread."""

    def __init__(self) -> None:
        self._own: psutil.Process | None = None

    def read(self, children: Iterable[int]) -> Usage:
        """Look at this process and at those of ``children`` (process ids) that are its children."""
        own = self._own = self._own or _tried(psutil.Process)
        if own is None:
            return Usage(OwnUsage(None, None, None))
        found = {pid: used for pid in children if (used := _tried(partial(_child, pid))) is not None}
        return Usage(OwnUsage(_tried(partial(_usage, own)), _tried(own.num_fds), _tried(own.create_time)), found)


def _tried(read: Callable[[], T]) -> T | None:
    """Return what ``read`` returns; None when the process is gone or may not be looked at."""
    try:
        return read()
    except (psutil.Error, OSError):
        return None


def _child(pid: int) -> ProcessUsage | None:
    """Return what a child uses; None when it has ended and its number is another process' now."""
    process = psutil.Process(pid)
    with process.oneshot():
        return _usage(process) if process.ppid() == os.getpid() else None


def _usage(process: psutil.Process) -> ProcessUsage:
    spent = process.cpu_times()
    return ProcessUsage(spent.user + spent.system, process.memory_info().rss)
