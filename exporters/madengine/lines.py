"""Parses output lines of a madengine run: steps of a node's task, results, and missing nodes. Pure."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

MAX_LINE_CHARACTERS = 4096
"""The parser ignores the rest of a longer line."""
MAX_NODES = 65_536
MAX_METRIC_CHARACTERS = 64
MAX_NUMBER = 1e18
MAX_CODE = 255

Step = Literal["started", "running", "returned", "exited"]
_STEPS: dict[str, Step] = {
    "task script started": "started",
    "about to run madengine": "running",
    "madengine exited": "returned",
    "task script exiting": "exited",
}
_N = r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?"
_MARKER = re.compile(
    r"\[DEBUG\] \S{1,64} Node ([0-9]{1,6}) \([^()]{1,255}\): "
    r"(?:(task script started|about to run madengine)|"
    r"(madengine exited|task script exiting) with code ([0-9]{1,3}))\s*$",
    re.ASCII,
)
_PERFORMANCE = re.compile(
    rf"performance:\s{{1,8}}({_N})(?:,?\s{{0,8}}/[A-Za-z]{{1,16}}\s{{0,8}},?|,)?\s{{1,8}}([^\s,]+)"
)
_TRAINED = re.compile(rf"\b(train_samples_per_second)['\"]?\s{{0,8}}[:=]\s{{0,8}}({_N})", re.ASCII)
_BARRIER = re.compile(r"TCP barrier timeout on master: accepted=([0-9]{1,6})/([0-9]{1,6})\b", re.ASCII)


class Marker(msgspec.Struct, frozen=True):
    """A step of a node's task. ``code``: exit code, only for the steps returned and exited."""

    step: Step
    code: int | None = None


class Measured(msgspec.Struct, frozen=True):
    """A result of a run, in the unit that ``metric`` names."""

    metric: str
    value: float


class MissingNodes(msgspec.Struct, frozen=True):
    """The barrier before the run timed out on the master. ``count``: number of missing nodes."""

    count: int


MadLine = Marker | Measured | MissingNodes


def read_line(line: str) -> MadLine | None:
    """Return the parsed line; None for nearly all lines."""
    text = line[:MAX_LINE_CHARACTERS]
    if "[DEBUG] " in text and (marker := _marker(text)) is not None:
        return marker
    if "TCP barrier timeout" in text:
        return _barrier(text)
    return _measured(text)


def _marker(text: str) -> Marker | None:
    match = _MARKER.search(text)
    if match is None or int(match[1]) >= MAX_NODES:
        return None
    code = None if match[4] is None else int(match[4])
    if code is not None and code > MAX_CODE:
        return None
    return Marker(_STEPS[match[2] or match[3]], code)


def _barrier(text: str) -> MissingNodes | None:
    match = _BARRIER.search(text)
    if match is None:
        return None
    missing = int(match[2]) - int(match[1])
    return MissingNodes(missing) if 0 <= missing < MAX_NODES else None


def _measured(text: str) -> Measured | None:
    if "performance:" in text and (match := _PERFORMANCE.search(text)) is not None:
        return _result(match[2], match[1])
    if "train_samples_per_second" in text and (match := _TRAINED.search(text)) is not None:
        return _result(match[1], match[2])
    return None


def _result(metric: str, number: str) -> Measured | None:
    value = float(number)
    return Measured(as_label(metric), value) if abs(value) <= MAX_NUMBER else None


def as_label(text: str) -> str:
    """Return a job's text as a label value: printable, at most MAX_METRIC_CHARACTERS characters."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_METRIC_CHARACTERS])
