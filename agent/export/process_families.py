"""The agent's own process, under the names that Prometheus' client libraries use for any process."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from agent.core.metrics import Family, Metric
from agent.export.usage import OwnUsage

CPU = Family(
    "process_cpu_seconds_total",
    "counter",
    "CPU time of the agent's process, user and system, without its helpers.",
)
MEMORY = Family("process_resident_memory_bytes", "gauge", "Resident memory of the agent's process.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors of the agent's process.")
START = Family("process_start_time_seconds", "gauge", "When the agent's process started, since the epoch.")
PYTHON_INFO = Family(
    "python_info",
    "gauge",
    "The Python that runs the agent; always 1.",
    ("version", "implementation", "major", "minor", "patchlevel"),
)
FAMILIES: tuple[Family, ...] = (CPU, MEMORY, OPEN_FDS, START, PYTHON_INFO)


def render(own: OwnUsage) -> Iterable[Metric]:
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
