"""The splitter of MONITOR streams, on recordings of real ones and on what no library sends."""

from __future__ import annotations

import itertools
import json
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from exporters.ras.protocol.events import EVENTS, MAX_LINE_BYTES, MAX_OBJECT_BYTES, OTHER, EventSplitter
from exporters.ras.show.families import UNREAD_REASONS

RECORDINGS = Path(__file__).parents[1] / "data" / "ras" / "monitors.tar.xz"
TEXT = b"[2026-11-20 18:05:23] PEER_DEAD: Process 28141 on node 127.0.201.6 managing GPU 0 \n"
JSON = b"""{
  "timestamp": "2026-11-20 18:05:23",
  "group": "LIFECYCLE",
  "event": "PEER_DEAD",
  "peer": {
    "host": "127.0.201.6",
    "pid": 28141,
    "cuda_devs": [0],
    "nvml_devs": [0]
  },
  "details": ""
}
"""


def recordings() -> dict[str, list[bytes]]:
    """The pieces of every recording, by its name."""
    with tarfile.open(RECORDINGS) as archive:
        return {
            member.name: [json.loads(line).encode() for line in file]
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


ALL = recordings()


def split(*pieces: bytes) -> tuple[list[str], dict[str, int]]:
    """The events of a stream that ends after ``pieces``, and what of it was not read."""
    splitter = EventSplitter()
    found = [event for piece in pieces for event in splitter.feed(piece)]
    splitter.end()
    return found, dict(splitter.unread)


def by_the_standard_library(stream: str) -> list[str]:
    """The events of a whole stream: JSON by its decoder, text by the word before the colon."""
    if not stream.startswith("{"):
        return re.findall(r"^\[[^]]*\] (\w+): ", stream, re.MULTILINE)
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(stream):
        event, at = decoder.raw_decode(stream, at)
        found.append(event["event"])
        at += 1  # the line's end
    return found


def test_every_recording_gives_its_events() -> None:
    """All 55 recorded streams are read in full, in both forms; together they hold these events."""
    total: Counter[str] = Counter()
    for name, pieces in ALL.items():
        assert split(*pieces) == (by_the_standard_library(b"".join(pieces).decode()), {}), name
        total.update(split(*pieces)[0])
    assert len(ALL) == 55
    assert total == {
        "PEER_NEW": 4, "PEER_DEAD": 65, "PEER_UNRESPONSIVE": 26, "PEER_RECOVERED": 16, "PEER_DISCONNECTED": 23,
        "PEER_CONNECTING": 20, "PEER_CONNECTED": 27, "PEER_INIT_TIMEOUT": 20, "PEER_KEEPALIVE_TIMEOUT": 8,
        "PEER_TIMEOUT_DEAD": 5,
    }  # fmt: skip


FRAGMENTS = st.sampled_from(
    [TEXT, JSON, b"{\n", b"}\n", b"\n", b"\0\xff\n", b'  "event": 7\n', b"x" * (MAX_LINE_BYTES + 1) + b"\n",
     (b"y" * (MAX_LINE_BYTES - 1) + b"\n") * (MAX_OBJECT_BYTES // MAX_LINE_BYTES + 1),
     b"[2026-11-20 18:05:23] PEER_NEW: 10.0.0.1<4711> \n", b"no end"],
)  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(0, 60_000), max_size=30))
def test_the_cutting_changes_nothing(fragments: list[bytes], cuts: list[int]) -> None:
    """Whatever a stream holds, and however it is cut, its events and what is not read of it are the same."""
    stream = b"".join(fragments)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(edges)]
    assert split(*pieces) == split(stream)


@given(st.binary(max_size=2_000))
def test_any_bytes_are_taken(noise: bytes) -> None:
    """No bytes raise, none is an event of the closed set by accident, and lines after them are read."""
    found, _ = split(noise, b"\n}\n", TEXT)
    assert found[-1] == "PEER_DEAD"
    assert set(found) <= {*EVENTS, OTHER}


