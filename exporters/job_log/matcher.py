"""Events in whole lines of text: a few words are searched for in all of it, and patterns in the lines that have one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from exporters.job_log.catalogue import Catalogue, LineRule

MAX_LINE_BYTES = 8 * 1024
"""What stands beyond this in a line is not looked at."""
MAX_LAST_LINES = 8
"""Of one piece of text so many lines are looked at that may tell of an iteration."""
_CONTAINER = re.compile(rb"\d{4}-\d\d-\d\dT\S{8,32} std(?:out|err) [FP] ")
"""What a container's runtime writes before each line."""
MAX_PREFIX_BYTES = 256
MAX_RANK = 1 << 20

_RANK = re.compile(rb"\[rank(\d{1,7})\]:")
_TASK = re.compile(rb"^(?:\s{0,8}(\d{1,7}): |\[[\w.@-]{1,128},(\d{1,7})\]<std(?:out|err)>:)")
"""As srun's --label, or mpirun's --tag-output, writes it."""
_WORLD_GROUP = re.compile(
    rb"\[PG (?:ID )?\d{1,6} (?:PG GUID [^( \]]{1,64}\(default_pg\)|\(default_pg\)) Rank (\d{1,7})\]"
)
_LIBRARY = re.compile(rb"(?:^|[\s\]])([A-Za-z0-9][\w.-]{0,62}):(\d{1,10}):\d{1,10} \[-?\d{1,4}\] ")
_ACTOR = re.compile(rb"^(?:\x1b\[[0-9;]{1,12}m)?\([\w.-]{1,64} pid=(\d{1,10})(?:, ip=[\w.:]{1,45})?\)")
_LOCAL = re.compile(rb"^\[(?:default|trainer|worker)(\d{1,4})\]:")


class Speaker(NamedTuple):
    """``rank``: the global rank, where the line says that; ``task``: the number of the scheduler's task, which is the
    rank where each task is one. ``host`` and ``pid``: of the process, by its own words. ``local``: its rank on the
    node.
    """

    rank: int | None = None
    task: int | None = None
    host: str = ""
    pid: int | None = None
    local: int | None = None


def speaker_of(line: bytes) -> Speaker:
    """Read the beginning of a line. The rank in a process group is a global one in the group of all alone."""
    head = line[:MAX_PREFIX_BYTES]
    found = _RANK.search(head) or _WORLD_GROUP.search(head)
    task, local, library = _TASK.match(head), _LOCAL.match(head), _LIBRARY.search(head)
    actor = None if library else _ACTOR.match(head)
    pid = library[2] if library else actor[1] if actor else None
    return Speaker(
        rank=_number(found[1]) if found else None,
        task=_number(task[1] or task[2]) if task else None,
        host=library[1].decode("ascii") if library else "",
        pid=None if pid is None else int(pid),
        local=int(local[1]) if local else None,
    )


def _number(text: bytes) -> int | None:
    number = int(text)
    return number if number < MAX_RANK else None


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
