"""What the watchdogs of a job's ranks say together: how far each was in a group, and whether all called the same. Pure.

A rank that never enqueued what the others wait for keeps them waiting: rules take the least over all nodes.
Operations of one number in one group that differ are the program's error, and no line says so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

from exporters.job_log.matcher import LogEvent

MAX_GROUPS = 8
"""Process groups of a job of which positions are kept: the first that tell."""
MAX_RANKS = 4096
"""Of a group."""
MAX_SEQUENCES = 64
SHOWN_LEAST = 4
"""Ranks of a group whose positions are shown: those that are least far, and the one that is farthest."""
WORLD = "world"
_ALL_ALIKE = frozenset(
    ["ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"]
)
"""Operations in which every rank has the same number of elements."""
_NOT_COLLECTIVE = frozenset(["SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"])

Call = tuple[str, int, int]
"""An operation: its type, and its elements in and out (-1: not told)."""


class WorkPosition(NamedTuple):
    """How far one rank was in a group, by the group's numbers of its work."""

    group: str
    rank: str
    enqueued: int
    completed: int


class Collectives:
    """The watchdogs' words of one job, since it was begun or went on."""

    def __init__(self) -> None:
        self._positions: dict[str, dict[str, tuple[int, int]]] = {}
        self._calls: dict[tuple[str, int], dict[str, Call]] = {}

    def entries(self) -> int:
        """How much is kept: positions and operations of ranks."""
        return sum(len(ranks) for each in (self._positions, self._calls) for ranks in each.values())

    def note_position(self, event: LogEvent, rank: str) -> None:
        """Take in how far a rank was when its watchdog ended it."""
        enqueued, completed = event.number("enq"), event.number("done")
        if enqueued is None or completed is None:
            return
        group = group_of(event)
        if group not in self._positions and len(self._positions) >= MAX_GROUPS:
            return
        ranks = self._positions.setdefault(group, {})
        if rank in ranks or len(ranks) < MAX_RANKS:
            ranks[rank] = (enqueued, completed)

    def note_call(self, event: LogEvent, rank: str) -> tuple[str, ...]:
        """Take in what a rank waited in; the ranks whose call differs from that of most others, () where none does."""
        sequence, kind = event.number("seq"), event.text("op").upper()
        group = group_of(event) or (WORLD if event.text("pgrank") == rank else "")
        if sequence is None or not group or kind in _NOT_COLLECTIVE:
            return ()
        calls = self._calls.setdefault((group, sequence), {})
        if len(self._calls) > MAX_SEQUENCES:
            del self._calls[next(iter(self._calls))]
        if len(calls) < MAX_RANKS:
            sizes = (_size(event, "nin"), _size(event, "nout")) if kind in _ALL_ALIKE else (-1, -1)
            calls[rank] = (kind, *sizes)
        return _minority(calls)

    def positions(self) -> tuple[WorkPosition, ...]:
        """Of each group the ranks that had enqueued least, SHOWN_LEAST at most, and the one that had most."""
        found = []
        for group, ranks in self._positions.items():
            ordered = sorted((position, rank) for rank, position in ranks.items())
            shown = ordered[:SHOWN_LEAST] + ordered[SHOWN_LEAST:][-1:]
            found += [WorkPosition(group, rank, *position) for position, rank in shown]
        return tuple(found)


def group_of(event: LogEvent) -> str:
    """The process group as a label: the number that all its ranks have for it, or 8 digits of a hash of its name."""
    name = event.text("guid") or event.text("desc") or event.text("name") or event.text("pg")
    if name == "default_pg":
        return "0"
    if not name or (name.isdigit() and len(name) <= 9):
        return name
    return hashlib.blake2b(name.encode(), digest_size=4).hexdigest()


def _size(event: LogEvent, name: str) -> int:
    number = event.number(name)
    return -1 if number is None else number


def _minority(calls: dict[str, Call]) -> tuple[str, ...]:
    """The ranks whose call differs from that which most have; of two equal halves the one that came later."""
    counts = Counter(calls.values())
    if len(counts) < 2:
        return ()
    usual = counts.most_common(1)[0][0]
    return tuple(rank for rank, call in calls.items() if call != usual)
