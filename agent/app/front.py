"""What people and scripts see of the node: the document at `/api/v1/ranks`, and the page at `/`.

Both are made on the event loop, at most every HOLD_SECONDS each. Open pages share MAX_LOOKS_PER_SECOND.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent import __version__
from agent.app.config import WebConfig
from agent.app.running import Running
from agent.core.clock import Clock
from agent.core.identity import RankLabel
from agent.export.registry import SourceCounts
from agent.page import describe
from agent.page.document import Configuration, ExporterView, NodeDocument, write
from agent.page.front_page import SiteLinks, front_page
from agent.page.static import SCRIPT, STYLE
from agent.ranks.health import HealthSnapshot
from agent.ranks.speeds import SpeedView
from agent.web.handlers import STATIC_HEADERS
from agent.web.messages import HttpResponse

HOLD_SECONDS = 0.5
MIN_PERIOD_SECONDS = 1.0
MAX_PERIOD_SECONDS = 30.0
MAX_LOOKS_PER_SECOND = 6.0
COUNT_SECONDS = 5.0
"""Over which looks are counted, to tell how many pages are open."""

STATIC = {each.path: HttpResponse(200, each.content_type, each.text, STATIC_HEADERS) for each in (SCRIPT, STYLE)}
"""What the page needs besides, by path."""


class Front:
    """Both, of what ``document`` and ``speed_of`` say; ``web`` gives the configuration in use."""

    def __init__(
        self,
        clock: Clock,
        document: Callable[[], NodeDocument],
        speed_of: Callable[[RankLabel], SpeedView],
        web: Callable[[], WebConfig],
    ) -> None:
        self._clock = clock
        self._document = document
        self._speed_of = speed_of
        self._web = web
        self._text, self._json = "", b""
        self._made_at = self._written_at = float("-inf")
        self._period_seconds = MIN_PERIOD_SECONDS
        self._looks = 0
        self._counted_from = clock.monotonic()

    def text(self) -> str:
        """Return the page, HOLD_SECONDS old at most."""
        now = self._clock.monotonic()
        self._count(now)
        if now - self._made_at >= HOLD_SECONDS:
            web = self._web()
            self._text = front_page(
                self._document(), self._traffic, SiteLinks(web.dashboards, web.runbooks), self._period_seconds
            )
            self._made_at = now
        return self._text

    def json(self) -> bytes:
        """Return the document, HOLD_SECONDS old at most."""
        now = self._clock.monotonic()
        if now - self._written_at >= HOLD_SECONDS:
            self._json = write(self._document())
            self._written_at = now
        return self._json

    def _count(self, now: float) -> None:
        """Have each open page look so rarely that all together do not look too often."""
        elapsed = now - self._counted_from
        self._looks += elapsed >= 0
        if elapsed >= COUNT_SECONDS and elapsed >= self._period_seconds:
            pages = self._looks / elapsed * self._period_seconds
            wanted = min(max(MIN_PERIOD_SECONDS, pages / MAX_LOOKS_PER_SECOND), MAX_PERIOD_SECONDS)
            settles = max(wanted, self._period_seconds) if wanted != self._period_seconds else 0.0
            self._period_seconds = wanted
            self._looks, self._counted_from = 0, now + settles  # until all have heard of it

    def _traffic(self, job_id: str, rank: str) -> Sequence[float]:
        return self._speed_of(RankLabel(job_id, rank)).traffic


def node_document(
    health: HealthSnapshot,
    speed_of: Callable[[RankLabel], SpeedView],
    exporters: Iterable[ExporterView],
    hostname: str,
    *,
    up_seconds: float,
    ready: bool,
    configuration: Configuration,
) -> NodeDocument:
    """All of it, as of the time when ``health`` was taken."""
    table = health.ranks
    found = describe.ranks(table.ranks, health.entries, health.counted, speed_of)
    ranks, left_out = describe.bounded(found)
    return NodeDocument(
        rankwatch=__version__,
        hostname=hostname,
        now_seconds=table.taken_seconds,
        up_seconds=up_seconds,
        ready=ready,
        configuration=configuration,
        jobs=tuple(describe.jobs(table.ranks, found, table.taken_seconds)),
        ranks=ranks,
        ranks_left_out=left_out,
        exporters=tuple(exporters),
        notes=tuple(describe.notes(table)),
    )


def exporter_views(
    running: Iterable[Running], broken: Iterable[str], counts: Mapping[str, SourceCounts]
) -> list[ExporterView]:
    """One for each exporter that is enabled, by name. ``broken``: those that could not be started."""
    found = [
        ExporterView(
            name=each.name,
            state=_state(each),
            why=each.why,
            last_success_seconds=each.last_success_seconds,
            series=counts.get(each.name, SourceCounts()).series,
        )
        for each in running
    ]
    found += [ExporterView(name=name, state="down", why="it could not be started: see the log") for name in broken]
    return sorted(found, key=lambda each: each.name)


def _state(each: Running) -> str:
    if not each.looked:
        return "starting"
    if not each.ok:
        return "down"
    return "up" if each.present else "absent"
