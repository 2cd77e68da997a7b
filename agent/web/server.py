"""HTTP/1.1 over asyncio streams: the protocol and its limits; the handler serves the pages."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import TypeAlias, cast

import h11

from agent.core.log import Logger
from agent.web.connection import Closed, CloseReason, Connection, ServerLimits, TlsTerms, end, shake_hands, write_pieces
from agent.web.listen import BACKLOG
from agent.web.messages import TEXT, HttpRequest, HttpResponse, head_of, request_of
from agent.web.peers import Peers

LINGER_SECONDS = 1.0
LINGER_BYTES = 256 * 1024
"""Limit of bytes of a refused request that are dropped after the reply: unread data would destroy the reply."""

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]
_WITH_AN_ANSWER = frozenset({None, "header_too_large", "malformed", "refused_request"})
"""Reasons to close a connection whose client must still be able to read the reply."""


class WebServer:
    """Serves ``handler`` within ``limits``. Closed connections are logged.

    A connection waits (idle, or its header is incomplete), is handled, or writes. At the limit of connections, the peer
    with the most connections loses one connection: the one that waits longest, else the one that writes longest, else
    the new connection, else its oldest connection. At the limit of unread replies, the server chooses from the peers
    that read a reply: the peer with the most unread bytes, the new reply included, loses the connection that writes
    longest. So the clients of one peer, whatever their number, never prevent a scrape by another peer, unless one reply
    alone nearly fills the limit. ``tls`` returns the TLS settings of a connection.
    """

    def __init__(
        self,
        handler: Handler,
        log: Logger,
        limits: ServerLimits | None = None,
        tls: Callable[[], TlsTerms | None] = lambda: None,
    ) -> None:
        self._tls = tls
        self._handler = handler
        self._log = log
        self._limits = limits or ServerLimits()
        self._peers = Peers()
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[Connection, None] = {}
        self._writing: dict[Connection, None] = {}
        self._stopping = False

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections at listening sockets."""
        for opened in sockets:
            self._servers.append(
                await asyncio.start_server(self._accept, sock=opened, limit=self._limits.header_bytes, backlog=BACKLOG)
            )

    async def stop(self, deadline_seconds: float) -> None:
        """Close the listeners, wait at most ``deadline_seconds`` for running replies, then close all connections."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._waiting):
            self._close(connection, "stopped")
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=deadline_seconds)
            for connection in list(self._connections):
                self._close(connection, "stopped")
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._peers.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = self._peers.of(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        # h11 limits only incomplete headers: one byte less admits a complete header of exactly the limit.
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes - 1)
        connection = Connection(reader, writer, http, peer, tls=self._tls())
        self._connections[connection] = None
        most = self._limits.connections if connection.tls is None else self._limits.tls_connections
        if len(self._connections) > most:
            victim = self._victim(connection)
            self._close(victim, "all_busy" if victim is connection else "evicted")
            if victim is connection:
                return
        # No buffer: all written data is in the kernel, so closing loses nothing.
        writer.transport.set_write_buffer_limits(0)
        if connection.tls is not None:
            transport = cast(asyncio.Transport, writer.transport)
            transport.pause_reading()  # the first bytes belong to TLS
        self._waiting[connection] = None
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        connection.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _victim(self, newcomer: Connection) -> Connection:
        """Return the connection to close for ``newcomer``: a connection of the peer with most connections."""
        counts = Counter(connection.peer for connection in self._connections)
        most = max(counts.values())
        queues: tuple[Iterable[Connection], ...] = (self._waiting, self._writing, (newcomer,), self._connections)
        return next(connection for queue in queues for connection in queue if counts[connection.peer] == most)

    def _make_room(self, newcomer: Connection) -> None:
        """Close connections until the new reply fits the limit of unread replies, or until no connection writes."""
        while self._writing:
            bodies = {id(connection.body): len(connection.body) for connection in (newcomer, *self._writing)}
            if sum(bodies.values()) <= self._limits.unread_bytes:
                return
            shares: Counter[str] = Counter()
            for connection in (newcomer, *self._writing):
                shares[connection.peer] += len(connection.body)
            self._close(max(self._writing, key=lambda connection: shares[connection.peer]), "evicted")

    def _close(self, connection: Connection, reason: CloseReason | None) -> None:
        """Close a connection at once and drop unsent data.

        The connection's task ends; if the handler runs and ``reason`` is "evicted", the task is cancelled.
        """
        if reason in ("all_busy", "evicted"):
            self._log.warning("too many connections, one was closed: {reason}", reason=reason, peer=connection.peer)
        elif reason is not None:
            self._log.info("a connection was closed: {reason}", reason=reason, peer=connection.peer)
        is_handled = connection not in self._waiting and connection not in self._writing
        self._waiting.pop(connection, None)
        self._writing.pop(connection, None)
        self._connections.pop(connection, None)
        connection.abort()
        if reason == "evicted" and is_handled and connection.task is not None:
            connection.task.cancel()

    async def _serve(self, connection: Connection) -> None:
        reason: CloseReason | None = None
        try:
            if connection.tls is not None:
                await shake_hands(connection, connection.tls, self._limits.handshake_seconds)
            while await self._exchange(connection):
                connection.served = True
                connection.http.start_next_cycle()
                self._waiting[connection] = None
        except Closed as closed:
            reason = closed.reason
        except OSError:
            reason = "peer_gone"
        except Exception as error:  # noqa: BLE001  # ends only this connection; logged
            self._log.error("a connection failed", error=error)
        finally:
            if connection in self._connections and connection.tls is not None and reason in _WITH_AN_ANSWER:
                self._waiting[connection] = None  # can be evicted while it waits for the client
                await end(connection, LINGER_SECONDS)
            if connection in self._connections:
                self._close(connection, reason)
            await end(connection, LINGER_SECONDS)

    async def _exchange(self, connection: Connection) -> bool:
        """Handle one request; return False if the connection must close."""
        try:
            head = await self._read_head(connection)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            reason: CloseReason = "header_too_large" if status == 431 else "malformed"
            await self._refuse(
                connection, reason, HttpResponse(status, TEXT, f"{HTTPStatus(status).phrase}\n".encode())
            )
        except TimeoutError:
            raise Closed(
                "header_timeout" if connection.header_begun or not connection.served else "idle_timeout"
            ) from None
        if head is None or connection not in self._connections:  # evicted after its whole header had arrived
            return False
        self._waiting.pop(connection, None)
        scheme = "http" if connection.tls is None else "https"
        request = request_of(head, self._limits.query_fields, connection.peer, scheme)
        if isinstance(request, HttpResponse):
            await self._refuse(connection, "refused_request", request, head.method)
        else:
            connection.http.next_event()  # the end of a request without a body
            response = await self._answer(request)
            await self._send(connection, response, head.method, is_last=self._stopping)
        return connection.http.our_state is h11.DONE and not self._stopping

    async def _read_head(self, connection: Connection) -> h11.Request | None:
        """Return the next request without its body; None if the client closed the connection instead."""
        limits, http = self._limits, connection.http
        connection.header_begun = bool(http.trailing_data[0])
        may_idle = connection.served and not connection.header_begun
        async with asyncio.timeout(limits.idle_seconds if may_idle else limits.header_seconds) as deadline:
            while True:
                event = http.next_event()
                if isinstance(event, h11.Request):
                    return event
                if event is not h11.NEED_DATA:
                    return None
                data = await connection.reader.read(limits.header_bytes - len(http.trailing_data[0]))
                if data and not connection.header_begun:
                    connection.header_begun = True
                    if may_idle:
                        deadline.reschedule(asyncio.get_running_loop().time() + limits.header_seconds)
                http.receive_data(data)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(self._limits.response_seconds):
                return await self._handler(request)
        except TimeoutError:
            self._log.warning("a request was not answered in time", path=request.path)
            return HttpResponse(503, TEXT, b"Not answered in time\n")
        except Exception as error:  # noqa: BLE001  # an error of a page must not end the server; logged
            self._log.error("a request failed", path=request.path, error=error)
            return HttpResponse(500, TEXT, b"Internal error, see the log\n")

    async def _refuse(
        self, connection: Connection, reason: CloseReason, response: HttpResponse, method: bytes = b"GET"
    ) -> None:
        """Send a refusal, give the client time to read it, and close for ``reason``."""
        self._waiting.pop(connection, None)
        if connection.writer.transport.is_closing():  # evicted in the middle of its header
            raise Closed(reason)
        await self._send(connection, response, method, is_last=True)
        self._waiting[connection] = None  # can be evicted while it waits for the client
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                if connection.writer.can_write_eof():
                    connection.writer.write_eof()
                remaining_bytes = LINGER_BYTES
                while remaining_bytes > 0 and (data := await connection.reader.read(remaining_bytes)):
                    remaining_bytes -= len(data)
        except OSError:  # TimeoutError is an OSError
            pass
        raise Closed(reason)

    async def _send(self, connection: Connection, response: HttpResponse, method: bytes, *, is_last: bool) -> None:
        head = connection.http.send(head_of(response, "close" if is_last else ""))
        connection.body = b"" if method == b"HEAD" else response.body
        self._make_room(connection)
        self._writing[connection] = None
        try:
            async with asyncio.timeout(self._limits.write_seconds):
                await write_pieces(connection, head)
        except TimeoutError:
            raise Closed("write_timeout") from None
        finally:
            connection.body = b""
            self._writing.pop(connection, None)
        connection.http.send(h11.EndOfMessage())
