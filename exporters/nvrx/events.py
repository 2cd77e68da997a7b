"""What the lines of one job's launchers and monitors add up to: counts, phases, and how long a recovery took. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from exporters.nvrx.lines import (
    HeartbeatTimeout,
    Interruptions,
    LauncherEvent,
    NvrxLine,
    Score,
    ScoreHeading,
    Stragglers,
)

MAX_RANKS = 1024
"""With timeouts, warnings or scores, of one job; those beyond are left out."""
MAX_LAUNCHERS = 2048
"""Whose last event is remembered, for the phases."""
MAX_PHASE_SECONDS = 86_400.0
MAX_RECOVERY_SECONDS = 86_400.0
SCORED_AT_A_TIME = 6
"""A report has the three best and the three worst."""
NOT_KNOWN = "unknown"
"""The rank of a monitor whose rank never told its own."""

_PHASES = {
    ("failure_detected", "worker_terminated"): "stop",
    ("worker_terminated", "rendezvous_started"): "open",
    ("rendezvous_started", "health_check_completed"): "health_check",
    ("rendezvous_started", "rendezvous_completed"): "rendezvous",
    ("health_check_completed", "rendezvous_completed"): "rendezvous",
    ("worker_start_started", "worker_start_completed"): "start",
}
PHASES = tuple(dict.fromkeys(_PHASES.values()))

_Text = Annotated[str, msgspec.Meta(max_length=512)]
_ByRank = dict[tuple[_Text, _Text], SavedCount]


class Recovery(msgspec.Struct):
    """The last restart of a job. Times since the epoch; ``started``: when the last workers were up, None before that.

    ``progressed``: the first operation that a rank completed after that, as far as it is known.
    """

    cycle: int
    failed: SavedSeconds
    started: SavedSeconds | None = None
    progressed: SavedSeconds | None = None


class JobEvents(msgspec.Struct):
    """Counts of one job since its lines were first read. ``recovery`` None: nothing failed."""

    events: dict[_Text, SavedCount] = {}
    notices: dict[_Text, SavedCount] = {}
    timeouts: _ByRank = {}
    stragglers: _ByRank = {}
    interruptions: _ByRank = {}
    scores: dict[tuple[_Text, _Text], SavedSeconds] = {}
    phase_seconds: dict[_Text, SavedSeconds] = {}
    recovery: Recovery | None = None
    last: dict[_Text, tuple[_Text, SavedSeconds]] = {}
    heading: _Text = ""
    scored: int = 0

    def note(self, notice: str) -> None:
        """Count one of the notices."""
        self.notices[notice] = saved_sum(self.notices.get(notice, 0))

    def take(self, line: NvrxLine) -> None:
        """Take in what a line tells; lines come in the order of their file."""
        if isinstance(line, LauncherEvent):
            self._take_event(line)
        elif isinstance(line, HeartbeatTimeout):
            _count(self.timeouts, NOT_KNOWN if line.rank is None else str(line.rank), line.kind)
        elif isinstance(line, Stragglers):
            for rank in line.ranks:
                _count(self.stragglers, str(rank), line.kind)
        elif isinstance(line, Interruptions):
            for rank, kind in line.found:
                _count(self.interruptions, str(rank), kind)
        elif isinstance(line, ScoreHeading):
            self.heading, self.scored = line.kind, 0
            self.scores = {key: score for key, score in self.scores.items() if key[1] != line.kind}
        else:
            self._take_score(line)

    def progress(self, at: float) -> None:
        """Note that a rank completed an operation at this time (epoch seconds)."""
        found = self.recovery
        if found is None or found.started is None or found.progressed is not None:
            return
        if found.started < at <= found.failed + MAX_RECOVERY_SECONDS:
            found.progressed = at

    def recovery_seconds(self) -> dict[str, float]:
        """How long the last recovery took until its workers were started, and until there was progress."""
        found = self.recovery
        if found is None:
            return {}
        ends = {"workers_started": found.started, "progress": found.progressed}
        return {until: end - found.failed for until, end in ends.items() if end is not None and end >= found.failed}

    def _take_event(self, line: LauncherEvent) -> None:
        self.events[line.event] = saved_sum(self.events.get(line.event, 0))
        self._take_phase(line)
        found = self.recovery
        if line.event == "failure_detected":
            if found is None or line.cycle > found.cycle:
                self.recovery = Recovery(line.cycle, line.at)
            elif line.cycle == found.cycle:
                found.failed = min(found.failed, line.at)
        elif line.event == "worker_start_completed" and found is not None and line.cycle == found.cycle:
            found.started = max(found.started or line.at, line.at)

    def _take_phase(self, line: LauncherEvent) -> None:
        launcher = f"{line.host}_{line.launcher_pid}"
        before = self.last.get(launcher)
        if before is None and len(self.last) >= MAX_LAUNCHERS:
            return
        self.last[launcher] = (line.event, line.at)
        phase = None if before is None else _PHASES.get((before[0], line.event))
        if before is not None and phase is not None and 0 <= line.at - before[1] <= MAX_PHASE_SECONDS:
            self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + line.at - before[1]

    def _take_score(self, line: Score) -> None:
        if not self.heading:
            return
        self.scores[str(line.rank), self.heading] = line.score
        self.scored += 1
        if self.scored >= SCORED_AT_A_TIME:
            self.heading = ""


def _count(counts: _ByRank, rank: str, kind: str) -> None:
    key = (rank, kind)
    if key in counts or len(counts) < MAX_RANKS:
        counts[key] = saved_sum(counts.get(key, 0))
