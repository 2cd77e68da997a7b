"""Streams of events, from correct and from faulty servers."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from fake_clock import FakeClock
from lent import until
from ras_server import Serve, answering, served

from agent.sdk.exporter import Logger
from agent.sdk.ranks import ProcessKey
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query import monitor
from exporters.ras.query.monitor import PAUSE_SECONDS, PIECE_BYTES, Monitored, Monitors
from exporters.ras.query.policy import LAST_RETRY_SECONDS

SERVERS = frozenset({ProcessKey(11, 1)})
ANSWERS = (b"SERVER PROTOCOL 2\n", b"OK\n")  # Replies to the greeting, the format and MONITOR
DEAD = b"[2026-11-20 18:05:23] PEER_DEAD: Process 28141 on node 127.0.201.6 managing GPU 0 \n"
SILENT = DEAD.replace(b"PEER_DEAD", b"PEER_UNRESPONSIVE")
RECOVERED = DEAD.replace(b"PEER_DEAD", b"PEER_RECOVERED")


class Station:
    """A server for one stream after the other, and the monitors of its streams."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.accepted = True
        self.monitors = Monitors(self.clock, Logger("ras"), self.accept)
        self.lines: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.endpoint = Endpoint("127.0.0.1", 0)

    async def accept(self, _endpoint: Endpoint, _client: Endpoint) -> bool:
        """Return whether a rank accepted the connection."""
        return self.accepted

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reply, and stay connected until the client closes."""
        for answer in ANSWERS:
            self.lines.append(await reader.readline())
            writer.write(answer)
        self.writers.append(writer)
        await reader.read()

    async def until(self, reached: Callable[[Monitored], bool]) -> Monitored:
        """Wait until the snapshot fulfils the condition."""
        await until(lambda: reached(self.monitors.snapshot()))
        return self.monitors.snapshot()

    async def follow(self, servers: frozenset[ProcessKey] = SERVERS) -> None:
        await self.monitors.follow({self.endpoint: servers})

    async def begin(self) -> asyncio.StreamWriter:
        """Follow until the next stream runs; return the server's writer."""
        await self.follow()
        await self.until(lambda now: all(now.up.values()))
        return self.writers[-1]

    async def cut(self, writer: asyncio.StreamWriter) -> None:
        """End a stream, as the exit of its process does."""
        writer.close()
        await self.until(lambda now: not any(now.up.values()))

    @property
    def up(self) -> list[bool]:
        """Return whether the stream runs; empty without a monitored process."""
        return list(self.monitors.snapshot().up.values())


def streams_under_way() -> int:
    """Return the number of tasks for streams."""
    return sum(all_task.get_name().startswith("monitor-") for all_task in asyncio.all_tasks())


@asynccontextmanager
async def station(serve: Serve | None = None) -> AsyncIterator[Station]:
    """Provide a station with its server; at the end every connection must be closed."""
    counts = Station()
    async with served(serve or counts.serve) as counts.endpoint:
        yield counts
        await counts.monitors.drain()


async def test_all_events_are_asked_for_and_counted() -> None:
    """Two commands open the stream, every event is counted, and alarms wake the agent."""
    async with station() as here:
        writer = await here.begin()
        assert (here.lines, here.up) == ([b"CLIENT PROTOCOL 2\n", b"MONITOR all\n"], [True])
        writer.write(RECOVERED)
        await here.until(lambda now: now.events == {"PEER_RECOVERED": 1})
        assert here.monitors.take_wakes() == set()
        writer.write(DEAD + b"garbage\n" + RECOVERED)
        counts = await here.until(lambda now: now.events.total() == 3)
        assert counts.events == {"PEER_RECOVERED": 2, "PEER_DEAD": 1}
        assert here.monitors.take_wakes() == {here.endpoint}
        assert here.monitors.take_wakes() == set()
        writer.write(SILENT)
        await here.until(lambda now: now.events["PEER_UNRESPONSIVE"] == 1)
        assert here.monitors.take_wakes() == {here.endpoint}


async def test_one_stream_runs_at_an_address() -> None:
    """An address has one stream, however often it is followed."""
    async with station() as here:
        await here.begin()
        for servers in (SERVERS, SERVERS | {ProcessKey(12, 1)}):
            here.clock.advance(2 * LAST_RETRY_SECONDS)
            await here.follow(servers)
        assert len(here.writers) == 1


async def test_an_address_that_may_not_be_listened_to_is_left() -> None:
    """If an address is no longer followed, its stream closes and does not wake the agent."""
    async with station() as here:
        await here.begin()
        await here.monitors.follow({})
        assert here.up == []
        await here.begin()
        assert (here.monitors.take_wakes(), here.monitors.snapshot().errors) == (set(), {})


async def test_a_stream_that_ends_wakes_and_so_does_the_next() -> None:
    """The end of a stream wakes the agent; the next stream starts within a second, and wakes the agent again."""
    async with station() as here:
        writer = await here.begin()
        writer.write(DEAD[:20])
        await here.cut(writer)
        assert here.monitors.snapshot().errors == {"cut": 1}
        assert here.monitors.take_wakes() == {here.endpoint}
        await here.follow()
        assert len(here.writers) == 1
        here.clock.advance(1.0)
        await here.begin()
        assert (here.monitors.take_wakes(), here.up) == ({here.endpoint}, [True])


