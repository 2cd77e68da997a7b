"""Many clients that scrape by name, beside Prometheus: the real server, pages and registry."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agent.core.log import Logger
from agent.core.metrics import Family, Metric
from agent.core.threads import OwnThread
from agent.export.exposition import Rendered, Selection
from agent.export.registry import Registry
from agent.web.handlers import MAX_NAMED_SCRAPES, Pages
from agent.web.listen import ListenAddress
from agent.web.server import WebServer

CLIENTS = 200
SCRAPE = b"GET /metrics?collect[]=one HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def evidence_files(_name: str) -> bytes | None:
    """None."""
    return None


class One:
    """A source of a family for each client."""

    name, series_cap = "one", 10_000

    def shown(self) -> bool:
        return True

    def snapshot(self) -> object:
        return None

    def families(self, _snapshot: Any) -> Iterable[Metric]:
        for number in range(CLIENTS):
            family = Family(f"rankwatch_{number}", "gauge", "help", ("n",))
            yield Metric(family, [(str(each),) for each in range(10)], [float(number)] * 10)


class Agent:
    """The server over the registry; the renders for scrapes by name can be held back."""

    def __init__(self) -> None:
        self.thread = OwnThread("render")
        self.registry = Registry(lambda: [One()], Logger("test"), self.thread)
        self.go = asyncio.Event()
        self.go.set()
        self.pages = Pages(
            self.render, lambda: frozenset({"one"}), lambda: True, str, bytes, lambda: True, {}, evidence_files
        )
        self.server = WebServer(self.pages, Logger("web"))
        self.port = 0

    async def render(self, selection: Selection) -> Rendered:
        if not selection.gzip:
            await self.go.wait()
        return await self.registry.render(selection)

    async def connect(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)

    async def scrape(self) -> bytes:
        """What Prometheus gets."""
        reader, writer = await self.connect()
        writer.write(SCRAPE)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 200 "), (head, self.server.stats)
        return gzip.decompress(body)

    async def ask_by_name(self, number: int) -> Streams:
        """Ask for a client's own family, and for one that nobody else asks for."""
        reader, writer = await self.connect()
        target = f"/metrics?name[]=rankwatch_{number}&name[]=other_{number}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        return reader, writer


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    """An agent that serves on a free port, and ends without a failure."""
    made = Agent()
    made.port = await made.server.start(ListenAddress("127.0.0.1", 0))
    yield made
    made.go.set()
    await made.server.stop(5.0)
    made.thread.stop()
    assert made.server.stats.failures == 0


@asynccontextmanager
async def clients(agent: Agent) -> AsyncIterator[list[Streams]]:
    """As many clients as wanted, each with its question sent, all at once."""
    opened = await asyncio.gather(*map(agent.ask_by_name, range(CLIENTS)))
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()


async def answered(reader: asyncio.StreamReader) -> bytes:
    """The status and body of an answer; nothing where the connection was closed without one."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
        return head.split(b" ")[1] + b" " + await reader.readexactly(length)
    return b""


async def test_a_scrape_is_answered_while_all_scrapes_by_name_are_held(agent: Agent) -> None:
    """Among 200 clients that ask for different names and are not answered, Prometheus gets what it gets without them.

    Those that the server keeps are then answered from one render, each with its own family.
    """
    alone = await agent.scrape()
    agent.go.clear()
    async with clients(agent) as opened:
        async with asyncio.timeout(10):
            while agent.pages.shared < MAX_NAMED_SCRAPES - 1:  # what is waited for is counted, not signalled
                await asyncio.sleep(0.001)
        assert [await agent.scrape() for _ in range(3)] == [alone] * 3
        renders = agent.registry.renders
        agent.go.set()
        answers = [await answered(reader) for reader, _ in opened]
    assert agent.registry.renders == renders + 1
    served = {number: answer for number, answer in enumerate(answers) if answer.startswith(b"200 ")}
    assert len(served) == MAX_NAMED_SCRAPES
    for number, answer in served.items():
        samples = [line for line in answer.splitlines()[2:] if line]
        assert samples == [f'rankwatch_{number}{{n="{each}"}} {float(number)}'.encode() for each in range(10)]


@pytest.mark.slow
async def test_scrapes_are_answered_among_clients_that_come_again(agent: Agent) -> None:
    """While 200 clients ask for different names over and over, Prometheus gets every time what it gets without them."""
    alone = await agent.scrape()

    async def ask_again(number: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await agent.ask_by_name(number)
                try:
                    await answered(reader)
                finally:
                    writer.close()

    asking = [asyncio.create_task(ask_again(number)) for number in range(CLIENTS)]
    try:
        assert [await agent.scrape() for _ in range(10)] == [alone] * 10
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await agent.server.stop(5.0)
    assert agent.server.stats.responses[200] > 11
