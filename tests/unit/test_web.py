import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from lent import until
from web_log import WebLog

from agent.web import server as web
from agent.web.listen import ListenAddress, open_listeners
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.server import ServerLimits, WebServer

BIG = b"rankwatch_x 1\n" * 75_000  # 1.05 MB
HUGE = b"x" * (16 * 1024 * 1024)  # more than the kernel buffers for a client that does not read
GET = b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n"
SCRAPE_TIMEOUT_SECONDS = 4.0  # of the liveness job in deploy/prometheus/scrape
LAST_GET = b"GET /small HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


class Site:
    """A handler whose replies a test can delay."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.go = asyncio.Event()

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        match request.path:
            case "/held":
                await self.go.wait()
            case "/broken":
                raise RuntimeError("broken")
            case "/big":
                return HttpResponse(200, TEXT, BIG)
            case "/huge":
                return HttpResponse(200, TEXT, HUGE[:-1] + b"x")  # a body of its own
            case "/shared":
                return HttpResponse(200, TEXT, HUGE)
        return HttpResponse(200, TEXT, b"small\n", (("X-Own", "1"),))


class Served:
    """A server under test, and its clients."""

    def __init__(self, limits: ServerLimits) -> None:
        self.site = Site()
        self.log = WebLog()
        self.server = WebServer(self.site, self.log, limits)
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"", octet: int = 1) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect from 127.0.0.``octet``; the connection is closed at the end of the test."""
        where = (f"127.0.0.{octet}", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20, local_addr=where)
        writer.write(sent)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, sent: bytes) -> bytes:
        """Send bytes and return everything that the server sends until it closes."""
        reader, writer = await self.connect()
        with suppress(ConnectionError):  # a reset after the reply is fine
            writer.write(sent)
        received = b""
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                received += piece
        writer.close()
        return received

    def connections(self) -> int:
        """Return the number of the server's open connections."""
        return len(self.server._connections)


@asynccontextmanager
async def serving(limits: ServerLimits | None = None) -> AsyncIterator[Served]:
    """Run a server on a free port of the loopback; it must stop without a fault."""
    served = Served(limits or ServerLimits())
    [opened] = open_listeners(ListenAddress("127.0.0.1", 0))
    await served.server.listen([opened])
    served.port = opened.getsockname()[1]
    try:
        yield served
    finally:
        served.site.go.set()
        await served.server.stop(1.0)
        for writer in served.writers:
            writer.close()
    assert served.connections() == 0


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read one response: status, headers, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
    return int(head[0].split(" ")[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def test_get_and_head() -> None:
    """On one connection, a GET gets the handler's response, and a HEAD gets the same response without the body."""
    async with serving() as served:
        first_get = b"GET /small?a=1&a=2&b= HTTP/1.1\r\nHost: h\r\nAccept: x\r\nAccept: y\r\n\r\n"
        reader, writer = await served.connect(first_get)
        status, headers, body = await read_response(reader)
        assert (status, body, headers["content-type"], headers["x-own"]) == (200, b"small\n", TEXT, "1")
        assert "date" in headers and "connection" not in headers
        writer.write(b"HEAD /big HTTP/1.1\r\nHost: h\r\n\r\n" + LAST_GET)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert f"Content-Length: {len(BIG)}" in head
        status, headers, body = await read_response(reader)
        assert (status, headers["connection"], body) == (200, "close", b"small\n")
        assert await reader.read() == b""
        first = served.site.requests[0]
        assert (first.path, first.query, first.headers["accept"]) == ("/small", {"a": ["1", "2"], "b": [""]}, "x, y")
        assert sum(served.log.closed.values()) == 0


ODD = {
    405: [b"POST /small HTTP/1.1|Host: h||", b"DELETE /small HTTP/1.1|Host: h|Content-Length: 5||abcde",
     b"CONNECT h:1 HTTP/1.1|Host: h||"],
    413: [b"GET /small HTTP/1.1|Host: h|Content-Length: 5||abcde",
     b"GET /small HTTP/1.1|Host: h|Transfer-Encoding: chunked||0||"],
    501: [b"GET /small HTTP/1.1|Host: h|Transfer-Encoding: gzip||"],
    400: [b"GET /small HTTP/1.1|Host: h|Content-Length: x||", b"GET ftp://h/small HTTP/1.1|Host: h||",
     b"GET http://h/small HTTP/1.1|Host: h||", b"GET /small#a HTTP/1.1|Host: h||", b"GET * HTTP/1.1|Host: h||",
     b"GET /small?a=%ff HTTP/1.1|Host: h||", b"GET /small?" + b"a&" * 257 + b" HTTP/1.1|Host: h||",
     b"GET /small HTTP/1.1||", b"GET /small HTTP/1.1|Host: h|Host: h||", b"GET /small HTTP/1.1|Host: h|host: other||",
     b"GET /small HTTP/1.0|Host: h|Host: h||",
     b"GET /small||", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03||", b"||||"],
    505: [b"GET /small HTTP/2.0|Host: h||"],
}  # fmt: skip
"""Requests by their status; | stands for the end of a line."""


async def test_odd_request_is_refused_and_closed() -> None:
    """A request other than a plain GET or HEAD gets its status and a closed connection, without the handler."""
    for status, sent in ((status, sent) for status, requests in ODD.items() for sent in requests):
        async with serving() as served:
            reader, writer = await served.connect(sent.replace(b"|", b"\r\n"))
            got, headers, _ = await read_response(reader)
            assert (got, headers["connection"]) == (status, "close"), sent
            assert ("allow" in headers) == (status == 405)
            assert await reader.read() == b""
            writer.close()
            await until(lambda: served.connections() == 0)
            closed = served.log.closed
            assert (closed["malformed"] + closed["refused_request"], served.site.requests) == (1, [])
            assert served.log.faults == 0


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "pipelined"])
@pytest.mark.parametrize(("excess", "status"), [(0, b"200"), (1, b"431"), (1_000_000, b"431")])
async def test_header_is_bounded(excess: int, status: bytes, before: bytes) -> None:
    """A header of exactly 16 KiB is served; one byte more gives 431, even if part of it came with another request."""
    start, end = LAST_GET[:-2] + b"X-Pad: ", b"\r\n\r\n"
    async with serving() as served:
        answer = await served.ask(before + start + b"x" * (16 * 1024 - len(start) - len(end) + excess) + end)
        assert answer.startswith(b"HTTP/1.1 " + (b"200" if before else status))
        assert b"HTTP/1.1 " + status in answer
        await until(lambda: served.connections() == 0)
        assert served.log.closed["header_too_large"] == (1 if excess else 0)


@pytest.mark.parametrize(("seconds", "sent_bytes"), [(0.05, 0), (60.0, web.LINGER_BYTES + 16 * 1024)])
async def test_refused_client_is_bounded(monkeypatch: pytest.MonkeyPatch, seconds: float, sent_bytes: int) -> None:
    """A refused client is disconnected after a limited time or number of bytes."""
    monkeypatch.setattr(web, "LINGER_SECONDS", seconds)
    async with serving() as served:
        _, writer = await served.connect(b"POST / HTTP/1.1\r\nHost: h\r\n\r\n" + b"x" * sent_bytes)
        await until(lambda: served.log.closed["refused_request"] == 1)
        writer.transport.abort()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET + b"GET"])
