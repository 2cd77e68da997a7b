"""What a MONITOR connection sends, split into events: a line of text each. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

EVENTS = (
    "PEER_NEW", "PEER_DEAD", "PEER_UNRESPONSIVE", "PEER_RECOVERED", "PEER_DISCONNECTED", "PEER_CONNECTING",
    "PEER_CONNECTED", "PEER_RETRY", "PEER_INIT_TIMEOUT", "PEER_SEND_STUCK", "PEER_KEEPALIVE_TIMEOUT",
    "PEER_TIMEOUT_DEAD",
)  # fmt: skip
"""All events of 2.29.2 to 2.32.3, as the library writes them."""
OTHER = "other"  # what any other event is called
MAX_LINE_BYTES = 4 * 1024  # of one event

Unread = Literal["long_line", "unreadable", "cut"]
"""Why something is no event: a line beyond its cap, one that is no event's, the stream ended within it."""

_TEXT = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ([A-Z][A-Z0-9_]{0,63}): ")
_ANSWER = re.compile(rb"SERVER PROTOCOL \d{1,9}")  # to CLIENT PROTOCOL, which may be sent at any time


class EventSplitter:
    """Splits one stream, however it is cut into pieces. ``unread`` counts what gave no event."""

    def __init__(self) -> None:
        self.unread: Counter[Unread] = Counter()
        self._line = bytearray()
        self._is_long = False

    def feed(self, piece: bytes) -> list[str]:
        """Return the events that ``piece`` completes, each one of EVENTS or OTHER."""
        found = []
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._extend(line)
            if match := _TEXT.match(self._line):
                event = match[1].decode()
                found.append(event if event in EVENTS else OTHER)
            elif not self._is_long and not _ANSWER.fullmatch(self._line):
                self.unread["unreadable"] += 1
            self._line.clear()
            self._is_long = False
        self._extend(rest)
        return found

    def end(self) -> None:
        """Count what the end of the stream left incomplete."""
        if self._line:
            self.unread["cut"] += 1

    def _extend(self, part: bytes) -> None:
        if self._is_long:
            return
        self._line += part
        if len(self._line) > MAX_LINE_BYTES:
            self._is_long = True
            self.unread["long_line"] += 1
            self._line.clear()
