"""What the web server serves: the routes and their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.core.single_flight import SingleFlight, TooManyFlights
from agent.export.exposition import Rendered, Selection, SelectionError, select
from agent.web.front_page import Overview, front_page
from agent.web.messages import TEXT, HttpRequest, HttpResponse

HTML = "text/html; charset=utf-8"
_HTML_HEADERS = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)


class Pages:
    """The handler for the web server.

    ``render`` makes an exposition off the event loop; concurrent scrapes that want the same share one. ``exporters``
    are the names that a scrape may ask for; ``ready`` says whether the agent has begun to work; ``overview`` gives
    what the front page shows. The last three are called on the event loop.
    """

    def __init__(
        self,
        render: Callable[[Selection], Awaitable[Rendered]],
        exporters: Callable[[], frozenset[str]],
        ready: Callable[[], bool],
        overview: Callable[[], Overview],
    ) -> None:
        self.renders: SingleFlight[Selection, Rendered] = SingleFlight(render)
        self._exporters = exporters
        self._ready = ready
        self._overview = overview

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request``; raises what ``render`` raises."""
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/-/healthy":
                return HttpResponse(200, TEXT, b"rankwatch is healthy\n")
            case "/-/ready":
                return HttpResponse(200, TEXT, b"ready\n") if self._ready() else HttpResponse(503, TEXT, b"not ready\n")
            case "/":
                return HttpResponse(200, HTML, front_page(self._overview()).encode(), _HTML_HEADERS)
            case _:
                return HttpResponse(404, TEXT, b"Not found; see / for what there is\n")

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        try:
            rendered = await self.renders.get(select(request.query, request.headers, self._exporters()))
        except SelectionError as error:
            return HttpResponse(400, TEXT, f"{error}\n".encode("utf-8", "replace"))
        except TooManyFlights:
            return HttpResponse(503, TEXT, b"Too many different scrapes at once\n")
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if rendered.encoding:
            headers += (("Content-Encoding", rendered.encoding),)
        return HttpResponse(200, rendered.content_type, rendered.body, headers)
