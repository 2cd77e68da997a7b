"""What the ranks of a NIXL-EP run print. Pure; the text is the job's, so bounded.

Many processes write one file at once: a line may hold several records, and a record may begin anywhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

MAX_LINE_CHARACTERS = 65_536
"""What lies beyond is not looked at."""
MAX_RECORDS = 256
"""Of one line."""
MAX_SET = 4096
"""Ranks that one record names."""
MAX_RANK = 1 << 20
MAX_PHASE = 1 << 20
MAX_NUMBER = 1e12
_GB = 1e9

_N = r"([+-]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:[eE][+-]?[0-9]{1,3})?|[+-]?inf|nan)"
_R = r"([0-9]{1,7})(?![0-9])"
_RANKS = r"([0-9, ]{0,32768})"
_SELF = rf"global_rank={_R}, local_rank={_R} -> "

Edge = Literal["start", "end"]
Stage = Literal["combined", "dispatch", "combine"]


class Identity(msgspec.Struct, frozen=True):
    """The process that was started as number ``process`` of its launch has this rank."""

    process: int
    rank: int
    local_rank: int


class PhaseEdge(msgspec.Struct, frozen=True):
    """A rank began a phase, or ended it."""

    rank: int
    edge: Edge
    phase: int


class Left(msgspec.Struct, frozen=True):
    """A rank says that it leaves: as it is removed, killed by the plan, done, or has nothing to do (``no_phase``)."""

    rank: int
    why: Literal["removed", "killed", "done", "no_phase"]


class PeersFailed(msgspec.Struct, frozen=True):
    """A rank misses others. ``unplanned``: by its own check of the plan."""

    rank: int
    ranks: tuple[int, ...]
    unplanned: bool = False


class Bandwidth(msgspec.Struct, frozen=True):
    """A rank's measurement of one stage."""

    rank: int
    stage: Stage
    bytes_per_second: float


Record = Identity | PhaseEdge | Left | PeersFailed | Bandwidth
_Made = Callable[["re.Match[str]"], tuple[Record, ...]]


def read_records(line: str) -> list[Record]:
    """The records of a line in their order, MAX_RECORDS at most; those with a number out of bounds are left out."""
    text = line[:MAX_LINE_CHARACTERS]
    found = [(start, record) for start, made in _found(text) for record in made]
    return [record for _, record in sorted(found, key=lambda each: each[0])[:MAX_RECORDS]]


def _found(text: str) -> Iterator[tuple[int, tuple[Record, ...]]]:
    for word, pattern, make in _KINDS:
        if word not in text:
            continue
        for found in pattern.finditer(text):
            try:
                yield found.start(), make(found)
            except ValueError:
                continue


def _rank(text: str) -> int:
    if int(text) >= MAX_RANK:
        raise ValueError("a rank out of bounds")
    return int(text)


def _phase(text: str) -> int:
    if int(text) > MAX_PHASE:
        raise ValueError("a phase out of bounds")
    return int(text)


def _ranks(text: str) -> tuple[int, ...]:
    found = sorted({_rank(each) for each in text.replace(",", " ").split()})
    return tuple(found[:MAX_SET])


def _positive(text: str) -> float:
    number = float(text)
    if not 0 <= number <= MAX_NUMBER:  # also what is no number at all
        raise ValueError("a measurement out of bounds")
    return number


def _identity(found: re.Match[str]) -> tuple[Record, ...]:
    return (Identity(_rank(found[1]), _rank(found[2]), _rank(found[3])),)


def _edge(found: re.Match[str]) -> tuple[Record, ...]:
    return (PhaseEdge(_rank(found[1]), "start" if found[3] == "start" else "end", _phase(found[4])),)


def _failures(found: re.Match[str]) -> tuple[Record, ...]:
    return (PeersFailed(_rank(found[1]), _ranks(found[3])),)


def _validated(found: re.Match[str]) -> tuple[Record, ...]:
    return (PeersFailed(_rank(found[1]), _ranks(found[4]), unplanned=True),)


def _combined(found: re.Match[str]) -> tuple[Record, ...]:
    return (Bandwidth(_rank(found[1]), "combined", _positive(found[2]) * _GB),)


def _stages(found: re.Match[str]) -> tuple[Record, ...]:
    rank = _rank(found[1])
    return (
        Bandwidth(rank, "dispatch", _positive(found[2]) * _GB),
        Bandwidth(rank, "combine", _positive(found[3]) * _GB),
    )


def _left(why: Literal["removed", "killed", "done", "no_phase"]) -> _Made:
    return lambda found: (Left(_rank(found[1]), why),)


def _kind(word: str, pattern: str, make: _Made) -> tuple[str, re.Pattern[str], _Made]:
    return word, re.compile(pattern, re.ASCII), make


_KINDS = (
    _kind(" phase ", rf"{_SELF}(start|end) phase {_R}", _edge),
    _kind(
        "bandwidth: ",
        rf"\[rank {_R}\] Dispatch \+ combine bandwidth: {_N} GB/s",
        _combined,
    ),
    _kind(
        "bandwidth: ",
        rf"\[rank {_R}\] Dispatch bandwidth: {_N} GB/s(?:, avg_t=[^ ]{{1,32}} us)? \| Combine bandwidth: {_N} GB/s",
        _stages,
    ),
    _kind("Process ", rf"Process {_R} -> global_rank={_R}, local_rank={_R}", _identity),
    _kind("no plan phases", rf"no plan phases were found for rank {_R} after phase ", _left("no_phase")),
    _kind("being removed", rf"{_SELF}this rank is being removed in this phase", _left("removed")),
    _kind("-> done", rf"{_SELF}done(?=\s|$|global_rank=|\[|Process )", _left("done")),
    _kind("Killing rank", rf"\[rank {_R}\] Killing rank during dispatch/combine", _left("killed")),
    _kind("rank failures", rf"{_SELF}detected (?:unexpected )?rank failures: \{{{_RANKS}\}}", _failures),
    _kind(
        "AssertionError",
        rf"AssertionError: rank {_R}, local_rank={_R} phase {_R}: unexpected failures \{{{_RANKS}\}}",
        _validated,
    ),
)