@pytest.mark.parametrize(("stream", "events"), [
    (TEXT, ["PEER_DEAD"]),
    (b"[2026-11-20 18:05:23] PEER_NEW: 10.0.0.1<4711> \n", ["PEER_NEW"]),
    (b"[2026-11-20 18:05:23] PEER_PROMOTED: Process 1 on node ::1 managing GPUs 0,1 (NVML 2,3) x\n", [OTHER]),
    (JSON, ["PEER_DEAD"]),
    (JSON.replace(b"PEER_DEAD", b"PEER_PROMOTED"), [OTHER]),
    (b'{\n  "event": "PEER_NEW"\n}\n', ["PEER_NEW"]),
    (JSON + TEXT + JSON, ["PEER_DEAD"] * 3),
    (JSON + b"SERVER PROTOCOL 2\n" + JSON, ["PEER_DEAD"] * 2),
])  # fmt: skip
def test_an_event_is_read(stream: bytes, events: list[str]) -> None:
    """Both forms are read, with or without a peer; an invention of the library is `other`, an answer is no event."""
    assert split(stream) == (events, {})


@pytest.mark.parametrize(("stream", "events", "unread"), [
    pytest.param(b"hello\n" + TEXT, 1, {"unreadable": 1}, id="a word"),
    pytest.param(b"\n}\n" + TEXT, 1, {"unreadable": 2}, id="an end without a beginning"),
    pytest.param(b"{\n" + JSON, 1, {"unreadable": 1}, id="a beginning without an end"),
    pytest.param(b'{\n "event": 7\n}\n' + JSON, 1, {"unreadable": 1}, id="no name"),
    pytest.param(b'{\n "event": "\xff"\n}\n' + JSON, 1, {"unreadable": 1}, id="no text"),
    pytest.param(b'{\n"x":\n' + b"[" * MAX_LINE_BYTES + b"\n}\n" + JSON, 1, {"unreadable": 1}, id="deep"),
    pytest.param(b'{"event": "PEER_NEW"}\n', 0, {"unreadable": 1}, id="an object on one line"),
    pytest.param(TEXT[:-1], 0, {"cut": 1}, id="cut text"),
    pytest.param(JSON[:-2], 0, {"cut": 1}, id="cut JSON"),
    pytest.param(b"x" * MAX_LINE_BYTES + b"\n" + TEXT, 1, {"unreadable": 1}, id="a line at the limit"),
    pytest.param(b"x" * (MAX_LINE_BYTES + 1) + b"\n" + TEXT, 1, {"long_line": 1}, id="a long line"),
    pytest.param(b"x" * 10 * MAX_LINE_BYTES, 0, {"long_line": 1}, id="a line without end"),
    pytest.param(b"{\n" + b" " * (MAX_LINE_BYTES + 1) + b'\n"event": "PEER_NEW"\n}\n' + JSON, 1, {"long_line": 1},
     id="an object that lost a line"),
    pytest.param(b"{\n" + b" " * (MAX_LINE_BYTES + 1) + b"\n" + JSON, 1, {"long_line": 1},
     id="one that lost its end, too"),
])  # fmt: skip
def test_what_is_no_event_is_counted_and_the_next_is_read(stream: bytes, events: int, unread: dict[str, int]) -> None:
    """Garbage costs itself alone, and is counted once, by its reason."""
    assert split(stream) == (["PEER_DEAD"] * events, unread)


@pytest.mark.parametrize(("spare", "events", "unread"), [(0, ["PEER_NEW"], {}), (1, [], {"long_object": 1})])
def test_an_object_has_a_limit(spare: int, events: list[str], unread: dict[str, int]) -> None:
    """An object may be as large as the limit, and not larger."""
    line, last = b" " * (MAX_LINE_BYTES - 1), b'"event": "PEER_NEW"'
    blanks = MAX_OBJECT_BYTES + spare - len(b"{" + last + b"}")
    lines = [line] * (blanks // len(line)) + [b" " * (blanks % len(line))]
    stream = b"\n".join([b"{", *lines, last, b"}", b""])
    assert split(stream) == (events, unread)
    assert split(stream, JSON)[0] == [*events, "PEER_DEAD"]


def test_what_does_not_end_is_not_kept() -> None:
    """A line or an object without end costs no more memory than the limits."""
    splitter = EventSplitter()
    for piece in (b"x" * 8192, b"\n{\n", *[b"y\n" * 4096] * 100):
        splitter.feed(piece)
    kept = [each for each in vars(splitter).values() if isinstance(each, bytearray)]
    assert sum(map(len, kept)) <= MAX_LINE_BYTES + MAX_OBJECT_BYTES + 1


def test_every_reason_is_a_series() -> None:
    """Whatever is not read is exported."""
    _, unread = split(b"x" * (MAX_LINE_BYTES + 1) + b"\nx\n{\n" + b"y\n" * MAX_OBJECT_BYTES + b"y\n}\n{\n")
    assert set(unread) == set(UNREAD_REASONS)
