"""What a MONITOR connection sends, split into events: objects of pretty-printed JSON, or lines of text. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import msgspec

EVENTS = (
    "PEER_NEW",
    "PEER_DEAD",
    "PEER_UNRESPONSIVE",
    "PEER_RECOVERED",
    "PEER_DISCONNECTED",
    "PEER_CONNECTING",
    "PEER_CONNECTED",
    "PEER_RETRY",
    "PEER_INIT_TIMEOUT",
    "PEER_SEND_STUCK",
    "PEER_KEEPALIVE_TIMEOUT",
    "PEER_TIMEOUT_DEAD",
)
"""All events of 2.29.2 to 2.32.3, as the library writes them."""
OTHER = "other"  # What any other event is called

MAX_LINE_BYTES = 4 * 1024
MAX_OBJECT_BYTES = 16 * 1024  # Of one event, its line breaks not counted; one of a process with 8 GPUs has 0.3 KB

Unread = Literal["long_line", "long_object", "unreadable", "cut"]
"""Why something is no event: a line or an object beyond its cap, neither an event's text nor its JSON, the stream ended
within it."""

_TEXT = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ([A-Z][A-Z0-9_]{0,63}): ")
_ANSWER = re.compile(rb"SERVER PROTOCOL \d{1,9}$")  # To CLIENT PROTOCOL, which may be sent at any time
_BEGIN = b"{"
_END = b"}"


class _Event(msgspec.Struct):
    event: str


_DECODER = msgspec.json.Decoder(_Event)


class EventSplitter:
    """Splits one stream, however it is cut into pieces. ``unread`` counts what gave no event."""

    def __init__(self) -> None:
        self.unread: Counter[Unread] = Counter()
        self._line = bytearray()
        self._line_is_long = False
        self._object: bytearray | None = None
        self._object_is_bad = False

    def feed(self, piece: bytes) -> list[str]:
        """Return the events that ``piece`` completes, each one of EVENTS or OTHER."""
        found = []
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._extend(line)
            if not self._line_is_long and (event := self._take(bytes(self._line))) is not None:
                found.append(event if event in EVENTS else OTHER)
            self._line.clear()
            self._line_is_long = False
        self._extend(rest)
        return found

    def end(self) -> None:
        """Count what the end of the stream left incomplete."""
        if self._line or (self._object is not None and not self._object_is_bad):
            self.unread["cut"] += 1

    def _extend(self, part: bytes) -> None:
        if self._line_is_long:
            return
        if len(self._line) + len(part) > MAX_LINE_BYTES:
            self._line_is_long = self._object_is_bad = True  # an object has lost this line
            self.unread["long_line"] += 1
            self._line.clear()
        else:
            self._line += part

    def _take(self, line: bytes) -> str | None:
        """Return the event that a whole line completes, if it does."""
        if line == _BEGIN:
            if self._object is not None and not self._object_is_bad:
                self.unread["unreadable"] += 1  # the one before has no end
            self._object, self._object_is_bad = bytearray(line), False
            return None
        if self._object is None:
            return self._read_text(line)
        if not self._object_is_bad:
            self._object += line
            if len(self._object) > MAX_OBJECT_BYTES:
                self._object_is_bad = True
                self.unread["long_object"] += 1
        return self._end_object() if line == _END else None

    def _read_text(self, line: bytes) -> str | None:
        if match := _TEXT.match(line):
            return match[1].decode()
        if not _ANSWER.match(line):
            self.unread["unreadable"] += 1
        return None

    def _end_object(self) -> str | None:
        whole, bad = self._object, self._object_is_bad
        self._object, self._object_is_bad = None, False
        if bad or whole is None:
            return None
        try:
            return _DECODER.decode(whole).event
        except (ValueError, RecursionError):  # msgspec's errors and UnicodeDecodeError are ValueErrors
            self.unread["unreadable"] += 1
            return None
