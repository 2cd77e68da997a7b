"""Render the node's document at `/api/v1/ranks` and its page at `/`, on the event loop.

Each result is cached for HOLD_SECONDS.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from agent import __version__
from agent.app.exporter_schedule import Running
from agent.core.clock import Clock
from agent.export.registry import SourceCounts
from agent.page import describe
from agent.page.ranks_json import MAX_RANKS, Configuration, ExporterView, NodeDocument
from agent.page.static import SCRIPT, STYLE
from agent.ranks.health import HealthSnapshot
from agent.ranks.speeds import RankSpeeds
from agent.web.handlers import STATIC_HEADERS
from agent.web.messages import HttpResponse

T = TypeVar("T", str, bytes)

HOLD_SECONDS = 0.5

STATIC = {file.path: HttpResponse(200, file.content_type, file.text, STATIC_HEADERS) for file in (SCRIPT, STYLE)}
"""Script and style of the page, by path."""


class CachedAnswer(Generic[T]):
    """Caches the result of ``make`` for HOLD_SECONDS."""

    def __init__(self, clock: Clock, make: Callable[[], T]) -> None:
        self._clock = clock
        self._make: Callable[[], T] = make
        self._cached: T | None = None
        self._cached_at = 0.0

    def __call__(self) -> T:
        """Return the cached result, or a new result if the cached one is too old."""
        now = self._clock.monotonic()
        if self._cached is None or now - self._cached_at >= HOLD_SECONDS:
            self._cached, self._cached_at = self._make(), now
        return self._cached


def node_document(
    health: HealthSnapshot,
    speeds: RankSpeeds,
    exporters: Iterable[ExporterView],
    hostname: str,
    *,
    up_seconds: float,
    ready: bool,
    configuration: Configuration,
) -> NodeDocument:
    """Return the node's document as of the time of ``health``."""
    table = health.ranks
    ranks = describe.ranks(health, speeds)
    return NodeDocument(
        rankwatch=__version__,
        hostname=hostname,
        now_seconds=table.taken_seconds,
        up_seconds=up_seconds,
        ready=ready,
        configuration=configuration,
        jobs=tuple(describe.jobs(table.ranks, ranks, table.taken_seconds)),
        ranks=tuple(ranks[:MAX_RANKS]),
        ranks_left_out=max(len(ranks) - MAX_RANKS, 0),
        exporters=tuple(exporters),
        notes=tuple(describe.notes(table)),
    )


def exporter_views(
    running: Iterable[Running], broken: Iterable[str], counts: Mapping[str, SourceCounts]
) -> list[ExporterView]:
    """Return a view of each enabled exporter, sorted by name. ``broken``: exporters that could not be started."""
    views = [
        ExporterView(
            name=exporter.name,
            state="down" if source.is_failing else _state(exporter),
            why="its series could not be rendered: see the log" if source.is_failing else exporter.why,
            remedy="" if source.is_failing else exporter.remedy,
            last_success_seconds=exporter.last_success_seconds,
            series=source.series,
        )
        for exporter in running
        for source in [counts.get(exporter.name, SourceCounts())]
    ]
    views += [ExporterView(name=name, state="down", why="it could not be started: see the log") for name in broken]
    return sorted(views, key=lambda exporter: exporter.name)


def _state(exporter: Running) -> str:
    if not exporter.looked:
        return "starting"
    if not exporter.ok:
        return "down"
    return "up" if exporter.present else "absent"
