import asyncio
import gzip

from fake_clock import FakeClock

from agent.app.front import HOLD_SECONDS, STATIC, CachedAnswer
from agent.export.exposition import LIVENESS, Body, Rendered, Selection
from agent.page.static import SCRIPT, STYLE
from agent.web.handlers import Pages
from agent.web.messages import HttpRequest, HttpResponse

EXPORTERS = frozenset({"process", *LIVENESS, *map(str, range(200))})
BUNDLE = "7-20261122T120000Z-here.tar.gz"


async def evidence_files(name: str) -> bytes | None:
    """Return the file of one bundle."""
    return b"packed" if name == BUNDLE else None


class Agent:
    """The inputs of the pages, and the queries that they made."""

    def __init__(self) -> None:
        self.queries: list[Selection] = []
        self.is_ready = False
        self.go = asyncio.Event()
        self.go.set()
        self.at_once = 0
        self.may_show = True
        self.pages = Pages(
            self.render, lambda: EXPORTERS, lambda: self.is_ready, str, bytes, lambda: self.may_show, {}, evidence_files
        )

    async def render(self, selection: Selection) -> Rendered:
        self.queries.append(selection)
        self.at_once += 1
        await self.go.wait()
        self.at_once -= 1
        body = Body(selection)
        body.add(b"rankwatch_a 1\n")
        return body.rendered()

    def ask(self, **fields: str) -> "asyncio.Task[HttpResponse]":
        """Request /metrics."""
        query = {f"{name}[]": [value] for name, value in fields.items()}
        return asyncio.create_task(self.pages(HttpRequest("/metrics", query, {"accept-encoding": "gzip"})))


async def test_metrics_are_rendered_as_asked() -> None:
    """A scrape gets the page that its query and its headers select."""
    agent = Agent()
    request = HttpRequest("/metrics", {"collect[]": ["process"]}, {"accept-encoding": "gzip"})
    response = await agent.pages(request)
    assert (response.status, response.content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert gzip.decompress(response.body) == b"rankwatch_a 1\n"
    assert ("Content-Encoding", "gzip") in response.headers
    assert agent.queries == [Selection(collect=frozenset({"process"}), gzip=True)]
    plain = await agent.pages(HttpRequest("/metrics"))
    assert "Content-Encoding" not in dict(plain.headers)
    assert plain.body == b"rankwatch_a 1\n"


async def test_a_page_without_its_ranks_is_not_shown() -> None:
    """Before the first look at the ranks, a scrape and readiness give 503, and nothing is rendered."""
    agent = Agent()
    agent.may_show = False
    assert (await agent.pages(HttpRequest("/-/ready"))).status == 503
    assert (await agent.ask()).status == 503
    assert agent.queries == []
    assert (await agent.pages(HttpRequest("/-/healthy"))).status == 200
    agent.may_show = True
    assert (await agent.ask()).status == 200


async def test_shipped_scrapes_wait_for_no_others() -> None:
    """The scrapes of the shipped Prometheus configuration are rendered while 200 other selections wait."""
    agent = Agent()
    agent.go.clear()
    others = [agent.ask(collect=str(number)) for number in range(200)]
    while not agent.queries:  # counted, because nothing signals it
        await asyncio.sleep(0)
    jobs: tuple[dict[str, list[str]], ...] = ({}, {"collect[]": sorted(LIVENESS)}, {"exclude[]": sorted(LIVENESS)})
    shipped = [asyncio.create_task(agent.pages(HttpRequest("/metrics", query))) for query in jobs]
    while len(agent.queries) < 2:
        await asyncio.sleep(0)
    assert agent.at_once == 2
    for task in shipped:
        agent.go.set()
        await task
    assert [entry for entry in agent.queries if entry.is_shipped] == [
        Selection(),
        Selection(collect=LIVENESS),
        Selection(exclude=LIVENESS),
    ]
    agent.go.set()
    statuses = {response.status for response in await asyncio.gather(*others, *shipped)}
    assert (statuses, len(agent.queries)) == ({200}, 203)


async def test_other_selections_take_turns_by_peer() -> None:
    """A peer with one rare selection waits for one render of a peer with 100 selections, not for all."""
    agent = Agent()
    agent.go.clear()
    for number in range(100):
        agent.ask(collect=str(number))
    while not agent.queries:  # counted, because nothing signals it
        await asyncio.sleep(0)
    other = asyncio.create_task(agent.pages(HttpRequest("/metrics", {"collect[]": ["process"]}, client="other")))
    await asyncio.sleep(0)
    agent.go.set()
    assert (await other).status == 200
    assert agent.queries.index(Selection(collect=frozenset({"process"}))) <= 2


async def test_front_page_is_html_that_may_load_nothing() -> None:
    """The front page forbids the browser to load or run anything."""
    response = await Agent().pages(HttpRequest("/"))
    assert (response.status, response.content_type) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in dict(response.headers)["Content-Security-Policy"]


async def test_evidence_is_for_private_requests() -> None:
    """A bundle is served by name over TLS with a password; otherwise the reply is the same as for a missing bundle."""
    pages = Agent().pages
    given = await pages(HttpRequest(f"/evidence/{BUNDLE}", is_private=True))
    assert (given.status, given.content_type, given.body) == (200, "application/gzip", b"packed")
    assert ("Cache-Control", "no-store") in given.headers
    assert (await pages(HttpRequest("/evidence/other.tar.gz", is_private=True))).status == 404
    for name in (BUNDLE, "other.tar.gz"):
        assert (await pages(HttpRequest(f"/evidence/{name}"))).status == 403


def test_it_is_made_at_most_twice_a_second() -> None:
    """The page is rendered once in HOLD_SECONDS, however many clients request it."""
    clock, made = FakeClock(), iter(("first", "second"))
    page = CachedAnswer(clock, lambda: next(made))
    assert {page() for _ in range(100)} == {"first"}
    clock.advance(HOLD_SECONDS)
    assert page() == "second"


def test_script_and_style_are_served() -> None:
    """Script and style are served at the paths in the page."""
    assert {path: answer.body for path, answer in STATIC.items()} == {"/page.js": SCRIPT.text, "/page.css": STYLE.text}