async def test_streams_that_do_not_last_are_tried_ever_more_seldom() -> None:
    """Each stream that ends soon doubles the wait, up to a minute; after a stream of a minute the wait is a second."""

    async def wait(here: Station) -> float:
        began = here.clock.now
        while not streams_under_way():
            here.clock.advance(0.25)
            await here.follow()
        await here.until(lambda now: all(now.up.values()))
        return here.clock.now - began

    async with station() as here:
        await here.cut(await here.begin())
        waits = []
        for _ in range(8):
            waits.append(await wait(here))
            await here.cut(here.writers[-1])
        for longest, counts in zip((1, 2, 4, 8, 16, 32, 60, 60), waits, strict=True):
            assert 0.5 * longest <= counts <= longest + 0.25
        await wait(here)
        here.clock.advance(LAST_RETRY_SECONDS)
        await here.cut(here.writers[-1])
        assert await wait(here) <= 1.25


async def test_a_library_without_monitor_is_not_asked_again() -> None:
    """After the library refused the command, the next attempt waits for other processes at the address."""
    connections = 0

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering((ANSWERS[0], b"ERROR: Unknown command MONITOR all\n"))(reader, writer)

    async with station(old) as here:
        await here.follow()
        await here.until(lambda now: now.errors == {"command": 1})
        for _ in range(3):
            here.clock.advance(2 * LAST_RETRY_SECONDS)
            await here.follow()
            assert streams_under_way() == 0
        assert (connections, here.up) == (1, [False])
        await here.follow(frozenset({ProcessKey(12, 1)}))
        await here.until(lambda now: now.errors == {"command": 2})
    assert connections == 2


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply, then send events without end."""
    for answer in ANSWERS:
        await reader.readline()
        writer.write(answer)
    while True:
        writer.write(DEAD * 100)
        await writer.drain()


@pytest.mark.parametrize("others", [0, 3])
async def test_floods_are_read_piece_by_piece(others: int) -> None:
    """Endless streams are read piece by piece, all together at a limited rate, and can be closed meanwhile."""
    async with AsyncExitStack() as servers, station(flood) as here:
        endpoints = [await servers.enter_async_context(served(flood)) for _ in range(others)]
        await here.monitors.follow(dict.fromkeys((*endpoints, here.endpoint), SERVERS))
        began = asyncio.get_running_loop().time()
        counts = await here.until(lambda now: len(DEAD) * now.events.total() >= (others + 3) * PIECE_BYTES)
        took = asyncio.get_running_loop().time() - began
        assert len(DEAD) * counts.events.total() <= (took / PAUSE_SECONDS + others + 1) * PIECE_BYTES


async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply, then reset the connection."""
    for answer in ANSWERS:
        await reader.readline()
        writer.write(answer)
    await writer.drain()
    linger_not = struct.pack("ii", 1, 0)  # socket(7): close then sends a reset
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)


@pytest.mark.parametrize(("serve", "stage"), [
    pytest.param(answering([b"HTTP/1.1 400 Bad Request\r\n"]), "handshake", id="another server"),
    pytest.param(answering([b"x" * 200_000]), "size", id="endless line"),
    pytest.param(answering(ANSWERS[:1]), "command", id="cut before MONITOR"),
    pytest.param(breaking, "cut", id="a reset"),
])  # fmt: skip
async def test_a_bad_server_is_counted_and_tried_again(serve: Serve, stage: str) -> None:
    """Each fault of a server is counted by stage, and the stream is tried again."""
    async with station(serve) as here:
        for times in (1, 2):
            await here.follow()
            await here.until(lambda now, times=times: now.errors == {stage: times})
            here.clock.advance(LAST_RETRY_SECONDS)


async def test_nothing_is_sent_to_a_stranger() -> None:
    """A connection to an unknown process is closed without a byte."""
    lines: list[bytes] = []

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())

    async with station(stranger) as here:
        here.accepted = False
        await here.follow()
        await here.until(lambda now: now.errors == {"handshake": 1})
    assert set(lines) == {b""}


async def test_no_process_listens() -> None:
    """A refused connection is counted."""
    async with station() as here:
        pass
    await here.follow()
    await here.until(lambda now: now.errors == {"connect": 1})


async def test_a_silent_thread_is_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent thread gets a ping: with a reply its stream goes on; without a reply its stream ends, with an alarm."""
    monkeypatch.setattr(monitor, "SILENCE_SECONDS", 0.3)
    pings = 0

    async def answering_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal pings
        for answer in ANSWERS:
            await reader.readline()
            writer.write(answer)
        while line := await reader.readline():
            assert line == b"CLIENT PROTOCOL 2\n"
            pings += 1
            if pings <= 2:
                writer.write(ANSWERS[0])

    async with station(answering_twice) as here:
        await here.follow()
        counts = await here.until(lambda now: now.errors.total() > 0)
        assert (pings, counts.errors, here.up) == (3, {"deadline": 1}, [False])
        assert here.monitors.take_wakes() == {here.endpoint}
