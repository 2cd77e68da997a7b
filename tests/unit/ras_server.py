"""A server that stands in for a RAS thread, correct or faulty."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

from exporters.ras.protocol.client import Endpoint

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

JSON_ANSWERS = (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n")  # Replies to the greeting, the timeout and the format


@asynccontextmanager
async def served(serve: Serve, listener: socket.socket | None = None) -> AsyncIterator[Endpoint]:
    """Serve every connection at ``listener`` or at a free port; at the end, wait until every connection is closed."""
    ended: list[asyncio.Task[None]] = []

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:  # the client closed early
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.get_running_loop().create_task(whole(reader, writer)))

    listener = listener or socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(begin, sock=listener) as server:
        yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        await asyncio.gather(*ended)


def answering(answers: Iterable[bytes], report: Iterable[bytes] = (), lines: list[bytes] | None = None) -> Serve:
    """Return a server that sends one reply for each line it reads, then the report, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in [*answers, b""]:
            line = await reader.readline()
            if lines is not None:
                lines.append(line)
            writer.write(answer)
        for piece in report:
            writer.write(piece)
            await writer.drain()

    return serve


def conversing(report: Callable[[], Awaitable[bytes | None]], monitor: Serve) -> Serve:
    """Return a server that replies like a RAS thread; after its reply to STATUS (a report or nothing) it closes.

    ``monitor`` takes over a connection that sends MONITOR."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith(b"MONITOR"):
                await monitor(reader, writer)
                return
            if line == b"STATUS\n":
                writer.write(await report() or b"")
                return
            writer.write(b"SERVER PROTOCOL 2\n" if line.startswith(b"CLIENT PROTOCOL ") else b"OK\n")

    return serve
