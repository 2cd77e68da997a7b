"""One conversation with a RAS thread: handshake, format, one STATUS, read to its end.

A collective over the whole job runs from STATUS to the end of the reply, and the library spins for as long when its
client leaves early. So the deadline lies beyond the library's own, and nothing is given up before it but what no
library sends: by the time a reply is as long as the cap the collective is over.
"""

from __future__ import annotations

import asyncio
import time
from typing import Literal, NamedTuple

import msgspec

Stage = Literal["connect", "handshake", "command", "deadline", "size", "cut", "parse"]
"""Where a query failed: nobody listens, no RAS answers, a command is not understood, no end of the report in time,
a line or report beyond its cap, the connection broke or ended within the report, the report cannot be read."""
STAGES: tuple[Stage, ...] = ("connect", "handshake", "command", "deadline", "size", "cut", "parse")

MAX_LINE_BYTES = 64 * 1024
"""Of a reply to a command; the library's are below 1050 bytes. It is also how much asyncio reads ahead."""
MAX_REPORT_BYTES = 16 * 1024 * 1024
"""About 30,000 ranks over all communicators."""
_PIECE_BYTES = 256 * 1024


class Endpoint(NamedTuple):
    """The address of a client socket; ``host`` is an IP address."""

    host: str
    port: int

    @property
    def label(self) -> str:
        """As an address is written: an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class QueryError(Exception):
    """A query without a report; ``stage`` says how far it came."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage: Stage = stage


class Limits(msgspec.Struct, frozen=True):
    """``timeout_factor`` is the job's NCCL_RAS_TIMEOUT_FACTOR, ``collective_seconds`` the library's soft timeout.

    ``attempts`` connections are made until one completes its handshake: each reaches any process of the node, and one
    that is stopped never answers. ``step_seconds`` is for each answer before the report.
    """

    timeout_factor: float = 1.0
    collective_seconds: int = 5
    attempts: int = 4
    step_seconds: float = 1.0
    slack_seconds: float = 5.0
    report_bytes: int = MAX_REPORT_BYTES

    def report_seconds(self) -> float:
        """The library stops 5 s (times the factor) after its soft timeout; then it formats and sends."""
        return self.collective_seconds + 5.0 * self.timeout_factor + self.slack_seconds


class Reply(msgspec.Struct, frozen=True):
    """A whole report, and the seconds from STATUS to its end."""

    is_json: bool
    body: bytes
    seconds: float


async def ask(endpoint: Endpoint, limits: Limits) -> Reply:
    """Ask once for a report, in JSON where the library can; QueryError when there is none."""
    reader, writer = await greet(endpoint, limits)
    try:
        if await command(reader, writer, f"TIMEOUT {limits.collective_seconds}", limits) != "OK":
            raise QueryError("command", "TIMEOUT was refused")
        answer = await command(reader, writer, "SET FORMAT json", limits)
        if answer != "OK" and not answer.startswith("ERROR: "):  # of a library before 2.28.7
            raise QueryError("command", "SET FORMAT was not understood")
        is_json = answer == "OK"
        started = time.monotonic()
        writer.write(b"STATUS\n" if is_json else b"VERBOSE STATUS\n")  # the text one names more ranks
        body = await _read_report(reader, limits)
        return Reply(is_json, body, time.monotonic() - started)
    finally:
        writer.close()


async def greet(endpoint: Endpoint, limits: Limits) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect until a RAS thread answers; no collective runs yet, so that leaving costs it nothing. Else QueryError."""
    silent = QueryError("handshake", "no attempt")
    for _ in range(limits.attempts):
        try:
            async with asyncio.timeout(limits.step_seconds):
                reader, writer = await asyncio.open_connection(*endpoint, limit=MAX_LINE_BYTES)
        except OSError as error:  # TimeoutError among them
            raise QueryError("connect", error.strerror or "no connection in time") from None
        greeted = False
        try:
            greeting = await command(reader, writer, "CLIENT PROTOCOL 2", limits)
            greeted = greeting.startswith("SERVER PROTOCOL ")
            if not greeted:
                raise QueryError("handshake", "the answer is none of a RAS thread")
        except QueryError as error:
            if error.stage != "command":
                raise
            silent = QueryError("handshake", str(error))
        else:
            return reader, writer
        finally:
            if not greeted:
                writer.close()
    raise silent


async def command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str, limits: Limits) -> str:
    """Send one line and return the one that answers it; QueryError when none does."""
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


async def _read_report(reader: asyncio.StreamReader, limits: Limits) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(limits.report_seconds()):
            while piece := await reader.read(_PIECE_BYTES):
                body += piece
                if len(body) > limits.report_bytes:
                    raise QueryError("size", f"a report of more than {limits.report_bytes} bytes")
    except TimeoutError:
        raise QueryError("deadline", f"no end of the report after {len(body)} bytes") from None
    except OSError as error:
        raise QueryError("cut", error.strerror or "the connection broke") from None
    if not body:
        raise QueryError("cut", "the connection ended before the report")
    return bytes(body)
