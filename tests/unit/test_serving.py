"""The web server's address, and moves to another one."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.core.log import Logger
from agent.web.messages import TEXT, HttpRequest, HttpResponse
from agent.web.serving import Serving

HERE = f"here, process {os.getpid()}\n".encode()
"""The answer of this process alone: tests beside it may take a port that is free here."""


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


async def answer(_request: HttpRequest) -> HttpResponse:
    """The same to everybody."""
    return HttpResponse(200, TEXT, HERE)


async def asked(host: str, port: int) -> bool:
    """Whether this process answers there."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    answered = await reader.read()
    writer.close()
    return answered.endswith(HERE)


@asynccontextmanager
async def serving(address: str) -> AsyncIterator[Serving]:
    """A server at an address."""
    made = Serving(answer, Logger("web"))
    await made.start((address,))
    try:
        yield made
    finally:
        await made.stop()


@pytest.mark.parametrize(("old", "new"), [("127.0.0.1", ""), ("", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])  # noqa: S104
async def test_an_address_moves_to_one_that_holds_it(old: str, new: str) -> None:
    """From 127.0.0.1:P to :P and back: the new address takes the port over, and the counters go on."""
    port = free_port()
    async with serving(f"{old}:{port}") as web:
        assert await asked("127.0.0.1", port)
        await web.prepare((f"{new}:{port}",))
        await web.commit()
        assert web.addresses == (f"{new}:{port}",)
        assert await asked("127.0.0.1", port)
        assert web.responses == {200: 2}


async def test_a_move_is_taken_back() -> None:
    """A prepared move that is taken back leaves the old address alone, also where the two share a port."""
    port, other = free_port(), free_port()
    async with serving(f"127.0.0.1:{port}") as web:
        for address in (f":{port}", f"127.0.0.1:{other}"):
            await web.prepare((address,))
            await web.take_back()
            assert web.addresses == (f"127.0.0.1:{port}",)
            assert await asked("127.0.0.1", port)
            assert not await asked("127.0.0.1", other)


async def test_an_address_that_cannot_be_had_changes_nothing() -> None:
    """Where the new address is another program's, or none of this machine's, the old one goes on to serve."""
    port = free_port()
    async with serving(f"127.0.0.1:{port}") as web:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for address in (f"127.0.0.1:{taken.getsockname()[1]}", f"192.0.2.7:{port}"):
                with pytest.raises(OSError, match="cannot listen on"):
                    await web.prepare((address,))
                assert (web.addresses, await asked("127.0.0.1", port)) == ((f"127.0.0.1:{port}",), True)


async def test_the_same_address_is_no_move() -> None:
    """To prepare today's address and commit it leaves the server as it is."""
    port = free_port()
    async with serving(f"127.0.0.1:{port}") as web:
        await web.prepare((f"127.0.0.1:{port}",))
        await web.commit()
        assert await asked("127.0.0.1", port)
