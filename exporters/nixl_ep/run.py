"""Parses the ranks' output of one NIXL-EP run, and keeps their state. Pure.

A job writes the text, so each part is bounded. Many processes write one file at the same time: a line may hold several
records, and a record may begin anywhere in the line. Lines have no timestamps, so the caller passes the time of each
read. A measurement belongs to the newest phase of its rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.nixl_ep.plan import Plan

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
MAX_RANKS = 4096
"""Limit of ranks per run; further ranks are ignored."""
MAX_LAUNCHES = 64
"""Limit of launches per node; the oldest is evicted first."""
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


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


class StageTimes(msgspec.Struct, frozen=True):
    """The last measurement of one stage of a rank."""

    bytes_per_second: SavedSeconds | None = None


class RankRun(msgspec.Struct):
    """One rank. ``phase``: the phase begun last, at ``began_seconds`` (epoch); ``ended``: the phase ended last.

    ``phase_seconds``: duration of the phase ended last. ``left``: the logged reason for leaving, empty before that.
    ``said_seconds``: time (epoch) of its last line about a phase or about leaving.
    """

    phase: _Number | None = None
    ended: _Number | None = None
    began_seconds: SavedSeconds = 0.0
    said_seconds: SavedSeconds = 0.0
    phase_seconds: SavedSeconds | None = None
    left: Annotated[str, msgspec.Meta(max_length=16)] = ""
    stages: dict[Annotated[str, msgspec.Meta(max_length=16)], StageTimes] = {}


class Launch(msgspec.Struct):
    """Processes started together on a node. ``ranks``: rank by process number; ``seconds``: when it was read."""

    seconds: SavedSeconds
    ranks: dict[_Number, _Number] = {}


class NodeRun(msgspec.Struct):
    """One log of a node. ``failures``: number of reports by (failed rank, planned: yes, no or unknown)."""

    ranks: dict[_Number, RankRun] = {}
    launches: list[Launch] = []
    failures: dict[tuple[_Number, Annotated[str, msgspec.Meta(max_length=8)]], SavedCount] = {}

    def take(self, record: Record, seconds: float, plan: Plan | None) -> None:
        """Add a record that was read at this time (seconds since the epoch)."""
        if isinstance(record, Identity):
            self._identify(record, seconds)
        elif isinstance(record, PeersFailed):
            self._miss(record, plan)
        elif record.rank in self.ranks or len(self.ranks) < MAX_RANKS:
            _update(self.ranks.setdefault(record.rank, RankRun()), record, seconds)

    def entries(self) -> int:
        """Return the number of kept entries of ranks, launches and failures."""
        launched = sum(len(launch.ranks) for launch in self.launches)
        return len(self.ranks) + len(self.failures) + launched

    def phase(self) -> int | None:
        """Return the newest phase that a rank of this log began; None without one."""
        return max((rank.phase for rank in self.ranks.values() if rank.phase is not None), default=None)

    def _identify(self, record: Identity, seconds: float) -> None:
        """A repeated process number starts another launch. A repeated rank is a new process, so its state restarts."""
        if not self.launches or record.process in self.launches[-1].ranks:
            self.launches = [*self.launches, Launch(seconds)][-MAX_LAUNCHES:]
        if len(self.launches[-1].ranks) < MAX_RANKS:
            self.launches[-1].ranks[record.process] = record.rank
        if record.rank in self.ranks or len(self.ranks) < MAX_RANKS:
            self.ranks[record.rank] = RankRun()

    def _miss(self, record: PeersFailed, plan: Plan | None) -> None:
        reporter = self.ranks.get(record.rank)
        phase = None if reporter is None else reporter.phase
        for rank in record.ranks:
            planned = "unknown"
            if record.unplanned:
                planned = "no"
            elif plan is not None and phase is not None:
                planned = "yes" if plan.is_planned_failure(rank, phase) else "no"
            key = (rank, planned)
            if key in self.failures or len(self.failures) < MAX_RANKS:
                self.failures[key] = saved_sum(self.failures.get(key, 0))


def is_leaving(number: int, rank: RankRun, plan: Plan | None) -> bool:
    """Return whether a rank's end is planned: it logged so, the plan kills it now, or it ended its last phase."""
    if rank.left:
        return True
    if plan is None or rank.phase is None:
        return False
    has_ended = rank.ended == rank.phase
    return plan.is_killed(number, rank.phase) or (has_ended and plan.is_removed_after(number, rank.phase))


def _update(rank: RankRun, record: PhaseEdge | Left | Bandwidth, seconds: float) -> None:
    if isinstance(record, Bandwidth):
        rank.stages[record.stage] = StageTimes(record.bytes_per_second)
        return
    rank.said_seconds = seconds
    if isinstance(record, PhaseEdge):
        _enter(rank, record, seconds)
    else:
        rank.left = record.why


def _enter(rank: RankRun, record: PhaseEdge, seconds: float) -> None:
    if record.edge == "start":
        rank.phase, rank.began_seconds, rank.left = record.phase, seconds, ""
        return
    rank.ended = record.phase
    if rank.phase == record.phase and seconds > rank.began_seconds:  # skip if one read returned both lines
        rank.phase_seconds = seconds - rank.began_seconds
