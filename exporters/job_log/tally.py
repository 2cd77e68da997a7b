"""What the log of one job adds up to: events by rank and category, and the first that can be the cause. Pure.

Times are seconds since the epoch: when a line was read, or its file was written to last where it was older.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log.catalogue import deduced
from exporters.job_log.collectives import Collectives, WorkPosition
from exporters.job_log.jobs import LoggedJob
from exporters.job_log.matcher import LogEvent
from exporters.job_log.progress import Training, TrainingProgress

ROOT, CASCADE = "root", "cascade"
MISMATCH = "collective_mismatch"
POSITIONS = frozenset({"watchdog_position", "flight_recorder_dump"})
"""What says how far a rank was. Who hangs elsewhere has no timeout of its own, but dumps at the others' signal."""
CASCADE_SECONDS = 60.0
"""So long a cascade waits for a root, which a slower log may bring, before it is named in its place."""
RECOVERED_SECONDS = 60.0
"""A job that goes on so long after an event was not ended by it."""
STARTED_SECONDS = 5.0
"""An event so long before the job's ranks started is of an earlier run; their start is known to a second or so."""
MAX_EVENTS = 1024
"""Pairs of a rank and a category of one job; the events of more are counted under no rank."""
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")

Kind = tuple[str, str, str]
"""Rank, category, role."""
Admit = Callable[[str], bool]
"""Whether there is room for one more series of a job."""


class FirstEvent(msgspec.Struct, frozen=True):
    """The first event of a role; ``rank`` UNKNOWN_RANK or ``host`` empty where the line does not tell."""

    category: str
    rank: str
    host: str
    seconds: SavedSeconds
    weak: bool = False


class SavedLog(msgspec.Struct):
    """What the checkpoint holds of a job."""

    events: dict[Kind, SavedCount] = {}
    root: FirstEvent | None = None
    cascade: FirstEvent | None = None
    progress: TrainingProgress = msgspec.field(default_factory=TrainingProgress)


class ShownLog(msgspec.Struct, frozen=True):
    """What is rendered of a job."""

    job_id: str
    events: dict[Kind, int]
    root: FirstEvent | None
    cascade: FirstEvent | None
    positions: tuple[WorkPosition, ...]
    progress: TrainingProgress


class JobTally:
    """One job's log. ``hostnames``: this node's and its containers', which all stand for ``hostname``."""

    def __init__(self, job_id: str, hostname: str, admit: Admit, saved: SavedLog | None = None) -> None:
        self.saved = saved or SavedLog()
        self._job_id = job_id
        self._hostname = hostname
        self._admit = admit
        self._training = Training(self.saved.progress)
        self._collectives = Collectives()

    def take(self, event: LogEvent, job: LoggedJob, rank: str, hostnames: frozenset[str], seconds: float) -> str:
        """Take in an event of a file that ``rank`` alone writes, or UNKNOWN_RANK; returns the rank that it is of."""
        if not event.rule.role:
            if self._training.take(event, seconds):
                self._go_on(seconds)
            return UNKNOWN_RANK
        speaker = self._rank(event, job, rank, hostnames)
        blamed = job.valid_rank(event.number("rank"))
        named = speaker if blamed == UNKNOWN_RANK else blamed
        host = self._host(event, rank, hostnames)
        self._count(named, event.rule.category, event.rule.role)
        self._note_first(event.rule.role, FirstEvent(event.rule.category, named, host, seconds, event.rule.weak))
        self._deduce(event, speaker, seconds)
        return named

    def begin(self, started_seconds: float) -> None:
        """Forget what is of an earlier run than that of the ranks which started at this time."""
        times = [one.seconds for one in (self.saved.root, self.saved.cascade) if one is not None]
        if times and max(times) < started_seconds - STARTED_SECONDS:
            self._forget_causes()

    def collective_entries(self) -> int:
        """How much is kept of what watchdogs said."""
        return self._collectives.entries()

    def forget_collectives(self) -> None:
        """Forget what watchdogs said: other jobs need the room."""
        self._collectives = Collectives()

    def shown(self, now: float) -> ShownLog:
        """What there is to show at this time."""
        saved = self.saved
        cascade = saved.cascade
        if saved.root is not None or (cascade is not None and now - cascade.seconds < CASCADE_SECONDS):
            cascade = None
        progress = msgspec.structs.replace(saved.progress)
        positions = self._collectives.positions()
        return ShownLog(self._job_id, dict(saved.events), saved.root, cascade, positions, progress)

    def _deduce(self, event: LogEvent, speaker: str, seconds: float) -> None:
        """What several lines say together; a rank that cannot be told is of no use here."""
        if speaker == UNKNOWN_RANK:
            return
        if event.rule.category in POSITIONS:
            self._collectives.note_position(event, speaker)
        elif event.rule.category == "collective_timeout":
            for rank in self._collectives.note_call(event, speaker)[:1]:
                if not any(category == MISMATCH for _, category, _ in self.saved.events):
                    self._count(rank, MISMATCH, deduced()[MISMATCH])
                self._note_first(ROOT, FirstEvent(MISMATCH, rank, "", seconds))

    def _count(self, rank: str, category: str, role: str) -> None:
        kind = (rank, category, role)
        events = self.saved.events
        if kind not in events and rank != UNKNOWN_RANK and (len(events) >= MAX_EVENTS or not self._admit(self._job_id)):
            kind = (UNKNOWN_RANK, category, role)
        events[kind] = saved_sum(events.get(kind, 0))

    def _note_first(self, role: str, first: FirstEvent) -> None:
        """The first one counts; but one that can follow from another gives way to one that cannot."""
        known = self.saved.root
        if role == ROOT and (known is None or (known.weak and not first.weak)):
            self.saved.root = first
        elif role == CASCADE and self.saved.cascade is None:
            self.saved.cascade = first

    def _go_on(self, seconds: float) -> None:
        """The training has made a step."""
        times = [one.seconds for one in (self.saved.root, self.saved.cascade) if one is not None]
        if times and seconds - max(times) > RECOVERED_SECONDS:
            self._forget_causes()

    def _forget_causes(self) -> None:
        self.saved.root = self.saved.cascade = None
        self.forget_collectives()

    def _rank(self, event: LogEvent, job: LoggedJob, rank: str, hostnames: frozenset[str]) -> str:
        """The global rank of who wrote a line, UNKNOWN_RANK where nothing tells it."""
        speaker = event.speaker
        found = job.valid_rank(speaker.rank)
        if found == UNKNOWN_RANK and job.tasks_are_ranks:
            found = job.valid_rank(speaker.task)
        here = not speaker.host or speaker.host in hostnames
        if found == UNKNOWN_RANK and speaker.pid is not None and here:
            found = job.pids.get(speaker.pid, UNKNOWN_RANK)
        return rank if found == UNKNOWN_RANK else found

    def _host(self, event: LogEvent, rank: str, hostnames: frozenset[str]) -> str:
        """The host that a line blames or comes from; empty where it names none, or what is none."""
        named = event.text("node") or event.speaker.host
        if named in hostnames or (not named and rank != UNKNOWN_RANK):
            return self._hostname
        return named if _HOST.fullmatch(named) else ""
