"""The frames between the agent and its helper processes."""

import io
import itertools

import pytest
from hypothesis import given, strategies as st

from agent.helper.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, FrameError, FrameKind, frame, parse_header, read_frame

FRAMES = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=300)), max_size=8)


class Cut(io.RawIOBase):
    """A stream that gives these pieces, one at each read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the one kind of buffer there is here
        if not self._pieces:
            return 0
        taken, left = self._pieces[0][: len(buffer)], self._pieces[0][len(buffer) :]
        self._pieces[:1] = [left] if left else []
        buffer[: len(taken)] = taken
        return len(taken)


@given(FRAMES, st.lists(st.integers(0, 3000)))
def test_frames_survive_any_cutting(frames: list[tuple[FrameKind, bytes]], cuts: list[int]) -> None:
    """However the bytes are cut on their way, the frames that went in come out, and then the end."""
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    places = [0, *sorted(cuts), len(data)]
    stream = io.BufferedReader(Cut([data[a:b] for a, b in itertools.pairwise(places)]))
    assert [read_frame(stream) for _ in frames] == frames
    with pytest.raises(EOFError):
        read_frame(stream)


@given(st.binary(max_size=40), st.data())
def test_a_cut_frame_is_an_end(payload: bytes, data: st.DataObject) -> None:
    """A stream that ends within a frame ends: half a frame is never given."""
    whole = frame(FrameKind.BODY, payload)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(whole[:cut]))


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_header_is_a_frame_or_refused(header: bytes) -> None:
    """Any five bytes are a known kind with a bounded length, or a FrameError."""
    length, number = int.from_bytes(header[:4], "little"), header[4]
    if length <= MAX_PAYLOAD_BYTES and 1 <= number <= 5:
        assert parse_header(header) == (number, length)
    else:
        with pytest.raises(FrameError):
            parse_header(header)


def test_a_payload_is_bounded() -> None:
    """A payload of the bound passes in both directions, one of a byte more in none."""
    assert parse_header(frame(FrameKind.ANSWER, bytes(MAX_PAYLOAD_BYTES))[:HEADER_BYTES]) == (
        FrameKind.ANSWER,
        MAX_PAYLOAD_BYTES,
    )
    with pytest.raises(FrameError):
        frame(FrameKind.ANSWER, bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(FrameError):
        parse_header((MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + b"\5")
