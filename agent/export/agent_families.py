"""Metric families about the agent itself: its process, its helpers and its exporters."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import psutil

from agent import __version__
from agent.core.metrics import Family, Metric, declared
from agent.export.registry import Source, SourceCounts
from agent.helper.client import CALL_RESULTS, CallResult

BUILD_INFO = Family("rankwatch_build_info", "gauge", "The agent's version; always 1.", ("version", "python_version"))
# fmt: off
EXPORTER_UP = Family("rankwatch_exporter_up", "gauge",
    "1 if the exporter's last update succeeded (or, in mode auto, found no source), 0 if it failed or is late, or if "
    "the exporter's series could not be rendered.",
    ("exporter",), "1 per exporter")
EXPORTER_PRESENT = Family("rankwatch_exporter_source_present", "gauge",
    "0 while the exporter's source does not exist on this node; absent while it exists.",
    ("exporter",), "1 per exporter without a source")
EXPORTER_DURATION = Family("rankwatch_exporter_update_duration_seconds", "gauge",
    "How long the exporter's last update took; absent while the exporter is up without a source.",
    ("exporter",), "1 per exporter with a source, or down")
EXPORTER_LATE = Family("rankwatch_exporter_updates_late_total", "counter",
    "Updates that passed their deadline. A late update is not cancelled, and the next one starts after it. "
    "Absent while the exporter is up without a source and was never late.",
    ("exporter",), "1 per exporter with a source, down or once late")
EXPORTER_FAILED = Family("rankwatch_exporter_updates_failed_total", "counter",
    "Updates that ended in an error, and scrapes that could not render all of the exporter's state; absent if 0.",
    ("exporter",), "1 per exporter that failed")
EXPORTER_SKIPPED = Family("rankwatch_exporter_skipped_total", "counter",
    "Items of a source (a record, a process) left out because of an error, which the log shows. Absent if 0.",
    ("exporter",), "1 per exporter that left an item out")
EXPORTER_SERIES = Family("rankwatch_exporter_series", "gauge",
    "Series of the exporter in the last scrape that included it; 0 while they are withheld, or the exporter is off.",
    ("exporter",), "1 per exporter with series")
EXPORTER_DROPPED = Family("rankwatch_exporter_series_dropped_total", "counter",
    "Series left out because the exporter was over its limit or had the same series twice (the log says which), "
    "counted at each scrape.",
    ("exporter",), "1 per exporter with series")
SERIES_REFUSED = Family("rankwatch_series_refused_total", "counter",
    "Counters without a series of their own because a limit of series was reached; they are summed under `other`.")
CPU = Family("process_cpu_seconds_total", "counter",
    "CPU time of the agent's process, user and system, without its helpers.")
MEMORY = Family("process_resident_memory_bytes", "gauge", "Resident memory of the agent's process.")
OPEN_FDS = Family("process_open_fds", "gauge", "Open file descriptors of the agent's process.")
START = Family("process_start_time_seconds", "gauge", "When the agent's process started, since the epoch.")
HELPER_UP = Family("rankwatch_helper_up", "gauge",
    "1 if the helper process answered its last call, 0 if it failed or hung; absent before the first call.",
    ("helper",), "1 per helper")
HELPER_CALLS = Family("rankwatch_helper_calls_total", "counter",
    "Calls by result: ok, failed (the process crashed, ran out of memory, or waits for its next start) or hung (no "
    "answer in time, or an earlier process still exists). A result without calls is absent.",
    ("helper", "result"), "1 per helper and result seen, at most 3")
LOOP_LAG = Family("rankwatch_event_loop_lag_seconds", "gauge",
    "The greatest lateness of an event loop timer in the last minute.",
    aggregate="max")
START_AGE = Family("rankwatch_start_age_seconds", "gauge",
    "Time since the agent's start, including the time in which the machine sleeps. Independent of the wall clock.")
RELOAD_OK = Family("rankwatch_config_last_reload_successful", "gauge",
    "1 if the configuration that was read last is in use, 0 if it was refused.")
CHECKPOINT_ERRORS = Family("rankwatch_checkpoint_save_errors_total", "counter",
    "Failed writes of the checkpoint.")
# fmt: on
FAMILIES = declared(globals())
_READS: tuple[tuple[Family, Callable[[psutil.Process], float]], ...] = (
    (CPU, lambda process: sum(process.cpu_times()[:2])),
    (MEMORY, lambda process: process.memory_info().rss),
    (OPEN_FDS, lambda process: process.num_fds()),
    (START, lambda process: process.create_time()),
)


class ExporterStatus(msgspec.Struct, frozen=True):
    """State of one exporter."""

    name: str
    up: bool
    present: bool
    duration_seconds: float = 0.0
    late: int = 0
    failures: int = 0
    skipped: int = 0


_UPDATES: tuple[tuple[Family, Callable[[ExporterStatus], float | None]], ...] = (
    (EXPORTER_UP, lambda exporter: float(exporter.up)),
    (EXPORTER_PRESENT, lambda exporter: None if exporter.present else 0.0),
    (EXPORTER_DURATION, lambda exporter: exporter.duration_seconds if exporter.present or not exporter.up else None),
    (EXPORTER_LATE, lambda exporter: exporter.late if exporter.present or not exporter.up or exporter.late else None),
    (EXPORTER_SKIPPED, lambda exporter: exporter.skipped or None),
)
"""For each family the function that returns an exporter's value; None for no series."""


