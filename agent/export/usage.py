"""What the agent's process uses, as the kernel counts it, and how its helpers fare."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
import psutil

from agent.core.metrics import Family, Metric
from agent.helper.client import CALL_RESULTS, CallResult

T = TypeVar("T")

# fmt: off
CPU = Family("process_cpu_seconds_total", "counter",
    "CPU time of the agent's process, user and system, without its helpers.")
MEMORY = Family("process_resident_memory_bytes", "gauge", "Resident memory of the agent's process.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors of the agent's process.")
START = Family("process_start_time_seconds", "gauge", "When the agent's process started, since the epoch.")
PYTHON_INFO = Family("python_info", "gauge", "The Python that runs the agent; always 1.",
    ("version", "implementation", "major", "minor", "patchlevel"))
HELPER_UP = Family("rankwatch_helper_up", "gauge",
    "1 when the helper process answered its last call, 0 when it failed or hung; absent before the first.",
    ("helper",), "1 per helper")
HELPER_CALLS = Family("rankwatch_helper_calls_total", "counter",
    "Calls by what became of them: ok, failed (the process crashed, ran out of memory, or was not to be started again "
    "yet) or hung (no answer in time, or an earlier process is still there); absent before the first of its kind.",
    ("helper", "result"), "1 per helper and result seen, at most 3")
# fmt: on
FAMILIES: tuple[Family, ...] = (CPU, MEMORY, OPEN_FDS, START, PYTHON_INFO, HELPER_UP, HELPER_CALLS)


class ProcessUsage(msgspec.Struct, frozen=True):
    """What a process uses: CPU time, user and system, without its children, and memory in RAM."""

    cpu_seconds: float
    resident_bytes: int


class OwnUsage(msgspec.Struct, frozen=True):
    """What the agent's own process uses, and when it started (since the epoch); None: it could not be read."""

    process: ProcessUsage | None
    open_fds: int | None
    start_seconds: float | None


class ProcessReader:
    """Reads what the agent's process uses, blocking; owned by one thread, the render thread."""

    def __init__(self) -> None:
        self._own: psutil.Process | None = None

    def read(self) -> OwnUsage:
        """Look at this process."""
        own = self._own = self._own or _tried(psutil.Process)
        if own is None:
            return OwnUsage(None, None, None)
        return OwnUsage(_tried(partial(_usage, own)), _tried(own.num_fds), _tried(own.create_time))


def _tried(read: Callable[[], T]) -> T | None:
    """Return what ``read`` returns; None when the process is gone or may not be looked at."""
    try:
        return read()
    except (psutil.Error, OSError):
        return None


def _usage(process: psutil.Process) -> ProcessUsage:
    spent = process.cpu_times()
    return ProcessUsage(spent.user + spent.system, process.memory_info().rss)


class HelperStatus(msgspec.Struct, frozen=True):
    """How one helper fares; ``ok`` None: it was not called yet."""

    name: str
    ok: bool | None
    calls: Mapping[CallResult, int]


def render_own(own: OwnUsage) -> Iterable[Metric]:
    """Render what the agent's process uses; what could not be read is absent."""
    if own.process is not None:
        yield CPU.single(own.process.cpu_seconds)
        yield MEMORY.single(own.process.resident_bytes)
    if own.open_fds is not None:
        yield OPEN_FDS.single(own.open_fds)
    if own.start_seconds is not None:
        yield START.single(own.start_seconds)
    python = PYTHON_INFO.rows()
    version = (platform.python_version(), platform.python_implementation(), *platform.python_version_tuple())
    python.add(version, 1.0)
    yield python.metric


def render_helpers(helpers: Sequence[HelperStatus]) -> Iterable[Metric]:
    """Render how the helpers fare."""
    up, calls = HELPER_UP.rows(), HELPER_CALLS.rows()
    for helper in helpers:
        if helper.ok is None:
            continue
        up.add((helper.name,), float(helper.ok))
        for result in filter(helper.calls.get, CALL_RESULTS):
            calls.add((helper.name, result), helper.calls[result])
    return [up.metric, calls.metric]
