"""One connection: its bounds, what the server keeps of it, its handshake and its end, and how it is written to."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import h11

CloseReason: TypeAlias = Literal[
    "all_busy",  # the cap was reached, and its peer, which had most, waited for answers on all others: it was refused
    "evicted",  # of the peer with most: closed for a newer connection, or for the memory bound of answers not yet read
    "handshake_failed",  # of TLS: the client spoke something else, took another version, or has no valid certificate
    "handshake_timeout",
    "header_timeout",
    "idle_timeout",
    "write_timeout",
    "header_too_large",
    "malformed",
    "refused_request",  # a method other than GET and HEAD, a body, a target that is no path
    "peer_gone",
    "stopped",
]
WRITE_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Every bound of the server. ``idle_seconds`` outlasts a scrape interval, so that a scraper keeps its connection.

    ``tls_connections``: the cap where TLS is spoken, as asyncio holds 256 KiB for each. ``held_bytes``: answers that
    clients have not read yet, all together, one that several share counted once; the largest single one may exceed it.
    """

    connections: int = 256
    tls_connections: int = 64
    header_bytes: int = 16 * 1024
    handshake_seconds: float = 5.0
    header_seconds: float = 5.0
    idle_seconds: float = 90.0
    response_seconds: float = 30.0
    write_seconds: float = 15.0
    held_bytes: int = 16 * 1024 * 1024
    query_fields: int = 256


class TlsTerms(NamedTuple):
    """What a client must meet: ``context`` is a server's ssl.SSLContext, ``accepts`` judges a verified certificate."""

    context: Any
    accepts: Callable[[Mapping[str, Any] | None], bool]


@dataclass(eq=False, slots=True)
class Connection:
    """One client. ``peer``: which (agent/web/peers.py). ``tls``: what it must meet before it is served."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    peer: str = ""
    served: bool = False
    header_begun: bool = False
    held: bytes = b""
    """The body that is being written; several connections may write the same."""
    tls: TlsTerms | None = None
    task: asyncio.Task[None] | None = None
    transport: asyncio.WriteTransport = field(init=False)
    """The socket's, below TLS: aborted, it is closed at once in every state of the other."""

    def __post_init__(self) -> None:
        self.transport = self.writer.transport

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        self.transport.abort()
        if self.writer.transport is not self.transport:
            self.writer.transport.abort()  # TLS' own, which would learn of it in the loop's next turn


class Closed(Exception):  # noqa: N818  # a way out, not an error
    """Ends a connection. ``reason``: what is logged."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason: CloseReason = reason


async def shake_hands(connection: Connection, terms: TlsTerms, seconds: float) -> None:
    """Speak TLS from here on; Closed where that is not done in time, or the client does not meet the terms."""
    try:
        await connection.writer.start_tls(terms.context, ssl_handshake_timeout=seconds)
    except (TimeoutError, ConnectionAbortedError) as error:  # by asyncio, which aborts it when it is late
        raise Closed("handshake_timeout") from error
    except OSError as error:  # all of TLS' own are
        raise Closed("handshake_failed") from error
    except AttributeError:
        given: asyncio.WriteTransport | None = connection.writer.transport
        if given is not None:
            raise
        # The client left as the handshake ended: start_tls has no transport to give, and trips over that itself.
        connection.writer._transport = connection.transport  # type: ignore[attr-defined]  # its destructor asks it
        raise Closed("handshake_failed") from None
    # One more than nothing: at 0 asyncio would pause for good.
    connection.writer.transport.set_write_buffer_limits(1)
    if not terms.accepts(connection.writer.get_extra_info("peercert")):
        raise Closed("handshake_failed")


async def end(connection: Connection, seconds: float) -> None:
    """Let what was written reach the client, and over TLS say that it is all; of one that was aborted, let go."""
    connection.writer.close()
    try:
        async with asyncio.timeout(seconds):
            await connection.writer.wait_closed()
    except OSError as error:  # a TimeoutError too: it had its chance
        error.with_traceback(None)  # asyncio keeps it, and its frames what was written last


async def write_pieces(connection: Connection, head: bytes | None) -> None:
    """Write the response in pieces: for a slow client at most one piece is copied.

    A disconnect error keeps this frame until ``end``, with one piece at most.
    """
    connection.writer.write(head or b"")
    for start in range(0, len(connection.held), WRITE_PIECE_BYTES):
        piece = h11.Data(data=connection.held[start : start + WRITE_PIECE_BYTES])
        for written in connection.http.send_with_data_passthrough(piece) or ():
            connection.writer.write(written)
        await connection.writer.drain()
    await connection.writer.drain()
