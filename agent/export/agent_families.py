"""Metric families about the agent itself: its process, its helpers and its exporters."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil

from agent import __version__
from agent.core.metrics import Family, Metric
from agent.export import exporter_families
from agent.export.exporter_families import ExporterStatus
from agent.export.registry import Source, SourceCounts
from agent.helper.client import CALL_RESULTS, CallResult

BUILD_INFO = Family("rankwatch_build_info", "gauge", "The agent's version; always 1.", ("version", "python_version"))
# fmt: off
START_AGE = Family("rankwatch_start_age_seconds", "gauge",
    "How long ago the agent started, also counting while the machine sleeps. Independent of the wall clock.")
SERIES_REFUSED = Family("rankwatch_series_refused_total", "counter",
    "Counters without a series of their own because their rank reached its limit; they are summed under `other`.")
LOOP_LAG = Family("rankwatch_event_loop_lag_seconds", "gauge",
    "The greatest lateness of an event loop timer in the last minute.",
    aggregate="max")
RELOAD_OK = Family("rankwatch_config_last_reload_successful", "gauge",
    "1 if the configuration last read is in use, 0 if it was refused.")
CHECKPOINT_ERRORS = Family("rankwatch_checkpoint_save_errors_total", "counter",
    "Times the checkpoint could not be written.")
CPU = Family("process_cpu_seconds_total", "counter",
    "CPU time of the agent's process, user and system, without its helpers.")
MEMORY = Family("process_resident_memory_bytes", "gauge", "Resident memory of the agent's process.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors of the agent's process.")
START = Family("process_start_time_seconds", "gauge", "When the agent's process started, since the epoch.")
HELPER_UP = Family("rankwatch_helper_up", "gauge",
    "1 when the helper process answered its last call, 0 when it failed or hung; absent before the first.",
    ("helper",), "1 per helper")
HELPER_CALLS = Family("rankwatch_helper_calls_total", "counter",
    "Calls by result: ok, failed (the process crashed, ran out of memory, or waits for its next start) or hung (no "
    "answer in time, or an earlier process still exists); absent before the first of its kind.",
    ("helper", "result"), "1 per helper and result seen, at most 3")
# fmt: on
FAMILIES: tuple[Family, ...] = (
    BUILD_INFO,
    *exporter_families.FAMILIES,
    SERIES_REFUSED,
    CPU,
    MEMORY,
    OPEN_FDS,
    START,
    HELPER_UP,
    HELPER_CALLS,
    LOOP_LAG,
    START_AGE,
    RELOAD_OK,
    CHECKPOINT_ERRORS,
)  # fmt: skip
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


class SelfSnapshot(msgspec.Struct, frozen=True):
    """State of the agent."""

    age_seconds: float
    exporters: tuple[ExporterStatus, ...]
    counts: Mapping[str, SourceCounts]
    refused: int
    helpers: tuple[HelperStatus, ...]
    loop_lag_seconds: float
    reload_ok: bool
    save_errors: int


def self_source(read: Callable[[], SelfSnapshot]) -> Source:
    """Return the source of the agent's own series."""
    process = psutil.Process()
    return Source("agent", 10_000, read, lambda snapshot: families(snapshot, process))


def families(snapshot: SelfSnapshot, process: psutil.Process) -> Iterable[Metric]:
    """Render the agent's state, and read its process' usage (blocking); unreadable values are absent."""
    build = BUILD_INFO.rows()
    build.add((__version__, platform.python_version()), 1.0)
    yield build.metric
    yield START_AGE.single(snapshot.age_seconds)
    for family, read in _READS:
        with suppress(psutil.Error, OSError):
            yield family.single(read(process))
    yield from exporter_families.render(snapshot.exporters, snapshot.counts)
    yield SERIES_REFUSED.single(snapshot.refused)
    yield from _helpers([helper for helper in snapshot.helpers if helper.ok is not None])
    yield LOOP_LAG.single(snapshot.loop_lag_seconds)
    yield RELOAD_OK.single(float(snapshot.reload_ok))
    yield CHECKPOINT_ERRORS.single(snapshot.save_errors)


def _helpers(called: Sequence[HelperStatus]) -> Iterable[Metric]:
    calls = HELPER_CALLS.rows()
    for helper in called:
        for result in filter(helper.calls.get, CALL_RESULTS):
            calls.add((helper.name, result), helper.calls[result])
    yield HELPER_UP.by_label({helper.name: float(helper.ok or 0) for helper in called})
    yield calls.metric