class SelfSnapshot(msgspec.Struct, frozen=True):
    """State of the agent. ``helpers``: for each helper whether the last call succeeded, and the calls by result."""

    age_seconds: float
    exporters: tuple[ExporterStatus, ...]
    counts: Mapping[str, SourceCounts]
    refused: int
    helpers: Mapping[str, tuple[bool, Mapping[CallResult, int]]]
    loop_lag_seconds: float
    reload_ok: bool
    save_errors: int


def self_source(read: Callable[[], SelfSnapshot]) -> Source:
    """Return the source of the agent's own series."""
    process = psutil.Process()
    return Source("agent", 10_000, read, lambda snapshot: families(snapshot, process))


def families(snapshot: SelfSnapshot, process: psutil.Process) -> Iterable[Metric]:
    """Render the agent's state; read its process' CPU time and memory (blocking). Unreadable values are absent."""
    build = BUILD_INFO.rows()
    build.add((__version__, platform.python_version()), 1.0)
    yield build.metric
    yield START_AGE.single(snapshot.age_seconds)
    for family, read in _READS:
        with suppress(psutil.Error, OSError):
            yield family.single(read(process))
    yield from _exporters(snapshot.exporters, snapshot.counts)
    yield SERIES_REFUSED.single(snapshot.refused)
    yield HELPER_UP.by_label({name: float(ok) for name, (ok, _) in snapshot.helpers.items()})
    calls = HELPER_CALLS.rows()
    for name, (_, by_result) in snapshot.helpers.items():
        for result in filter(by_result.get, CALL_RESULTS):
            calls.add((name, result), by_result[result])
    yield calls.metric
    yield LOOP_LAG.single(snapshot.loop_lag_seconds)
    yield RELOAD_OK.single(float(snapshot.reload_ok))
    yield CHECKPOINT_ERRORS.single(snapshot.save_errors)


def _exporters(exporters: Sequence[ExporterStatus], counts: Mapping[str, SourceCounts]) -> Iterable[Metric]:
    """Render the state of the exporters; ``counts``: series of each source, including the agent's own tables."""
    exporters = [
        msgspec.structs.replace(exporter, up=exporter.up and not counts.get(exporter.name, SourceCounts()).is_failing)
        for exporter in exporters
    ]
    for family, value_of in _UPDATES:
        yield family.by_label(
            {exporter.name: value for exporter in exporters if (value := value_of(exporter)) is not None}
        )
    failures = Counter({exporter.name: exporter.failures for exporter in exporters})
    failures.update({name: source.failures for name, source in counts.items()})
    yield EXPORTER_FAILED.by_label({name: count for name, count in sorted(failures.items()) if count})
    yield EXPORTER_SERIES.by_label({name: source.series for name, source in sorted(counts.items())})
    yield EXPORTER_DROPPED.by_label({name: source.dropped for name, source in sorted(counts.items())})
