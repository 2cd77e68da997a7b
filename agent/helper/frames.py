"""Frames between the agent and a helper process: a length and a kind in five bytes, then the payload. Pure.

A call is a REQUEST, any number of BODY frames and END; the answer is one ANSWER. There is no frame for errors: if a
process cannot answer, it exits.
"""

import struct
from enum import IntEnum
from typing import BinaryIO

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024  # Limit of a frame in both directions; an answer must fit into one frame
_HEADER = struct.Struct("<IB")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """The kind of a frame."""

    REQUEST = 1
    BODY = 2
    END = 3
    ANSWER = 5


class FrameError(ValueError):
    """Bytes that are not a valid frame, or a frame out of order."""


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """Return a frame; raises FrameError if ``payload`` is too long."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {len(payload)} bytes")
    return _HEADER.pack(len(payload), kind) + payload


def parse_header(header: bytes) -> tuple[FrameKind, int]:
    """Return the kind and the payload's length in bytes; raises FrameError if they are invalid."""
    length, number = _HEADER.unpack(header)
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {length} bytes")
    try:
        return FrameKind(number), length
    except ValueError:
        raise FrameError(f"a frame of kind {number}") from None


def read_frame(stream: BinaryIO) -> tuple[FrameKind, bytes]:
    """Read one frame from a blocking stream; raises EOFError if the stream ends within it."""
    kind, length = parse_header(_read(stream, HEADER_BYTES))
    return kind, _read(stream, length)


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
