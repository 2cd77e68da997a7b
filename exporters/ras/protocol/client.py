"""One conversation with a RAS thread: handshake, format, one STATUS, and the reply to its end.

A collective over the whole job runs between STATUS and the reply. If the client disconnects earlier, the
library's thread spins until the collective ends. So the client's deadline is later than the library's own. Only a reply
above the size limit ends a query earlier. No library sends such a reply, and at the limit the collective is already
over: the reply comes after it.

The stream of a MONITOR connection is split into events: a line of text each.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

EVENTS = (
    "PEER_NEW", "PEER_DEAD", "PEER_UNRESPONSIVE", "PEER_RECOVERED", "PEER_DISCONNECTED", "PEER_CONNECTING",
    "PEER_CONNECTED", "PEER_RETRY", "PEER_INIT_TIMEOUT", "PEER_SEND_STUCK", "PEER_KEEPALIVE_TIMEOUT",
    "PEER_TIMEOUT_DEAD",
)  # fmt: skip
"""All events of 2.29.2 to 2.32.3, as the library writes them."""
OTHER = "other"  # The name of any other event
MAX_EVENT_BYTES = 4 * 1024

_EVENT = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ([A-Z][A-Z0-9_]{0,63}): ")
_ANSWER = re.compile(rb"SERVER PROTOCOL \d{1,9}")  # Reply to CLIENT PROTOCOL, which the client may send at any time


def split_events(stream: bytes) -> tuple[list[str], bytes]:
    """Return the event of each whole line (one of EVENTS, or OTHER), and the unfinished last line.

    A line that is no event gives "". An unfinished line that is too long for an event is dropped.
    """
    *lines, unfinished = stream.split(b"\n")
    matches = [_EVENT.match(line) for line in lines if not _ANSWER.fullmatch(line)]
    names = [match[1].decode() if match else "" for match in matches]
    events = [name if name in EVENTS or not name else OTHER for name in names]
    return events, unfinished if len(unfinished) <= MAX_EVENT_BYTES else b""


Stage = Literal["connect", "handshake", "command", "deadline", "size", "cut", "parse"]
"""The stage at which a query failed, in this order: nothing listens; no RAS thread (of the job) answers; RAS refuses a
command; the report does not end in time; a line or report exceeds its cap; the report is cut; the report is
unreadable."""
STAGES: tuple[Stage, ...] = ("connect", "handshake", "command", "deadline", "size", "cut", "parse")

MAX_LINE_BYTES = 64 * 1024
"""Limit of a reply to a command; the library's replies are shorter than 1050 bytes. asyncio reads this much ahead."""
MAX_REPORT_BYTES = 40 * 1024 * 1024  # About 75,000 ranks over all communicators
_PIECE_BYTES = 256 * 1024

T = TypeVar("T")
ConnectionCheck: TypeAlias = Callable[["Endpoint"], Awaitable[bool]]
"""Gets the agent's end of a connection that any process may have accepted. Returns True if the agent may send data."""
ReadPieces: TypeAlias = Callable[[bool, AsyncIterator[bytes]], Awaitable[T]]
"""Gets True for a JSON report, False for text, and the report's pieces. The client skips unread pieces."""


class Endpoint(NamedTuple):
    """The address and port of one end of a TCP connection; ``host`` is an IP address."""

    host: str
    port: int

    @property
    def label(self) -> str:
        """Return the address as text, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class QueryError(Exception):
    """A query gave no report; ``stage`` is where it failed."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage: Stage = stage


class QueryLimits(msgspec.Struct, frozen=True):
    """``timeout_factor``: the job's NCCL_RAS_TIMEOUT_FACTOR; ``collective_seconds``: the library's soft timeout.

    ``attempts``: limit of connections until a handshake completes; each connection reaches any process of the node, and
    a stopped process never answers. ``step_seconds``: timeout of each reply before the report.
    """

    timeout_factor: float = 1.0
    collective_seconds: int = 5
    attempts: int = 4
    step_seconds: float = 1.0
    slack_seconds: float = 5.0
    report_bytes: int = MAX_REPORT_BYTES

    def report_seconds(self) -> float:
        """Return the deadline (s): a report comes at most 5 s (times the factor) after the soft timeout."""
        return self.collective_seconds + 5.0 * self.timeout_factor + self.slack_seconds


