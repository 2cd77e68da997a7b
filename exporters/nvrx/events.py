"""Event counts of one job's launchers and monitors, GPU scores, and the time of its last recovery. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from agent.sdk.files import SavedTexts
from exporters.nvrx.lines import (
    HeartbeatTimeout,
    Interruptions,
    LauncherEvent,
    NvrxLine,
    Score,
    ScoreHeading,
    read_line,
    read_notice,
)

MAX_BY_RANK = 1024
"""Limit of (rank, kind) pairs per job, for time-outs and for interruptions separately."""
MAX_RECOVERY_SECONDS = 86_400.0
SCORED_AT_A_TIME = 6
"""A report lists the three best and the three worst ranks."""

_Text = Annotated[str, msgspec.Meta(max_length=512)]
_ByRank = dict[tuple[_Text, _Text], SavedCount]


class Recovery(msgspec.Struct):
    """The last restart of a job, in seconds since the epoch. ``started``: when the last workers were started.

    ``progressed``: when a rank completed its first known operation after that.
    """

    cycle: int
    failed: SavedSeconds
    started: SavedSeconds | None = None
    progressed: SavedSeconds | None = None


class JobEvents(msgspec.Struct):
    """Counts of one job since the exporter first read its lines. ``recovery``: None if there was no failure."""

    events: dict[_Text, SavedCount] = {}
    notices: dict[_Text, SavedCount] = {}
    timeouts: _ByRank = {}
    interruptions: _ByRank = {}
    scores: dict[tuple[_Text, _Text], SavedSeconds] = {}
    recovery: Recovery | None = None
    heading: _Text = ""
    scored: int = 0

    def take(self, text: str) -> None:
        """Count one line. Lines must come in the order of their file."""
        line = read_line(text)
        if line is not None:
            self._take(line)
        if notice := read_notice(text):
            self.notices[notice] = saved_sum(self.notices.get(notice, 0))

    def progress(self, at: float) -> None:
        """Record that a rank completed an operation at this time (seconds since the epoch)."""
        last = self.recovery
        if last is None or last.started is None or last.progressed is not None:
            return
        if last.started < at <= last.failed + MAX_RECOVERY_SECONDS:
            last.progressed = at

    def recovery_seconds(self) -> dict[str, float]:
        """Return the seconds from the last failure until workers started, and until a rank made progress."""
        last = self.recovery
        if last is None:
            return {}
        ends = {"workers_started": last.started, "progress": last.progressed}
        return {until: end - last.failed for until, end in ends.items() if end is not None and end >= last.failed}

    def _take(self, line: NvrxLine) -> None:
        if isinstance(line, LauncherEvent):
            self.events[line.event] = saved_sum(self.events.get(line.event, 0))
            self._recover(line)
        elif isinstance(line, HeartbeatTimeout):
            _count(self.timeouts, line)
        elif isinstance(line, Interruptions):
            for key in line.by_rank:
                _count(self.interruptions, key)
        elif isinstance(line, ScoreHeading):
            self.heading, self.scored = line.kind, 0
            self.scores = {key: score for key, score in self.scores.items() if key[1] != line.kind}
        else:
            self._score(line)

    def _recover(self, line: LauncherEvent) -> None:
        last = self.recovery
        if line.event == "failure_detected":
            if last is None or line.cycle > last.cycle:
                self.recovery = Recovery(line.cycle, line.at)
            elif line.cycle == last.cycle:
                last.failed = min(last.failed, line.at)
        elif line.event == "worker_start_completed" and last is not None and line.cycle == last.cycle:
            last.started = max(last.started or line.at, line.at)

    def _score(self, line: Score) -> None:
        if not self.heading:
            return
        self.scores[str(line.rank), self.heading] = line.score
        self.scored += 1
        if self.scored >= SCORED_AT_A_TIME:
            self.heading = ""


def _count(counts: _ByRank, key: tuple[str, str]) -> None:
    if key in counts or len(counts) < MAX_BY_RANK:
        counts[key] = saved_sum(counts.get(key, 0))


class SavedLines(SavedTexts):
    """The checkpoint: counts from all lines read before, by job."""

    jobs: dict[Annotated[str, msgspec.Meta(max_length=256)], JobEvents] = msgspec.field(default_factory=dict)
