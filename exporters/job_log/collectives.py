"""Joins the lines of PyTorch's NCCL watchdogs in a job's log: progress per process group, mismatched collectives. Pure.

A rank blocks the others if it never enqueued the operation that they wait for. `rankwatch explain` compares the ranks
of all nodes. If ranks call different operations with the same number in one group, the program has an error that no
single line shows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

from exporters.job_log.matcher import LogEvent

MAX_GROUPS = 8  # Limit of process groups with positions per job; the first groups stay
MAX_RANKS = 4096  # Limit of ranks per group
MAX_SEQUENCES = 64
SHOWN_LEAST = 4
"""Number of shown ranks per group with the lowest positions. The rank with the highest position is shown, too."""
_ALL_ALIKE = frozenset(
    ["ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"]
)
"""Operations in which every rank must pass the same number of elements."""
_NOT_COLLECTIVE = frozenset(["SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"])

Call = tuple[str, int, int]  # An operation: its type, input elements and output elements (-1: unknown)


class WorkPosition(NamedTuple):
    """Numbers of the last operations that a rank enqueued and completed in a process group."""

    group: str
    rank: str
    enqueued: int
    completed: int


class Collectives:
    """Watchdog lines of one job since its start or its last progress."""

    def __init__(self) -> None:
        self._positions: dict[str, dict[str, tuple[int, int]]] = {}
        self._calls: dict[tuple[str, int], dict[str, Call]] = {}
        self._without_group: dict[str, tuple[int, Call]] = {}  # By rank, the last time-out that names no process group

    def entries(self) -> int:
        """Return the number of kept positions and operations of ranks."""
        tables = (self._positions, self._calls)
        return len(self._without_group) + sum(len(ranks) for table in tables for ranks in table.values())

    def note_position(self, event: LogEvent, rank: str) -> tuple[str, ...]:
        """Store the position that a rank's watchdog logged, or that the rank logged at a request for a dump.

        The line names the process group of the rank's last time-out: return as ``note_call`` does.
        """
        enqueued, completed = event.number("enq"), event.number("done")
        if enqueued is None or completed is None:
            return ()
        group = group_of(event)
        if group in self._positions or len(self._positions) < MAX_GROUPS:
            ranks = self._positions.setdefault(group, {})
            if rank in ranks or len(ranks) < MAX_RANKS:
                ranks[rank] = (enqueued, completed)
        known = self._without_group.get(rank)
        if known is None or known[0] != event.number("work"):
            return ()
        del self._without_group[rank]
        return self._compare(group, known[0], rank, known[1])

    def note_call(self, event: LogEvent, rank: str) -> tuple[str, ...]:
        """Store the operation that a rank waited in. Return the ranks whose call differs from the majority's, or ().

        Before a time-out, PyTorch 2.5 and newer write only ``[Rank N]``: a number in an unknown process group. The
        rank's next line names the group.
        """
        sequence, kind = event.number("seq"), event.text("op").upper()
        if sequence is None or kind in _NOT_COLLECTIVE:
            return ()
        sizes = (_size(event, "nin"), _size(event, "nout")) if kind in _ALL_ALIKE else (-1, -1)
        call = (kind, *sizes)
        if group := group_of(event):
            return self._compare(group, sequence, rank, call)
        if rank in self._without_group or len(self._without_group) < MAX_RANKS:
            self._without_group[rank] = (sequence, call)
        return ()

    def _compare(self, group: str, sequence: int, rank: str, call: Call) -> tuple[str, ...]:
        calls = self._calls.setdefault((group, sequence), {})
        if len(self._calls) > MAX_SEQUENCES:
            del self._calls[next(iter(self._calls))]
        if len(calls) < MAX_RANKS:
            calls[rank] = call
        return _minority(calls)

    def positions(self) -> tuple[WorkPosition, ...]:
        """Return per group the SHOWN_LEAST ranks with the lowest positions, and the rank with the highest."""
        positions = []
        for group, ranks in self._positions.items():
            ordered = sorted((position, rank) for rank, position in ranks.items())
            shown = ordered[:SHOWN_LEAST] + ordered[SHOWN_LEAST:][-1:]
            positions += [WorkPosition(group, rank, *position) for position, rank in shown]
        return tuple(positions)


def group_of(event: LogEvent) -> str:
    """Return the process group as a label: its number (equal on all ranks), or 8 hex digits of its name's hash."""
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
    """Return the ranks whose call differs from the most common call; of equally common calls, from the first."""
    counts = Counter(calls.values())
    if len(counts) < 2:
        return ()
    usual = counts.most_common(1)[0][0]
    return tuple(rank for rank, call in calls.items() if call != usual)
