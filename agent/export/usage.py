"""Metric families about the usage of the agent's process, and about its helpers."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil

from agent.core.metrics import Family, Metric
from agent.helper.client import CALL_RESULTS, CallResult

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
    "Calls by result: ok, failed (the process crashed, ran out of memory, or waits for its next start) or hung (no "
    "answer in time, or an earlier process still exists); absent before the first of its kind.",
    ("helper", "result"), "1 per helper and result seen, at most 3")
# fmt: on
FAMILIES: tuple[Family, ...] = (CPU, MEMORY, OPEN_FDS, START, PYTHON_INFO, HELPER_UP, HELPER_CALLS)
_READS: tuple[tuple[Family, Callable[[psutil.Process], float]], ...] = (
    (CPU, lambda process: sum(process.cpu_times()[:2])),
    (MEMORY, lambda process: process.memory_info().rss),
    (OPEN_FDS, lambda process: process.num_fds()),
    (START, lambda process: process.create_time()),
)


class HelperStatus(msgspec.Struct, frozen=True):
    """State of one helper; ``ok`` None: it was not called yet."""

    name: str
    ok: bool | None
    calls: Mapping[CallResult, int]


def render_own(process: psutil.Process) -> Iterable[Metric]:
    """Read and render a process' usage, which blocks for a moment; unreadable values are absent."""
    for family, read in _READS:
        with suppress(psutil.Error, OSError):
            yield family.single(read(process))
    python = PYTHON_INFO.rows()
    version = (platform.python_version(), platform.python_implementation(), *platform.python_version_tuple())
    python.add(version, 1.0)
    yield python.metric


def render_helpers(helpers: Sequence[HelperStatus]) -> Iterable[Metric]:
    """Render the state of the helpers."""
    called = [helper for helper in helpers if helper.ok is not None]
    calls = HELPER_CALLS.rows()
    for helper in called:
        for result in filter(helper.calls.get, CALL_RESULTS):
            calls.add((helper.name, result), helper.calls[result])
    yield HELPER_UP.by_label({helper.name: float(helper.ok or 0) for helper in called})
    yield calls.metric
