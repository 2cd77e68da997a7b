"""Parses rank output of a NIXL-EP run. Pure. A job writes the text, so each part is bounded.

Many processes write one file at the same time. So a line may hold several records, and a record may begin anywhere in
the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

MAX_LINE_CHARACTERS = 65_536
"""The parser ignores the rest of a longer line."""
MAX_RECORDS = 256
"""Limit of records per line."""
MAX_SET = 4096
"""Limit of ranks per record."""
MAX_RANK = 1 << 20
MAX_PHASE = 1 << 20
MAX_NUMBER = 1e12
_GB = 1e9

_N = r"([+-]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:[eE][+-]?[0-9]{1,3})?|[+-]?inf|nan)"
_R = r"([0-9]{1,7})(?![0-9])"
_RANKS = r"([0-9, ]{0,32768})"
_SELF = rf"global_rank={_R}, local_rank={_R} -> "


class Identity(NamedTuple):
    """The rank of a process. ``process``: the number of the process in its launch."""

    process: int
    rank: int


class PhaseEdge(NamedTuple):
    """A rank began (``edge``: start) or ended (``edge``: end) a phase."""

    rank: int
    edge: str
    phase: int


class Left(NamedTuple):
    """A rank logs that it leaves. ``why``: removed, killed (by the plan), done, or no_phase (without further work)."""

    rank: int
    why: str


class PeersFailed(NamedTuple):
    """``rank`` reports failed ``ranks``. ``unplanned``: the rank checked the plan, and these failures are not in it."""

    rank: int
    ranks: tuple[int, ...]
    unplanned: bool = False


class Bandwidth(NamedTuple):
    """A rank's measured bandwidth. ``stage``: combined, dispatch or combine."""

    rank: int
    stage: str
    bytes_per_second: float


Record = Identity | PhaseEdge | Left | PeersFailed | Bandwidth


def read_records(line: str) -> list[Record]:
    """Return the first MAX_RECORDS records of a line, in order. Records with a number out of bounds are missing."""
    text = line[:MAX_LINE_CHARACTERS]
    records: list[tuple[int, Record]] = []
    for word, pattern, make in _KINDS:
        for match in pattern.finditer(text) if word in text else ():
            try:
                records += [(match.start(), record) for record in make(match)]
            except ValueError:
                continue
    return [record for _, record in sorted(records, key=lambda one: one[0])[:MAX_RECORDS]]


def _bounded(text: str, limit: int) -> int:
    if int(text) > limit:
        raise ValueError("a number is out of bounds")
    return int(text)


def _rank(text: str) -> int:
    return _bounded(text, MAX_RANK - 1)


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(sorted({_rank(each) for each in text.replace(",", " ").split()})[:MAX_SET])


def _bandwidth(rank: str, stage: str, text: str) -> Bandwidth:
    number = float(text)
    if not 0 <= number <= MAX_NUMBER:  # also true for NaN
        raise ValueError("a measurement is out of bounds")
    return Bandwidth(_rank(rank), stage, number * _GB)


def _left(why: str) -> Callable[[re.Match[str]], list[Record]]:
    return lambda match: [Left(_rank(match[1]), why)]


def _kind(
    word: str, pattern: str, make: Callable[[re.Match[str]], list[Record]]
) -> tuple[str, re.Pattern[str], Callable[[re.Match[str]], list[Record]]]:
    return word, re.compile(pattern, re.ASCII), make


_KINDS = (
    _kind(
        " phase ",
        rf"{_SELF}(start|end) phase {_R}",
        lambda match: [PhaseEdge(_rank(match[1]), match[3], _bounded(match[4], MAX_PHASE))],
    ),
    _kind(
        "bandwidth: ",
        rf"\[rank {_R}\] Dispatch \+ combine bandwidth: {_N} GB/s",
        lambda match: [_bandwidth(match[1], "combined", match[2])],
    ),
    _kind(
        "bandwidth: ",
        rf"\[rank {_R}\] Dispatch bandwidth: {_N} GB/s(?:, avg_t=[^ ]{{1,32}} us)? \| Combine bandwidth: {_N} GB/s",
        lambda match: [_bandwidth(match[1], "dispatch", match[2]), _bandwidth(match[1], "combine", match[3])],
    ),
    _kind(
        "Process ",
        rf"Process {_R} -> global_rank={_R}, local_rank={_R}",
        lambda match: [Identity(_rank(match[1]), _rank(match[2]))],
    ),
    _kind("no plan phases", rf"no plan phases were found for rank {_R} after phase ", _left("no_phase")),
    _kind("being removed", rf"{_SELF}this rank is being removed in this phase", _left("removed")),
    _kind("-> done", rf"{_SELF}done(?=\s|$|global_rank=|\[|Process )", _left("done")),
    _kind("Killing rank", rf"\[rank {_R}\] Killing rank during dispatch/combine", _left("killed")),
    _kind(
        "rank failures",
        rf"{_SELF}detected (?:unexpected )?rank failures: \{{{_RANKS}\}}",
        lambda match: [PeersFailed(_rank(match[1]), _ranks(match[3]))],
    ),
    _kind(
        "AssertionError",
        rf"AssertionError: rank {_R}, local_rank={_R} phase {_R}: unexpected failures \{{{_RANKS}\}}",
        lambda match: [PeersFailed(_rank(match[1]), _ranks(match[4]), unplanned=True)],
    ),
)
