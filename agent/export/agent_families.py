"""Metric families about the agent itself."""

import platform
from collections.abc import Callable, Iterable, Mapping

import msgspec
import psutil

from agent import __version__
from agent.core.metrics import Family, Metric
from agent.export import exporter_families, usage as usage_families
from agent.export.exporter_families import ExporterStatus
from agent.export.registry import Source, SourceCounts
from agent.export.usage import HelperStatus

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
# fmt: on

FAMILIES: tuple[Family, ...] = (
    BUILD_INFO, *exporter_families.FAMILIES, SERIES_REFUSED, *usage_families.FAMILIES, LOOP_LAG, START_AGE, RELOAD_OK,
    CHECKPOINT_ERRORS,
)  # fmt: skip


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
    """Render the agent's state, and read its process' usage, which blocks for a moment."""
    build = BUILD_INFO.rows()
    build.add((__version__, platform.python_version()), 1.0)
    yield build.metric
    yield START_AGE.single(snapshot.age_seconds)
    yield from usage_families.render_own(process)
    yield from exporter_families.render(snapshot.exporters, snapshot.counts)
    yield SERIES_REFUSED.single(snapshot.refused)
    yield from usage_families.render_helpers(snapshot.helpers)
    yield LOOP_LAG.single(snapshot.loop_lag_seconds)
    yield RELOAD_OK.single(float(snapshot.reload_ok))
    yield CHECKPOINT_ERRORS.single(snapshot.save_errors)
