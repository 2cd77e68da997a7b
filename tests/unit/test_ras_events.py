"""The splitter of MONITOR streams, on recordings of real ones and on what no library sends."""

import itertools
import json
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from exporters.ras.protocol.client import MAX_EVENT_BYTES, OTHER, EventSplitter

RECORDINGS = Path(__file__).parents[1] / "data" / "ras" / "monitors.tar.xz"
TEXT = b"[2026-11-20 18:05:23] PEER_DEAD: Process 28141 on node 127.0.201.6 managing GPU 0 \n"


def recordings() -> dict[str, list[bytes]]:
    """The pieces of every recording, by its name."""
    with tarfile.open(RECORDINGS) as archive:
        return {
            member.name: [json.loads(line).encode() for line in file]
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


ALL = recordings()


def split(*pieces: bytes) -> tuple[list[str], int]:
    """The events of a stream that ends after ``pieces``, and how many lines of it are none."""
    splitter = EventSplitter()
    found = [event for piece in pieces for event in splitter.feed(piece)]
    return found, splitter.unread


def test_every_recording_gives_its_events() -> None:
    """All recorded streams of text are read in full; together they hold these events."""
    total: Counter[str] = Counter()
    texts = {name: pieces for name, pieces in ALL.items() if not b"".join(pieces).startswith(b"{")}
    for name, pieces in texts.items():
        stream = b"".join(pieces).decode()
        assert split(*pieces) == (re.findall(r"^\[[^]]*\] (\w+): ", stream, re.MULTILINE), 0), name
        total.update(split(*pieces)[0])
    assert (len(texts), total) == (
        33,
        {
            "PEER_DEAD": 41,
            "PEER_NEW": 2,
            "PEER_UNRESPONSIVE": 12,
            "PEER_CONNECTED": 13,
            "PEER_KEEPALIVE_TIMEOUT": 4,
            "PEER_RECOVERED": 8,
            "PEER_CONNECTING": 10,
            "PEER_DISCONNECTED": 11,
            "PEER_INIT_TIMEOUT": 8,
            "PEER_TIMEOUT_DEAD": 2,
        },
    )


FRAGMENTS = st.sampled_from([
    TEXT, b"\n", b"\0\xff\n", b"x" * (MAX_EVENT_BYTES + 1) + b"\n",
    b"[2026-11-20 18:05:23] PEER_NEW: 10.0.0.1<4711> \n",
    b"no end",
])  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=12), st.lists(st.integers(0, 60_000), max_size=30))
def test_the_cutting_changes_nothing(fragments: list[bytes], cuts: list[int]) -> None:
    """Whatever a stream holds, and however it is cut, its events and what is not read of it are the same."""
    stream = b"".join(fragments)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(edges)]
    assert split(*pieces) == split(stream)


@pytest.mark.parametrize(("stream", "events"), [
    (TEXT, ["PEER_DEAD"]),
    (b"[2026-11-20 18:05:23] PEER_NEW: 10.0.0.1<4711> \n", ["PEER_NEW"]),
    (b"[2026-11-20 18:05:23] PEER_PROMOTED: Process 1 on node ::1 managing GPUs 0,1 (NVML 2,3) x\n", [OTHER]),
    (TEXT + b"SERVER PROTOCOL 2\n" + TEXT, ["PEER_DEAD"] * 2),
])  # fmt: skip
def test_an_event_is_read(stream: bytes, events: list[str]) -> None:
    """A line is read, with or without a peer; an invention of the library is `other`, an answer is no event."""
    assert split(stream) == (events, 0)


def test_what_is_no_event_costs_itself_alone() -> None:
    """A line that is none, or is too long, is counted once, and the next is read; one without end is not kept."""
    for line in (b"hello", b"x" * MAX_EVENT_BYTES, b"x" * (MAX_EVENT_BYTES + 1), b"x" * 10 * MAX_EVENT_BYTES):
        assert split(line + b"\n" + TEXT) == (["PEER_DEAD"], 1)
    event = TEXT.rstrip().ljust(MAX_EVENT_BYTES)
    assert (split(event + b"\n"), split(event + b" \n")) == ((["PEER_DEAD"], 0), ([], 1))
    splitter = EventSplitter()
    for _ in range(100):
        splitter.feed(b"x" * 8192)
    assert (len(splitter._line), splitter.unread) == (0, 1)
