import asyncio

import pytest

from agent.core.single_flight import MAX_FLIGHTS
from agent.export.exposition import Rendered, Selection
from agent.web.front_page import Overview
from agent.web.handlers import Pages
from agent.web.messages import HttpRequest


class Agent:
    """What the pages are given, and what they asked it for."""

    def __init__(self) -> None:
        self.asked: list[Selection] = []
        self.is_ready = False
        self.go = asyncio.Event()
        self.go.set()
        self.pages = Pages(self.render, lambda: frozenset({"process"}), lambda: self.is_ready, self.overview)

    async def render(self, selection: Selection) -> Rendered:
        self.asked.append(selection)
        await self.go.wait()
        return Rendered(b"x 1\n", "text/plain; version=0.0.4", "gzip" if selection.gzip else "")

    def overview(self) -> Overview:
        return Overview(version="0.1.0", hostname="h", uptime_seconds=0, ready=self.is_ready)


async def test_metrics_are_rendered_as_asked() -> None:
    """A scrape is answered with what was rendered for its query and headers."""
    agent = Agent()
    request = HttpRequest("/metrics", {"collect[]": ["process"]}, {"accept-encoding": "gzip"})
    response = await agent.pages(request)
    assert (response.status, response.content_type, response.body) == (200, "text/plain; version=0.0.4", b"x 1\n")
    assert ("Content-Encoding", "gzip") in response.headers
    assert agent.asked == [Selection(collect=frozenset({"process"}), gzip=True)]
    plain = await agent.pages(HttpRequest("/metrics"))
    assert "Content-Encoding" not in dict(plain.headers)


async def test_unknown_exporter_is_named() -> None:
    """A scrape for an exporter that is not there is a 400 that names it, and nothing is rendered."""
    agent = Agent()
    response = await agent.pages(HttpRequest("/metrics", {"collect[]": ["gone\udc80"]}))
    assert response.status == 400
    assert b"gone" in response.body
    assert agent.asked == []


async def test_concurrent_scrapes_share_a_render() -> None:
    """Equal scrapes at the same time cost one render."""
    agent = Agent()
    agent.go.clear()
    tasks = [asyncio.create_task(agent.pages(HttpRequest("/metrics"))) for _ in range(5)]
    while agent.pages.renders.shared < 4:  # what is waited for is counted, not signalled
        await asyncio.sleep(0)
    agent.go.set()
    assert [response.status for response in await asyncio.gather(*tasks)] == [200] * 5
    assert len(agent.asked) == 1


async def test_too_many_different_scrapes_are_refused() -> None:
    """One different scrape more than can be rendered at once is a 503."""
    agent = Agent()
    agent.go.clear()
    tasks = [
        asyncio.create_task(agent.pages(HttpRequest("/metrics", {"name[]": [str(i)]}))) for i in range(MAX_FLIGHTS)
    ]
    while len(agent.asked) < MAX_FLIGHTS:  # what is waited for is counted, not signalled
        await asyncio.sleep(0)
    assert (await agent.pages(HttpRequest("/metrics", {"name[]": ["more"]}))).status == 503
    agent.go.set()
    await asyncio.gather(*tasks)


async def test_health_and_readiness() -> None:
    """The agent is healthy while it answers, and ready when it says so."""
    agent = Agent()
    assert (await agent.pages(HttpRequest("/-/healthy"))).status == 200
    assert (await agent.pages(HttpRequest("/-/ready"))).status == 503
    agent.is_ready = True
    assert (await agent.pages(HttpRequest("/-/ready"))).status == 200


async def test_front_page_is_html_that_may_load_nothing() -> None:
    """The front page forbids the browser to load or run anything."""
    response = await Agent().pages(HttpRequest("/"))
    assert (response.status, response.content_type) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in dict(response.headers)["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/metrics/", "//metrics", "/favicon.ico", "/%6detrics", "/../etc/passwd"])
async def test_anything_else_is_not_found(path: str) -> None:
    """What is not a page is a 404."""
    assert (await Agent().pages(HttpRequest(path))).status == 404
