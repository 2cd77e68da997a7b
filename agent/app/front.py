"""The page at `/` and the document at `/api/v1/ranks` as they are served: made at most every HOLD_SECONDS each, as both
are made on the event loop. Open pages share MAX_LOOKS_PER_SECOND.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.app.config import WebConfig
from agent.core.clock import Clock
from agent.core.identity import RankLabel
from agent.page.document import NodeDocument, write
from agent.page.front_page import SiteLinks, front_page
from agent.page.static import SCRIPT, STYLE
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
