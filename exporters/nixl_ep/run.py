"""The state of the ranks of one NIXL-EP run, from their output in order. Pure.

Lines have no timestamps, so the caller passes the time of each read. A measurement belongs to the newest phase of its
rank.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.nixl_ep.plan import Plan
from exporters.nixl_ep.records import Bandwidth, Identity, Left, PeersFailed, PhaseEdge, Record

MAX_RANKS = 4096
"""Limit of ranks per run; further ranks are ignored."""
MAX_LAUNCHES = 64
"""Limit of launches per node; the oldest is evicted first."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


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
