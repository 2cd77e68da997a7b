"""Parses the ranks' output of one NIXL-EP run, and keeps the state of each rank. Pure.

A job writes the text, so each part is bounded. Many processes write one file at the same time: a line can hold several
records, and a record can begin anywhere in the line. Lines have no timestamps, so the caller passes the time of each
read. A measurement belongs to the newest phase of its rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedSeconds
from exporters.nixl_ep.plan import RANK_LIMIT, Plan

MAX_LINE_CHARACTERS = 65_536  # The parser ignores the rest of a longer line
MAX_RECORDS = 256  # Limit of records per line
MAX_PHASE = 1 << 20
MAX_NUMBER = 1e12
_GB = 1e9

_N = r"(?:[+-]?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:[eE][+-]?[0-9]{1,3})?|[+-]?inf|nan)"
_R = r"([0-9]{1,7})(?![0-9])"
_SELF = rf"global_rank={_R}, local_rank={_R} -> "
MAX_RANKS = 4096  # Limit of ranks per run; further ranks are ignored
MAX_LAUNCHES = 64  # Limit of launches per node; the oldest is evicted first
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


def _bounded(text: str, limit: int) -> int:
    if int(text) > limit:
        raise ValueError("a number is out of bounds")
    return int(text)


def _rank(text: str) -> int:
    return _bounded(text, RANK_LIMIT - 1)


class StageTimes(msgspec.Struct, frozen=True):
    """The last measurement of one stage of a rank."""

    bytes_per_second: SavedSeconds | None = None


class RankRun(msgspec.Struct):
    """One rank. ``phase``: the phase that began last, at ``began_seconds`` (epoch). ``ended``: the phase that ended
    last.

    ``phase_seconds``: duration of the phase that ended last. ``left``: the logged reason for leaving, empty before
    that. ``said_seconds``: time (epoch) of its last line about a phase or about leaving.
    """

    phase: _Number | None = None
    ended: _Number | None = None
    began_seconds: SavedSeconds = 0.0
    said_seconds: SavedSeconds = 0.0
    phase_seconds: SavedSeconds | None = None
    left: Annotated[str, msgspec.Meta(max_length=16)] = ""
    stages: dict[Annotated[str, msgspec.Meta(max_length=16)], StageTimes] = {}


class Launch(msgspec.Struct):
    """Processes started together on a node. ``ranks``: rank by process number; ``seconds``: time of the read."""

    seconds: SavedSeconds
    ranks: dict[_Number, _Number] = {}


class NodeRun(msgspec.Struct):
    """The state from one log of a node."""

    ranks: dict[_Number, RankRun] = {}
    launches: list[Launch] = []

    def take(self, line: str, seconds: float) -> None:
        """Add the first MAX_RECORDS records of a line that was read at this time (seconds since the epoch), in order.

        A record with a number out of bounds is ignored.
        """
        text = line[:MAX_LINE_CHARACTERS]
        kinds = [(pattern, take) for word, pattern, take in _KINDS if word in text]
        records = [(match.start(), take, match) for pattern, take in kinds for match in pattern.finditer(text)]
        for _, take, match in sorted(records, key=lambda record: record[0])[:MAX_RECORDS]:
            with suppress(ValueError):
                take(self, match, seconds)

    def entries(self) -> int:
        """Return the number of kept entries of ranks and launches."""
        return len(self.ranks) + sum(len(launch.ranks) for launch in self.launches)

    def phase(self) -> int | None:
        """Return the newest phase that a rank of this log began; None before the first phase."""
        return max((rank.phase for rank in self.ranks.values() if rank.phase is not None), default=None)

    def _rank(self, number: int) -> RankRun:
        """Return the state of a rank; ValueError if the limit of ranks is reached."""
        if number not in self.ranks and len(self.ranks) >= MAX_RANKS:
            raise ValueError("there are too many ranks")
        return self.ranks.setdefault(number, RankRun())

    def take_identity(self, match: re.Match[str], seconds: float) -> None:
        """Add a rank's process number. A known process number begins a new launch; a known rank gets a new state."""
        process, number = _rank(match[1]), _rank(match[2])
        if not self.launches or process in self.launches[-1].ranks:
            self.launches = [*self.launches, Launch(seconds)][-MAX_LAUNCHES:]
        if len(self.launches[-1].ranks) < MAX_RANKS:
            self.launches[-1].ranks[process] = number
        self._rank(number)
        self.ranks[number] = RankRun()

    def take_phase(self, match: re.Match[str], seconds: float) -> None:
        """Note the beginning or the end of a rank's phase."""
        number, phase = _rank(match[1]), _bounded(match[4], MAX_PHASE)
        rank = self._rank(number)
        rank.said_seconds = seconds
        if match[3] == "start":
            rank.phase, rank.began_seconds, rank.left = phase, seconds, ""
            return
        rank.ended = phase
        if rank.phase == phase and seconds > rank.began_seconds:  # skip if one read returned both lines
            rank.phase_seconds = seconds - rank.began_seconds

    def take_bandwidths(self, match: re.Match[str], _seconds: float) -> None:
        """Store the bandwidth that a rank measured: of both stages together, or of each stage."""
        measured = {stage: float(text) for stage, text in match.groupdict().items()}
        if all(0 <= number <= MAX_NUMBER for number in measured.values()):  # False for NaN
            stages = {stage: StageTimes(number * _GB) for stage, number in measured.items()}
            self._rank(_rank(match[1])).stages.update(stages)

    def take_leave(self, match: re.Match[str], seconds: float, why: str) -> None:
        """Note that a rank leaves. ``why``: removed, killed (by the plan), done, or no_phase (no further work)."""
        rank = self._rank(_rank(match[1]))
        rank.said_seconds, rank.left = seconds, why


