"""The RAS client with correct and with faulty servers."""

import asyncio
import json
import re
import tarfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ras_server import JSON_ANSWERS, Serve, answering, served

from exporters.ras.protocol import client
from exporters.ras.protocol.client import (
    MAX_EVENT_BYTES,
    MAX_LINE_BYTES,
    OTHER,
    Endpoint,
    QueryError,
    QueryLimits,
    split_events,
)

QUICK = QueryLimits(step_seconds=1.0, attempts=2, collective_seconds=0, timeout_factor=0.0, slack_seconds=0.8)
"""A report must arrive within 0.8 s."""


async def query(endpoint: Endpoint, limits: QueryLimits) -> tuple[bool, bytes]:
    """Query, and accept any reply; return whether the report is JSON, and the report."""

    async def whole(is_json: bool, pieces: AsyncIterator[bytes]) -> tuple[bool, bytes]:
        return is_json, b"".join([piece async for piece in pieces])

    async def accept(_: Endpoint) -> bool:
        return True

    received, _ = await client.query(endpoint, limits, whole, accept)
    return received


async def failure(serve: Serve) -> tuple[str, float]:
    """Return the stage at which a query fails, and its duration in seconds."""
    async with served(serve) as endpoint:
        began = time.monotonic()
        with pytest.raises(QueryError) as caught:
            await query(endpoint, QUICK)
        return caught.value.stage, time.monotonic() - began


@pytest.mark.parametrize(("answers", "report", "commands"), [
    (JSON_ANSWERS, [b'{"a":', b" 1}\n"], [b"SET FORMAT json\n", b"STATUS\n"]),
    ((*JSON_ANSWERS[:2], b"ERROR: Unknown command SET FORMAT json\n"), [b"NCCL version\n"],
     [b"SET FORMAT json\n", b"VERBOSE STATUS\n"]),
], ids=["json", "longest text"])  # fmt: skip
async def test_json_is_asked_for_and_read_to_its_end(
    answers: tuple[bytes, ...], report: list[bytes], commands: list[bytes]
) -> None:
    """The client greets, sets timeout and format, and sends one query; from a library without JSON it requests text."""
    lines: list[bytes] = []
    async with served(answering(answers, report, lines)) as endpoint:
        reply = await query(endpoint, QueryLimits())
    assert reply == (answers == JSON_ANSWERS, b"".join(report))
    assert lines == [b"CLIENT PROTOCOL 2\n", b"TIMEOUT 5\n", *commands]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Listen, and send nothing."""
    await reader.read()


async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send without end, and without a newline."""
    while True:
        writer.write(b"x" * MAX_LINE_BYTES)
        await writer.drain()


async def trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply, then send a report byte by byte without end."""
    for answer in (*JSON_ANSWERS, b""):
        await reader.readline()
        writer.write(answer)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def never_closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reply, send a whole report, and leave the connection open."""
    for answer in (*JSON_ANSWERS, b"{}\n"):
        await reader.readline()
        writer.write(answer)
    await reader.read()


@pytest.mark.parametrize(("serve", "stage", "seconds"), [
    pytest.param(silent, "handshake", 2.0, id="silent"),
    pytest.param(chatter, "size", 0.1, id="endless line"),
    pytest.param(answering([b"HTTP/1.1 400 Bad Request\r\n"]), "handshake", 0.1, id="another server"),
    pytest.param(answering([b"\xff\x00\xfe\n"]), "handshake", 0.1, id="binary"),
    pytest.param(answering([]), "handshake", 0.1, id="closing at once"),
    pytest.param(answering([JSON_ANSWERS[0], b"ERROR: Invalid timeout value 5\n"]), "command", 0.1, id="no timeout"),
    pytest.param(answering([*JSON_ANSWERS[:2], b"MAYBE\n"]), "command", 0.1, id="no format"),
    pytest.param(answering(JSON_ANSWERS[:2]), "command", 0.1, id="cut before the format"),
    pytest.param(answering(JSON_ANSWERS), "cut", 0.1, id="no report"),
    pytest.param(trickling, "deadline", 0.8, id="a byte at a time"),
    pytest.param(never_closing, "deadline", 0.8, id="never closing"),
])  # fmt: skip
async def test_a_bad_server_costs_at_most_its_deadline(serve: Serve, stage: str, seconds: float) -> None:
    """Each fault of a server ends the query at a known stage, within that stage's time limit."""
    failed, seconds_used = await failure(serve)
    assert failed == stage
    assert seconds_used < seconds + 1.0


RECORDINGS = Path(__file__).parents[1] / "data" / "ras" / "monitors.tar.xz"
TEXT = b"[2026-11-20 18:05:23] PEER_DEAD: Process 28141 on node 127.0.201.6 managing GPU 0 \n"


def recordings() -> dict[str, list[bytes]]:
    """Return the pieces of every recording, keyed by name."""
    with tarfile.open(RECORDINGS) as archive:
        return {
            member.name: [json.loads(line).encode() for line in file]
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


ALL = recordings()


def split(*pieces: bytes) -> list[str]:
    """Return the events of a stream that ends after ``pieces``; "" stands for a line without an event."""
    events, unfinished = [], b""
    for piece in pieces:
        more, unfinished = split_events(unfinished + piece)
        events += more
    return events


def test_every_recording_gives_its_events() -> None:
    """All recorded text streams are read completely; together they have these events."""
    total: Counter[str] = Counter()
    texts = {name: pieces for name, pieces in ALL.items() if not b"".join(pieces).startswith(b"{")}
    for name, pieces in texts.items():
        stream = b"".join(pieces).decode()
        assert split(*pieces) == re.findall(r"^\[[^]]*\] (\w+): ", stream, re.MULTILINE), name
        total.update(event.removeprefix("PEER_") for event in split(*pieces))
    assert (len(texts), total) == (33, {
        "DEAD": 41, "NEW": 2, "UNRESPONSIVE": 12, "CONNECTED": 13, "KEEPALIVE_TIMEOUT": 4, "RECOVERED": 8,
        "CONNECTING": 10, "DISCONNECTED": 11, "INIT_TIMEOUT": 8, "TIMEOUT_DEAD": 2,
    })  # fmt: skip


def test_what_is_no_event_costs_itself_alone() -> None:
    """After an invalid, overlong or unknown line or a reply the next line is read; an unfinished line has a limit."""
    assert split(TEXT.replace(b"DEAD", b"PROMOTED") + b"SERVER PROTOCOL 2\n" + TEXT) == [OTHER, "PEER_DEAD"]
    for line in (b"hello", b"x" * MAX_EVENT_BYTES, b"x" * 10 * MAX_EVENT_BYTES):
        assert split(line + b"\n" + TEXT) == ["", "PEER_DEAD"]
    assert split(TEXT[:20], TEXT[20:]) == ["PEER_DEAD"]
    assert split_events(b"x" * MAX_EVENT_BYTES) == ([], b"x" * MAX_EVENT_BYTES)
    assert split_events(b"x" * (MAX_EVENT_BYTES + 1)) == ([], b"")