async def query(
    endpoint: Endpoint, limits: QueryLimits, read_report: ReadPieces[T], accept: ConnectionCheck
) -> tuple[T, float]:
    """Query once for a report, in JSON if the library can; QueryError without a report.

    Returns the result of ``read_report`` and the seconds from STATUS to the report's end.
    """
    reader, writer = await greet(endpoint, limits, accept)
    try:
        if await command(reader, writer, f"TIMEOUT {limits.collective_seconds}", limits) != "OK":
            raise QueryError("command", "TIMEOUT was refused")
        answer = await command(reader, writer, "SET FORMAT json", limits)
        if answer != "OK" and not answer.startswith("ERROR: "):  # the reply of a library before 2.28.7
            raise QueryError("command", "SET FORMAT was not understood")
        is_json = answer == "OK"
        report = _Incoming(reader, limits)
        writer.write(b"STATUS\n" if is_json else b"VERBOSE STATUS\n")  # a verbose text names more ranks
        pieces = report.pieces()
        reading = await read_report(is_json, pieces)
        async for _ in pieces:  # the connection is read to its end in every case
            pass
        return reading, report.seconds
    finally:
        writer.close()


async def greet(
    endpoint: Endpoint, limits: QueryLimits, accept: ConnectionCheck
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect until the RAS thread of a process that ``accept`` allows answers; QueryError when none does.

    Other processes get no data. No collective runs yet, so a disconnect disturbs no rank.
    """
    failure = QueryError("handshake", "no attempt")
    for _ in range(limits.attempts):
        try:
            async with asyncio.timeout(limits.step_seconds):
                reader, writer = await asyncio.open_connection(*endpoint, limit=MAX_LINE_BYTES)
        except OSError as error:  # TimeoutError among them
            raise QueryError("connect", error.strerror or "no connection in time") from None
        greeted = False
        try:
            if not await accept(Endpoint(*writer.get_extra_info("sockname")[:2])):
                raise QueryError("command", "no process of the job has accepted the connection")
            greeting = await command(reader, writer, "CLIENT PROTOCOL 2", limits)
            greeted = greeting.startswith("SERVER PROTOCOL ")
            if not greeted:
                raise QueryError("handshake", "the answer is not that of a RAS thread")
        except QueryError as error:
            if error.stage != "command":
                raise
            failure = QueryError("handshake", str(error))
        else:
            return reader, writer
        finally:
            if not greeted:
                writer.close()
    raise failure


async def command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str, limits: QueryLimits) -> str:
    """Send one line and return the reply line; QueryError without a reply."""
    writer.write(line.encode() + b"\n")
    try:
        async with asyncio.timeout(limits.step_seconds):
            answer = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise QueryError("size", "an answer without end") from None
    except asyncio.IncompleteReadError:
        raise QueryError("command", "the connection ended before an answer") from None
    except OSError as error:
        raise QueryError("command", error.strerror or "no answer in time") from None
    return answer.decode("ascii", "replace").rstrip()


class _Incoming:
    """An incoming report; ``seconds``: time from the command to the report's latest piece."""

    def __init__(self, reader: asyncio.StreamReader, limits: QueryLimits) -> None:
        self._reader = reader
        self._limits = limits
        self._now = asyncio.get_running_loop().time
        self._began_at = self._now()
        self._deadline_at = self._began_at + limits.report_seconds()
        self._bytes = 0
        self.seconds = 0.0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the whole report. The deadline limits only the library, not the receiver's processing."""
        while piece := await self._piece():
            yielded_at = self._now()
            yield piece
            self._deadline_at += self._now() - yielded_at

    async def _piece(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline_at):
                piece = await self._reader.read(_PIECE_BYTES)
        except TimeoutError:
            raise QueryError("deadline", f"no end of the report after {self._bytes} bytes") from None
        except OSError as error:
            raise QueryError("cut", error.strerror or "the connection broke") from None
        self._bytes += len(piece)
        if self._bytes > self._limits.report_bytes:
            raise QueryError("size", f"a report of more than {self._limits.report_bytes} bytes")
        if not self._bytes:
            raise QueryError("cut", "the connection ended before the report")
        self.seconds = self._now() - self._began_at
        return piece