_Take = Callable[[NodeRun, re.Match[str], float], None]


def _leaving(why: str) -> _Take:
    return lambda run, match, seconds: run.take_leave(match, seconds, why)


_KINDS: tuple[tuple[str, re.Pattern[str], _Take], ...] = tuple(
    (word, re.compile(pattern, re.ASCII), take)
    for word, pattern, take in (
        (" phase ", rf"{_SELF}(start|end) phase {_R}", NodeRun.take_phase),
        (
            "bandwidth: ",
            rf"\[rank {_R}\] Dispatch \+ combine bandwidth: (?P<combined>{_N}) GB/s",
            NodeRun.take_bandwidths,
        ),
        (
            "bandwidth: ",
            rf"\[rank {_R}\] Dispatch bandwidth: (?P<dispatch>{_N}) GB/s(?:, avg_t=[^ ]{{1,32}} us)? "
            rf"\| Combine bandwidth: (?P<combine>{_N}) GB/s",
            NodeRun.take_bandwidths,
        ),
        ("Process ", rf"Process {_R} -> global_rank={_R}, local_rank={_R}", NodeRun.take_identity),
        ("no plan phases", rf"no plan phases were found for rank {_R} after phase ", _leaving("no_phase")),
        ("being removed", rf"{_SELF}this rank is being removed in this phase", _leaving("removed")),
        ("-> done", rf"{_SELF}done(?=\s|$|global_rank=|\[|Process )", _leaving("done")),
        ("Killing rank", rf"\[rank {_R}\] Killing rank during dispatch/combine", _leaving("killed")),
    )
)


def is_leaving(number: int, rank: RankRun, plan: Plan | None) -> bool:
    """Return whether a rank's end is planned: the rank logged it, or the plan ends the rank in or after this phase."""
    if rank.left:
        return True
    if plan is None or rank.phase is None:
        return False
    has_ended = rank.ended == rank.phase
    return plan.is_killed(number, rank.phase) or (has_ended and plan.is_removed_after(number, rank.phase))
