"""Finds events in text. It searches all text for anchors, and matches patterns only in lines with an anchor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from exporters.job_log.catalogue import Catalogue, LineRule

MAX_LINE_BYTES = 8 * 1024  # The matcher ignores the rest of a longer line
MAX_LAST_LINES = 8  # Limit of lines per piece of text that are checked for an iteration
_CONTAINER = re.compile(rb"\d{4}-\d\d-\d\dT\S{8,32} std(?:out|err) [FP] ")
"""Prefix of each line from a container runtime."""
MAX_PREFIX_BYTES = 256
MAX_DIGITS = 20
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,20})?", re.ASCII)

_RANK = re.compile(rb"\[rank(\d{1,7})\]:")
_TASK = re.compile(rb"^(?:\s{0,8}(\d{1,7}): |\[[\w.@-]{1,128},(\d{1,7})\]<std(?:out|err)>:)")
"""Prefix of lines by srun --label or mpirun --tag-output."""
_WORLD_GROUP = re.compile(
    rb"\[PG (?:ID )?\d{1,6} (?:PG GUID [^( \]]{1,64}\(default_pg\)|\(default_pg\)) Rank (\d{1,7})\]"
)
_LIBRARY = re.compile(
    rb"(?:^|[\s\]])(?P<host>[A-Za-z0-9][\w.-]{0,62}):(?P<pid>\d{1,10})(?::\d{1,10} \[-?\d{1,4}\]| NCCL DIAG) "
)
_ACTOR = re.compile(
    rb"^(?:\x1b\[[0-9;]{1,12}m)?\((?:[\w.=\[\]-]{1,96} ){0,2}pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:]{1,45}))?\)"
)
"""Prefix of Ray and vLLM. Ray writes the address of a process on another node than the log's."""


class Speaker(NamedTuple):
    """The writer of a line, as far as the line names it. ``rank``: the global rank.

    ``task``: the scheduler's task number, equal to the rank if each task is one rank. ``host``, ``pid``: the process.
    """

    rank: int | None = None
    task: int | None = None
    host: str = ""
    pid: int | None = None


def speaker_of(line: bytes) -> Speaker:
    """Return the writer from the beginning of a line. A rank in the default process group is a global rank."""
    head = line[:MAX_PREFIX_BYTES]
    rank_match = _RANK.search(head) or _WORLD_GROUP.search(head)
    task, process = _TASK.match(head), _LIBRARY.search(head) or _ACTOR.match(head)
    return Speaker(
        rank=int(rank_match[1]) if rank_match else None,
        task=int(task[1] or task[2]) if task else None,
        host=(process["host"] or b"").decode("ascii") if process else "",
        pid=int(process["pid"]) if process else None,
    )


class LogEvent(NamedTuple):
    """An event in a line. ``named``: the text of each named group of the pattern.

    An event of the job's progress has a rule with an empty ``role``. ``start``: offset of the line in the text.
    """

    rule: LineRule
    speaker: Speaker
    named: dict[str, bytes]
    start: int = 0

    def text(self, name: str) -> str:
        """Return a group's content as text; empty without content."""
        return self.named.get(name, b"").decode("ascii", "replace")

    def number(self, name: str) -> int | None:
        """Return a group's content as a whole number; None without one."""
        digits = self.named.get(name, b"")
        return int(digits) if digits.removeprefix(b"-").isdigit() and len(digits) <= MAX_DIGITS else None

    def decimal(self, name: str) -> float | None:
        """Return a group's content as a number without sign; None without one. A site's pattern may match any text."""
        text = self.text(name)
        return float(text) if _DECIMAL.fullmatch(text) else None


def events(data: bytes, catalogue: Catalogue) -> Iterator[LogEvent]:
    """Return the events in ``data`` (whole lines) in order, at most one per line; iterations only of the last lines."""
    lines: dict[int, int] = {}
    for anchor in catalogue.anchors:
        for start in _from_the_end(data, anchor.text) if anchor.last_only else _lines_with(data, anchor.text):
            lines[start] = lines.get(start, 0) | anchor.rules
    for start in sorted(lines):
        end = data.find(b"\n", start, start + MAX_LINE_BYTES)
        line = data[start : end if end >= 0 else start + MAX_LINE_BYTES]
        event = classify(line, catalogue, lines[start])
        if event is not None:
            yield event._replace(start=start)


def classify(line: bytes, catalogue: Catalogue, rules: int) -> LogEvent | None:
    """Return the event of the first matching rule. ``rules``: one bit per rule, lowest bit first."""
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
    """Yield the offset of each line that contains ``anchor``."""
    position = data.find(anchor)
    while position >= 0:
        yield data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        position = data.find(anchor, end) if end >= 0 else -1


def _from_the_end(data: bytes, anchor: bytes) -> Iterator[int]:
    """Yield the offset of each of the last MAX_LAST_LINES lines with ``anchor``, the last line first."""
    position = data.rfind(anchor)
    for _ in range(MAX_LAST_LINES):
        if position < 0:
            break
        start = data.rfind(b"\n", 0, position) + 1
        yield start
        position = data.rfind(anchor, 0, start)
