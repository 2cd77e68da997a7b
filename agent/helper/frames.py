"""The frames that the agent and a helper process exchange: a length and a kind in five bytes, then the payload. Pure.

A call is a REQUEST, any number of BODY frames and END, and gets one ANSWER. A process that cannot answer ends: there is
no frame for an error.
"""

import struct
from enum import IntEnum
from typing import BinaryIO

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024  # Of one frame, either way: an answer must fit into one
_HEADER = struct.Struct("<IB")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """What a frame is; a helper that sends on its own accord would add one."""

    REQUEST = 1
    BODY = 2
    END = 3
    ANSWER = 5


class FrameError(ValueError):
    """Bytes that are no frame, or one that may not be where it is."""


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """Return a frame; FrameError when ``payload`` is longer than one may be."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {len(payload)} bytes")
    return _HEADER.pack(len(payload), kind) + payload


def parse_header(header: bytes) -> tuple[FrameKind, int]:
    """Return the kind and the length of the payload, in bytes; FrameError when there is no such frame."""
    length, number = _HEADER.unpack(header)
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a payload of {length} bytes")
    try:
        return FrameKind(number), length
    except ValueError:
        raise FrameError(f"a frame of kind {number}") from None


def read_frame(stream: BinaryIO) -> tuple[FrameKind, bytes]:
    """Read one frame from a blocking stream; EOFError when the stream ends before the frame does."""
    kind, length = parse_header(_read(stream, HEADER_BYTES))
    return kind, _read(stream, length)


def _read(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data