async def test_header_deadline(sent: bytes) -> None:
    """A client without a complete header in time is disconnected, even on a kept connection."""
    async with serving(ServerLimits(header_seconds=0.05)) as served:
        assert (await served.ask(sent)).count(b"HTTP/1.1 200") == (1 if sent.startswith(GET) else 0)
        assert served.log.closed["header_timeout"] == 1


async def test_idle_deadline() -> None:
    """A kept connection can be idle for longer than a header may take, up to a deadline of its own."""
    async with serving(ServerLimits(header_seconds=0.02, idle_seconds=0.2)) as served:
        loop = asyncio.get_running_loop()
        start = loop.time()
        assert (await served.ask(GET)).startswith(b"HTTP/1.1 200")
        assert loop.time() - start >= 0.2
        assert served.log.closed["idle_timeout"] == 1


def slow_socket(port: int) -> socket.socket:
    """Return a connected socket with a small buffer that nothing reads."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.settimeout(0)
    with suppress(BlockingIOError):
        slow.connect(("127.0.0.1", port))
    return slow


async def stuck_reader(served: Served, path: bytes) -> socket.socket:
    """Request ``path`` and never read the response."""
    slow = slow_socket(served.port)
    await asyncio.get_running_loop().sock_sendall(slow, GET.replace(b"/small", path))
    return slow


async def test_write_deadline() -> None:
    """A client that does not read the response in time is disconnected."""
    async with serving(ServerLimits(write_seconds=0.1)) as served:
        with await stuck_reader(served, b"/huge"):
            await until(lambda: served.log.closed["write_timeout"] == 1)


async def test_answers_not_read_are_bounded_in_memory() -> None:
    """Above the limit of unread bytes, the connection writing for longest is closed; one response can be larger."""
    async with serving(ServerLimits(unread_bytes=2 * len(HUGE) - 1)) as served:
        with await stuck_reader(served, b"/huge"):
            await until(lambda: len(served.site.requests) == 1)
            assert served.log.closed["evicted"] == 0
            with await stuck_reader(served, b"/huge"):
                await until(lambda: served.log.closed["evicted"] == 1)
                assert served.connections() == 1
    async with serving(ServerLimits(unread_bytes=1)) as served:
        assert (await served.ask(LAST_GET.replace(b"/small", b"/huge"))).endswith(HUGE)


def name_peers(served: Served) -> None:
    """Identify clients by the last octet of their address."""
    served.server._peers.of = lambda peer, _own: peer[0].rpartition(".")[2]  # type: ignore[method-assign,index]


async def test_the_peer_with_most_connections_loses_one() -> None:
    """At the limit, the peer with the most connections loses the oldest; another peer keeps an even older one."""
    async with serving(ServerLimits(connections=4)) as served:
        name_peers(served)
        few, few_writer = await served.connect(GET)
        await read_response(few)
        for _ in range(4):
            await served.connect(GET, 2)
        await until(lambda: served.log.closed["evicted"] == 1)
        few_writer.write(LAST_GET)
        assert ((await read_response(few))[0], served.log.closed["evicted"]) == (200, 1)


async def test_a_peer_that_is_answered_on_all_connections_loses_one_to_another() -> None:
    """If one peer has requests on all connections, a new peer is served, and the oldest connection is closed."""
    held = GET.replace(b"/small", b"/held")
    async with serving(ServerLimits(connections=2)) as served:
        name_peers(served)
        first, _ = await served.connect(held, 2)
        await until(lambda: len(served.site.requests) == 1)
        await served.connect(held, 2)
        await until(lambda: len(served.site.requests) == 2)
        other, _ = await served.connect(LAST_GET)
        assert (await read_response(other))[0] == 200
        assert (await first.read(), served.log.closed["evicted"]) == (b"", 1)
        await until(lambda: len(served.server._tasks) == 1)


async def test_a_request_of_an_evicted_connection_is_not_answered() -> None:
    """An unread request on an evicted connection reaches no handler."""
    async with serving() as served:
        await served.connect()
        await until(lambda: served.connections() == 1)
        [evicted] = served.server._connections
        evicted.reader.feed_data(GET)
        served.server._close(evicted, "evicted")
        await until(lambda: not served.server._tasks)
        assert served.site.requests == []


async def test_a_client_that_leaves_in_the_middle_of_an_answer_leaves_nothing() -> None:
    """If a client closes during a response, no reference to the response stays, even without garbage collection."""
    references = sys.getrefcount(HUGE)
    gc.disable()
    try:
        async with serving() as served:
            for _ in range(3):
                with await stuck_reader(served, b"/shared"):
                    await until(lambda: bool(served.server._writing))
                await until(lambda: not served.server._tasks)
            assert (served.log.closed["peer_gone"], served.log.faults) == (3, 0)
            assert sys.getrefcount(HUGE) == references
    finally:
        gc.enable()


async def test_the_peer_with_the_largest_answers_loses_one() -> None:
    """Above the limit, the peer with the most unread bytes loses a connection, not the peer reading for longest."""
    async with serving(ServerLimits(unread_bytes=2 * len(HUGE))) as served:
        name_peers(served)
        ask = GET.replace(b"/small", b"/huge")
        few, _ = await served.connect(ask)
        await until(lambda: len(served.server._writing) == 1)
        await served.connect(ask, 2)
        await until(lambda: len(served.server._writing) == 2)
        await served.connect(ask, 2)
        await until(lambda: served.log.closed["evicted"] == 1)
        assert len((await read_response(few))[2]) == len(HUGE)


async def test_the_oldest_waiting_connection_is_closed() -> None:
    """At the limit, a new connection replaces the one idle for longest, not one with a request in progress."""
    async with serving(ServerLimits(connections=3)) as served:
        held, _ = await served.connect(GET.replace(b"/small", b"/held"))
        await until(lambda: len(served.site.requests) == 1)
        first, first_writer = await served.connect(GET)
        await until(lambda: served.connections() == 2)
        await read_response(first)
        second, _ = await served.connect()
        await until(lambda: served.connections() == 3)
        first_writer.write(GET)  # now `second` has been idle for longest
        await read_response(first)
        third, third_writer = await served.connect()
        assert await second.read() == b""
        third_writer.write(LAST_GET)
        assert (await read_response(third))[0] == 200
        served.site.go.set()
        assert ((await read_response(held))[0], served.log.closed["evicted"]) == (200, 1)


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    """At the limit, a connection whose client does not read is closed for a new connection."""
    async with serving(ServerLimits(connections=1)) as served:
        with await stuck_reader(served, b"/huge"):
            await until(lambda: len(served.site.requests) == 1)
            assert (await served.ask(LAST_GET)).endswith(b"small\n")
            assert served.log.closed["evicted"] == 1


async def test_new_connection_is_refused_when_all_are_being_answered() -> None:
    """At the limit, with a request in progress on every connection, the new connection is closed."""
    async with serving(ServerLimits(connections=1)) as served:
        held, _ = await served.connect(GET.replace(b"/small", b"/held"))
        await until(lambda: len(served.site.requests) == 1)
        assert (await served.ask(GET), served.log.closed["all_busy"]) == (b"", 1)
        served.site.go.set()
        assert (await read_response(held))[0] == 200


async def test_broken_handler_costs_one_answer() -> None:
    """A handler that raises gives 500 and a fault, and a slow handler gives 503; connection and server go on."""
    async with serving(ServerLimits(response_seconds=0.05)) as served:
        for path, status, faults in ((b"/broken", b"500", 1), (b"/held", b"503", 2)):
            answer = await served.ask(GET.replace(b"/small", path) + LAST_GET)
            assert answer.startswith(b"HTTP/1.1 %s " % status) and answer.endswith(b"small\n")
            assert b"RuntimeError" not in answer
            assert served.log.faults == faults


async def test_stop_lets_answers_end() -> None:
    """A stop closes the listener and idle connections, and finishes responses in progress."""
    async with serving() as served:
        held, _ = await served.connect(GET.replace(b"/small", b"/held"))
        await until(lambda: len(served.site.requests) == 1)
        idle, _ = await served.connect()
        await until(lambda: served.connections() == 2)
        stop = asyncio.create_task(served.server.stop(10.0))
        assert await idle.read() == b""
        with pytest.raises(ConnectionError):
            await served.connect()
        assert not stop.done()
        served.site.go.set()
        status, headers, body = await read_response(held)
        assert (status, headers["connection"], body) == (200, "close", b"small\n")
        await stop
        assert served.log.closed["stopped"] == 1


HTTP_PIECES = st.sampled_from(
    [b"GET", b"HEAD ", b" /small", b" HTTP/1.1", b"\r\n", b"Host: h\r\n", b"Content-Length: 3\r\n", GET, b"\r\n\r\n",
     b"Transfer-Encoding: chunked\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"Expect: 100-continue\r\n"]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HTTP_PIECES | st.binary(max_size=64), max_size=12))
def test_any_bytes_are_answered_or_closed(pieces: list[bytes]) -> None:
    """Any bytes of a client get a response or a closed connection in time, and the server goes on without a fault."""

    async def check() -> None:
        async with serving(ServerLimits(header_seconds=0.02, idle_seconds=0.02)) as served:
            answer = await served.ask(b"".join(pieces))
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            async with asyncio.timeout(10.0):  # on a busy machine this header can be late too
                while not (await served.ask(LAST_GET)).endswith(b"small\n"):
                    pass
            assert served.log.faults == 0

    asyncio.run(check())


async def flood(served: Served, clients: ExitStack, count: int) -> None:
    """Connect clients that are silent, send half a header, never read, or send too much."""
    loop = asyncio.get_running_loop()
    for i in range(count):
        client = clients.enter_context(slow_socket(served.port))
        with suppress(OSError):
            match i % 4:
                case 1:
                    await loop.sock_sendall(client, b"GET /big HTTP/1.1\r\nHost:")
                case 2:
                    await loop.sock_sendall(client, GET.replace(b"/small", b"/huge"))
                case 3:
                    async with asyncio.timeout(0.1):
                        await loop.sock_sendall(client, b"GET /" + b"x" * 100_000)


async def deaf_flood(served: Served, clients: ExitStack, count: int) -> None:
    """Connect clients that request large responses and read nothing."""
    for _ in range(count):
        clients.enter_context(await stuck_reader(served, b"/huge"))


@pytest.mark.slow
@pytest.mark.parametrize("make_flood", [flood, deaf_flood])
async def test_scrape_is_answered_among_300_bad_clients(
    make_flood: Callable[[Served, ExitStack, int], Awaitable[None]],
) -> None:
    """While 300 clients misbehave, and new ones connect, the median scrape of 1 MB meets the shipped timeout."""
    took_seconds = []
    with ExitStack() as clients:
        async with serving() as served:
            loop = asyncio.get_running_loop()
            await make_flood(served, clients, 300)
            for _ in range(5):
                more = asyncio.create_task(make_flood(served, clients, 10))
                start = loop.time()
                answer = await served.ask(LAST_GET.replace(b"/small", b"/big"))
                took_seconds.append(loop.time() - start)
                assert answer.endswith(BIG)
                await more
            assert sorted(took_seconds)[2] < SCRAPE_TIMEOUT_SECONDS
            assert served.connections() <= ServerLimits().connections
            assert served.log.closed["evicted"] > 0
            assert served.log.faults == 0
