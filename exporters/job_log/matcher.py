"""Events in whole lines of text: a few words are searched for in all of it, and patterns in the lines that have one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from exporters.job_log.catalogue import Catalogue, LineRule
from exporters.job_log.speaker import Speaker, speaker_of

MAX_LINE_BYTES = 8 * 1024
"""What stands beyond this in a line is not looked at."""
MAX_LAST_LINES = 8
"""Of one piece of text so many lines are looked at that may tell of an iteration."""
_CONTAINER = re.compile(rb"\d{4}-\d\d-\d\dT\S{8,32} std(?:out|err) [FP] ")
"""What a container's runtime writes before each line."""


class LogEvent(NamedTuple):
    """``named``: what its pattern's groups hold. ``rule.role`` is empty where it is of progress.

    ``start``: where its line begins in the text that was looked at.
    """

    rule: LineRule
    speaker: Speaker
    named: dict[str, bytes]
    start: int = 0

    def text(self, name: str) -> str:
        """What a group holds, as text; empty where it holds nothing."""
        return self.named.get(name, b"").decode("ascii", "replace")

    def number(self, name: str) -> int | None:
        """The number that a group holds."""
        found = self.named.get(name, b"")
        return int(found) if found.lstrip(b"-").isdigit() else None


def events(data: bytes, catalogue: Catalogue) -> Iterator[LogEvent]:
    """The events in ``data``, whole lines, in their order; one at most for each line, and of iterations the last."""
    lines: dict[int, int] = {}
    for anchor in catalogue.anchors:
        for start in _from_the_end(data, anchor.text) if anchor.last_only else _lines_with(data, anchor.text):
            lines[start] = lines.get(start, 0) | anchor.rules
    for start in sorted(lines):
        end = data.find(b"\n", start, start + MAX_LINE_BYTES)
        line = data[start : end if end >= 0 else start + MAX_LINE_BYTES]
        event = _classify(line, catalogue, lines[start])
        if event is not None:
            yield event._replace(start=start)


def classify(line: bytes, catalogue: Catalogue) -> LogEvent | None:
    """The event in a line of the log; None for nearly all lines."""
    return next(events(line, catalogue), None)


def _classify(line: bytes, catalogue: Catalogue, rules: int) -> LogEvent | None:
    """The event that a line tells of by one of ``rules``, a bit for each, the lowest first."""
    if written := _CONTAINER.match(line):
        line = line[written.end() :]
    while rules:
        lowest = rules & -rules
        rules ^= lowest
        rule = catalogue.rules[lowest.bit_length() - 1]
        if not any(word in line for word in rule.contains):
            continue
        for pattern in rule.patterns:
            if match := pattern.search(line):
                named = {name: text for name, text in match.groupdict().items() if text is not None}
                return LogEvent(rule, speaker_of(line), named)
    return None


def _lines_with(data: bytes, anchor: bytes) -> Iterator[int]:
    """Where the lines begin that hold ``anchor``."""
    position = data.find(anchor)
    while position >= 0:
        yield data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        position = data.find(anchor, end) if end >= 0 else -1


def _from_the_end(data: bytes, anchor: bytes) -> Iterator[int]:
    """The same of the last MAX_LAST_LINES of them, the last one first."""
    position = data.rfind(anchor)
    for _ in range(MAX_LAST_LINES):
        if position < 0:
            break
        start = data.rfind(b"\n", 0, position) + 1
        yield start
        position = data.rfind(anchor, 0, start)
