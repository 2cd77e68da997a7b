"""What the agent says of itself; pure."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agent import __version__
from agent.core.metrics import Family, Metric
from agent.export.registry import SourceCounts
from agent.helper.client import CALL_RESULTS, CallResult

BUILD_INFO = Family("rankwatch_build_info", "gauge", "The agent's version; always 1.", ("version", "python_version"))
EXPORTER_UP = Family(
    "rankwatch_exporter_up",
    "gauge",
    "1 when the exporter's last update worked (or found, in mode auto, that its source is not there), 0 when it "
    "failed or is late.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_PRESENT = Family(
    "rankwatch_exporter_source_present",
    "gauge",
    "1 when the exporter's source exists on this node, 0 when it does not.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_DURATION = Family(
    "rankwatch_exporter_update_duration_seconds",
    "gauge",
    "How long the exporter's last update took.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_LAST_SUCCESS = Family(
    "rankwatch_exporter_last_success_timestamp_seconds",
    "gauge",
    "When the exporter's last successful update ended; absent before the first.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_LATE = Family(
    "rankwatch_exporter_updates_late_total",
    "counter",
    "Updates that passed their deadline; they are never cancelled, and no second one starts meanwhile.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_FAILED = Family(
    "rankwatch_exporter_updates_failed_total",
    "counter",
    "Updates that ended in an error.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_SERIES = Family(
    "rankwatch_exporter_series",
    "gauge",
    "Series that the exporter gave in the last scrape that asked for it.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_DROPPED = Family(
    "rankwatch_exporter_series_dropped_total",
    "counter",
    "Series left out of scrapes because the exporter was over its cap, counted at each scrape.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_DOUBLES = Family(
    "rankwatch_exporter_series_duplicated_total",
    "counter",
    "Series left out of scrapes because the exporter had given the same one before, counted at each scrape.",
    ("exporter",),
    "1 per exporter",
)
EXPORTER_RENDER_FAILED = Family(
    "rankwatch_exporter_renders_failed_total",
    "counter",
    "Scrapes in which the exporter's state could not be rendered, or only in part.",
    ("exporter",),
    "1 per exporter",
)
SERIES_REFUSED = Family(
    "rankwatch_series_refused_total",
    "counter",
    "Accumulators that found their rank's budget of series spent, and go on under `other`.",
)
HELPER_UP = Family(
    "rankwatch_helper_up",
    "gauge",
    "1 when the helper process answered its last call, 0 when it failed or hung; absent before the first.",
    ("helper",),
    "1 per helper",
)
HELPER_RESTARTS = Family(
    "rankwatch_helper_restarts_total",
    "counter",
    "Helper processes started in the place of one that failed or hung.",
    ("helper",),
    "1 per helper",
)
HELPER_CALLS = Family(
    "rankwatch_helper_calls_total",
    "counter",
    "Calls by what became of them: ok, failed (the process crashed, ran out of memory, or was not to be started again "
    "yet) or hung (no answer in time, or an earlier process is still there).",
    ("helper", "result"),
    "3 per helper",
)
LOOP_LAG = Family(
    "rankwatch_event_loop_lag_seconds",
    "gauge",
    "The longest that the event loop was late for a timer in the last minute.",
    aggregate="max",
)
RELOAD_OK = Family(
    "rankwatch_config_last_reload_successful",
    "gauge",
    "1 when the configuration in use is the one last read, 0 when that one was refused.",
)
RELOAD_TIME = Family(
    "rankwatch_config_last_reload_success_timestamp_seconds",
    "gauge",
    "When a configuration was last taken into use.",
)
CHECKPOINT_TIME = Family(
    "rankwatch_checkpoint_last_save_timestamp_seconds",
    "gauge",
    "When the checkpoint was last written; absent before the first time and without a checkpoint.",
)
CHECKPOINT_ERRORS = Family(
    "rankwatch_checkpoint_save_errors_total",
    "counter",
    "Times the checkpoint could not be written.",
)
WEB_CONNECTIONS = Family("rankwatch_web_connections_total", "counter", "Connections accepted.")
WEB_RESPONSES = Family(
    "rankwatch_web_responses_total", "counter", "HTTP responses by status.", ("code",), "1 per status given"
)
WEB_CLOSED = Family(
    "rankwatch_web_connections_closed_total",
    "counter",
    "Connections that the agent closed, or lost in mid-request, by reason.",
    ("reason",),
    "10 per node",
)
WEB_SHARED = Family(
    "rankwatch_web_renders_shared_total",
    "counter",
    "Scrapes answered with the rendering that another, equal and concurrent one had begun.",
)
WEB_FAILURES = Family(
    "rankwatch_web_failures_total",
    "counter",
    "Answers and connections that ended in an error of the agent's own, or too late.",
)
NOTIFY_FAILURES = Family(
    "rankwatch_notify_failures_total",
    "counter",
    "Messages to systemd that could not be sent.",
)

FAMILIES: tuple[Family, ...] = (
    BUILD_INFO,
    EXPORTER_UP,
    EXPORTER_PRESENT,
    EXPORTER_DURATION,
    EXPORTER_LAST_SUCCESS,
    EXPORTER_LATE,
    EXPORTER_FAILED,
    EXPORTER_SERIES,
    EXPORTER_DROPPED,
    EXPORTER_DOUBLES,
    EXPORTER_RENDER_FAILED,
    SERIES_REFUSED,
    HELPER_UP,
    HELPER_RESTARTS,
    HELPER_CALLS,
    LOOP_LAG,
    RELOAD_OK,
    RELOAD_TIME,
    CHECKPOINT_TIME,
    CHECKPOINT_ERRORS,
    WEB_CONNECTIONS,
    WEB_RESPONSES,
    WEB_CLOSED,
    WEB_SHARED,
    WEB_FAILURES,
    NOTIFY_FAILURES,
)


class ExporterStatus(msgspec.Struct, frozen=True):
    """How one exporter fares."""

    name: str
    up: bool
    present: bool
    duration_seconds: float = 0.0
    last_success_seconds: float | None = None
    late: int = 0
    failures: int = 0


class HelperStatus(msgspec.Struct, frozen=True):
    """How one helper fares; ``ok`` None: it was not called yet."""

    name: str
    ok: bool | None
    restarts: int
    calls: Mapping[CallResult, int]


class SelfSnapshot(msgspec.Struct, frozen=True):
    """How the agent fares."""

    exporters: tuple[ExporterStatus, ...]
    counts: Mapping[str, SourceCounts]
    refused: int
    helpers: tuple[HelperStatus, ...]
    loop_lag_seconds: float
    reload_ok: bool
    reload_seconds: float
    saved_seconds: float | None
    save_errors: int
    connections: int
    responses: Mapping[int, int]
    closed: Mapping[str, int]
    shared: int
    web_failures: int
    notify_failures: int


class SelfSource:
    """The agent as a source of series; ``read`` takes its snapshot on the loop."""

    name = "agent"
    series_cap = 10_000

    def __init__(self, read: Callable[[], SelfSnapshot]) -> None:
        self._read = read

    def shown(self) -> bool:
        """Always."""
        return True

    def snapshot(self) -> SelfSnapshot:
        """How the agent fares now."""
        return self._read()

    def families(self, snapshot: SelfSnapshot) -> Iterable[Metric]:
        """Render."""
        return families(snapshot)


def families(snapshot: SelfSnapshot) -> Iterable[Metric]:
    """Render what the agent says of itself."""
    build = BUILD_INFO.rows()
    build.add((__version__, platform.python_version()), 1.0)
    yield build.metric
    yield from _exporters(snapshot.exporters)
    yield from _sources(snapshot.counts)
    yield SERIES_REFUSED.single(snapshot.refused)
    yield from _helpers(snapshot.helpers)
    yield LOOP_LAG.single(snapshot.loop_lag_seconds)
    yield RELOAD_OK.single(float(snapshot.reload_ok))
    yield RELOAD_TIME.single(snapshot.reload_seconds)
    if snapshot.saved_seconds is not None:
        yield CHECKPOINT_TIME.single(snapshot.saved_seconds)
    yield CHECKPOINT_ERRORS.single(snapshot.save_errors)
    yield WEB_CONNECTIONS.single(snapshot.connections)
    responses, closed = WEB_RESPONSES.rows(), WEB_CLOSED.rows()
    for code, count in sorted(snapshot.responses.items()):
        responses.add((str(code),), count)
    for reason, count in snapshot.closed.items():
        closed.add((reason,), count)
    yield from (responses.metric, closed.metric)
    yield WEB_SHARED.single(snapshot.shared)
    yield WEB_FAILURES.single(snapshot.web_failures)
    yield NOTIFY_FAILURES.single(snapshot.notify_failures)


def _exporters(exporters: Sequence[ExporterStatus]) -> Iterable[Metric]:
    up, present, duration = EXPORTER_UP.rows(), EXPORTER_PRESENT.rows(), EXPORTER_DURATION.rows()
    success, late, failed = EXPORTER_LAST_SUCCESS.rows(), EXPORTER_LATE.rows(), EXPORTER_FAILED.rows()
    for exporter in exporters:
        name = (exporter.name,)
        up.add(name, float(exporter.up))
        present.add(name, float(exporter.present))
        duration.add(name, exporter.duration_seconds)
        if exporter.last_success_seconds is not None:
            success.add(name, exporter.last_success_seconds)
        late.add(name, exporter.late)
        failed.add(name, exporter.failures)
    return [rows.metric for rows in (up, present, duration, success, late, failed)]


def _helpers(helpers: Sequence[HelperStatus]) -> Iterable[Metric]:
    up, restarts, calls = HELPER_UP.rows(), HELPER_RESTARTS.rows(), HELPER_CALLS.rows()
    for helper in helpers:
        if helper.ok is not None:
            up.add((helper.name,), float(helper.ok))
        restarts.add((helper.name,), helper.restarts)
        for result in CALL_RESULTS:
            calls.add((helper.name, result), helper.calls.get(result, 0))
    return [rows.metric for rows in (up, restarts, calls)]


def _sources(counts: Mapping[str, SourceCounts]) -> Iterable[Metric]:
    series, dropped, doubles = EXPORTER_SERIES.rows(), EXPORTER_DROPPED.rows(), EXPORTER_DOUBLES.rows()
    failed = EXPORTER_RENDER_FAILED.rows()
    for name, count in sorted(counts.items()):
        series.add((name,), count.series)
        dropped.add((name,), count.dropped)
        doubles.add((name,), count.doubles)
        failed.add((name,), count.failures)
    return [rows.metric for rows in (series, dropped, doubles, failed)]
