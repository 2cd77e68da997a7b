"""The bounds of the server, and what it counts."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

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


@dataclass(slots=True)
class WebStats:
    """Counts since the start: ``connections`` accepted, ``responses`` by status, ``closed`` connections by reason.

    ``failures``: answers and connections that ended in an error of this program's, or too late. A connection that its
    client closed between two requests is not counted in ``closed``.
    """

    connections: int = 0
    responses: dict[int, int] = field(default_factory=dict)
    closed: dict[CloseReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(CloseReason), 0))
    failures: int = 0
