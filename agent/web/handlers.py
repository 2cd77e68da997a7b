"""What the web server serves: the routes and their answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from agent.core.fair_lane import FairLane
from agent.export.exposition import Rendered, Selection, SelectionError, select
from agent.web.messages import TEXT, HttpRequest, HttpResponse

HTML = "text/html; charset=utf-8"
JSON = "application/json"
EVIDENCE = "/evidence/"
STATIC_HEADERS = (("Cache-Control", "max-age=86400"),)
_JSON_HEADERS = (("Cache-Control", "no-store"),)
_HTML_HEADERS = (
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)


@dataclass
class Pages:
    """The handler for the web server.

    ``render`` makes an exposition off the event loop; concurrent scrapes that want the same share one. What the shipped
    scrape jobs ask for has a lane of its own. All other selections share a lane with one render at a time, in turns by
    peer: a shipped scrape waits for no more than that one. ``exporters``: names that a scrape may ask for. ``ready``:
    whether the agent has begun to work. ``front_page`` and ``document``: what `/` and `/api/v1/ranks` show. While
    ``may_show`` is False the page would lack ranks that run, and a scrape is answered with 503. The last five are
    called on the event loop. ``static``: what does not change, by path. ``evidence`` gives a file of a bundle of
    evidence by its name, None where there is none to give: only to requests that are private.
    """

    render: Callable[[Selection], Awaitable[Rendered]]
    exporters: Callable[[], frozenset[str]]
    ready: Callable[[], bool]
    front_page: Callable[[], str]
    document: Callable[[], bytes]
    may_show: Callable[[], bool]
    static: Mapping[str, HttpResponse]
    evidence: Callable[[str], Awaitable[bytes | None]]

    def __post_init__(self) -> None:
        """Open both lanes."""
        self._shipped: FairLane[Selection, Rendered] = FairLane(self.render)
        self._others: FairLane[Selection, Rendered] = FairLane(self.render)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer ``request``; raises what ``render`` raises."""
        match request.path:
            case "/metrics":
                return await self._metrics(request)
            case "/-/healthy":
                return HttpResponse(200, TEXT, b"rankwatch is healthy\n")
            case "/-/ready":
                return HttpResponse(200, TEXT, b"ready\n") if self.ready() else HttpResponse(503, TEXT, b"not ready\n")
            case "/":
                return HttpResponse(200, HTML, self.front_page().encode(), _HTML_HEADERS)
            case "/api/v1/ranks":
                return HttpResponse(200, JSON, self.document(), _JSON_HEADERS)
            case path if path.startswith(EVIDENCE):
                return await self._evidence_file(request)
            case path if (response := self.static.get(path)) is not None:
                return response
            case _:
                return HttpResponse(404, TEXT, b"Not found; see / for what there is\n")

    async def _evidence_file(self, request: HttpRequest) -> HttpResponse:
        if not request.is_private:
            return HttpResponse(403, TEXT, b"Only over TLS, with a password\n")
        name = request.path.removeprefix(EVIDENCE)
        body = await self.evidence(name)
        if body is None:
            return HttpResponse(404, TEXT, b"No such file of evidence, or none are served\n")
        kind = JSON if name.endswith(".json") else "application/gzip"
        return HttpResponse(200, kind, body, (*_JSON_HEADERS, ("Content-Disposition", "attachment")))

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        if not self.may_show():
            return HttpResponse(503, TEXT, b"The ranks are being looked for since the start; ask again\n")
        try:
            selection = select(request.query, request.headers, self.exporters())
        except SelectionError as error:
            return HttpResponse(400, TEXT, f"{error}\n".encode("utf-8", "replace"))
        lane = self._shipped if selection.is_shipped else self._others
        rendered = await lane.get(request.client, selection)
        headers: tuple[tuple[str, str], ...] = (("Vary", "Accept, Accept-Encoding"),)
        if rendered.encoding:
            headers += (("Content-Encoding", rendered.encoding),)
        return HttpResponse(200, rendered.content_type, rendered.body, headers)
