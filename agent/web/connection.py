"""One connection: limits, state in the server, TLS handshake, end, and writing."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import h11

CloseReason: TypeAlias = Literal[
    "all_busy",  # refused at the limit: all connections of the peer with most connections wait for replies
    "evicted",  # closed for a newer connection or reply: its peer has most connections, or most unread bytes
    "handshake_failed",  # of TLS: the client sent no TLS, another version, or no valid certificate
    "handshake_timeout",
    "header_timeout",
    "idle_timeout",
    "write_timeout",
    "header_too_large",
    "malformed",
    "refused_request",  # a method other than GET and HEAD, a body, a target that is not a path
    "peer_gone",
    "stopped",
]
WRITE_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """All limits of the server. ``idle_seconds`` exceeds a scrape interval, so that a scraper keeps its connection.

    ``tls_connections``: limit with TLS, where asyncio holds 256 KiB per connection. ``unread_bytes``: limit of all
    replies that clients have not read yet; a shared reply counts once. A single reply can be larger.
    """

    connections: int = 256
    tls_connections: int = 64
    header_bytes: int = 16 * 1024
    handshake_seconds: float = 5.0
    header_seconds: float = 5.0
    idle_seconds: float = 90.0
    response_seconds: float = 30.0
    write_seconds: float = 15.0
    unread_bytes: int = 16 * 1024 * 1024
    query_fields: int = 256


class TlsTerms(NamedTuple):
    """TLS requirements for clients: ``context`` is an ssl.SSLContext, ``accepts`` judges a verified certificate."""

    context: Any
    accepts: Callable[[Mapping[str, Any] | None], bool]


@dataclass(eq=False, slots=True)
class Connection:
    """A client's connection. ``peer``: see agent/web/peers.py. ``tls``: requirements for the client, None for HTTP."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    peer: str = ""
    served: bool = False
    header_begun: bool = False
    body: bytes = b""
    """The body that is being written; several connections can share one body."""
    tls: TlsTerms | None = None
    task: asyncio.Task[None] | None = None
    transport: asyncio.WriteTransport = field(init=False)
    """The socket's transport below TLS: its ``abort`` closes the connection at once in every TLS state."""

    def __post_init__(self) -> None:
        self.transport = self.writer.transport

    def abort(self) -> None:
        """Close at once and drop unsent data."""
        self.transport.abort()
        if not self.writer.transport.is_closing():  # asyncio's abort fails on a transport that was closed twice
            self.writer.transport.abort()  # the TLS transport, which would otherwise notice later


class Closed(Exception):  # noqa: N818  # leaves the handler; not an error
    """Ends a connection. ``reason``: logged."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason: CloseReason = reason


async def shake_hands(connection: Connection, terms: TlsTerms, seconds: float) -> None:
    """Start TLS; raises Closed if the handshake takes too long, or if the client does not meet ``terms``."""
    try:
        await connection.writer.start_tls(terms.context, ssl_handshake_timeout=seconds)
    except (TimeoutError, ConnectionAbortedError) as error:  # raised by asyncio, which aborts a late handshake
        raise Closed("handshake_timeout") from error
    except OSError as error:  # also an ssl.SSLError
        raise Closed("handshake_failed") from error
    except AttributeError:
        given: asyncio.WriteTransport | None = connection.writer.transport
        if given is not None:
            raise
        # The client disconnected as the handshake ended: start_tls fails because the writer's transport is missing.
        connection.writer._transport = connection.transport  # type: ignore[attr-defined]  # for its destructor
        raise Closed("handshake_failed") from None
    # 1, because asyncio would pause for ever at 0.
    connection.writer.transport.set_write_buffer_limits(1)
    if not terms.accepts(connection.writer.get_extra_info("peercert")):
        raise Closed("handshake_failed")


async def end(connection: Connection, seconds: float) -> None:
    """Wait until written data reached the client, and close TLS properly; release an aborted connection."""
    connection.writer.close()
    try:
        async with asyncio.timeout(seconds):
            await connection.writer.wait_closed()
    except OSError as error:  # TimeoutError is an OSError
        error.with_traceback(None)  # asyncio keeps the error, whose frames would keep the last data in memory


async def write_pieces(connection: Connection, head: bytes | None) -> None:
    """Write the response in pieces, so that for a slow client at most one piece is copied.

    If the client disconnects, the error's traceback keeps this frame, with at most one piece, until ``end``.
    """
    connection.writer.write(head or b"")
    for start in range(0, len(connection.body), WRITE_PIECE_BYTES):
        piece = h11.Data(data=connection.body[start : start + WRITE_PIECE_BYTES])
        for written in connection.http.send_with_data_passthrough(piece) or ():
            connection.writer.write(written)
        await connection.writer.drain()
    await connection.writer.drain()
