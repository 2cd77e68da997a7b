"""The routes of the web server and their replies."""

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
    """The handler of the web server.

    ``render`` renders an exposition off the event loop; concurrent scrapes with equal selections share one exposition.
    Selections of the shipped scrape jobs have their own queue. All other selections share a second queue, with one
    render at a time and with peers in turn: a shipped scrape waits for at most one render of the second queue.
    ``exporters``: names that a scrape may select. ``ready`` returns True once the agent has started. ``front_page``,
    ``document``: content of `/` and `/api/v1/ranks`. While ``may_show`` is False, running ranks would be missing, so
    scrapes get 503. The event loop calls the functions from ``exporters`` to ``may_show``. ``static``: constant
    answers, by path. ``evidence`` returns a file of an evidence bundle by its name, or None; it is called only for
    private requests.
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
        self._shipped: FairLane[Selection, Rendered] = FairLane(self.render)
        self._others: FairLane[Selection, Rendered] = FairLane(self.render)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to ``request``; raises the errors of ``render``."""
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
                return HttpResponse(404, TEXT, b"Not found; / lists the pages\n")

    async def _evidence_file(self, request: HttpRequest) -> HttpResponse:
        if not request.is_private:
            return HttpResponse(403, TEXT, b"Only over TLS, with a password\n")
        name = request.path.removeprefix(EVIDENCE)
        body = await self.evidence(name)
        if body is None:
            return HttpResponse(404, TEXT, b"No such evidence file, or evidence is not served\n")
        kind = JSON if name.endswith(".json") else "application/gzip"
        return HttpResponse(200, kind, body, (*_JSON_HEADERS, ("Content-Disposition", "attachment")))

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        if not self.may_show():
            return HttpResponse(503, TEXT, b"Starting: the search for ranks has not ended; try again\n")
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
