"""Tallies the log of one job: events by rank and category, the first possible cause, training progress. Pure.

Times are seconds since the epoch: when a line was read, or when its file was last written if that is earlier.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log.catalogue import failures
from exporters.job_log.collectives import Collectives, WorkPosition
from exporters.job_log.error_files import Raised
from exporters.job_log.jobs import LoggedJob
from exporters.job_log.matcher import LogEvent

WINDOW_SECONDS = 60.0  # Averaging time of the iteration duration, if the log lines have no duration
MAX_MARKS = 16
MAX_ITERATION = 10**15
MAX_CHECKPOINT_SECONDS = 86_400.0
ROOT, CASCADE = "root", "cascade"
MISMATCH = "collective_mismatch"
POSITIONS = frozenset({"watchdog_position", "flight_recorder_dump"})
"""Categories of lines with a rank's position. A rank outside a collective logs its position only if another rank
requests a dump."""
CASCADE_SECONDS = 60.0
"""A cascade is shown only after this time without a root cause, because the root cause may be read later."""
RECOVERED_SECONDS = 60.0  # If a job makes progress this long after an event, the event did not end the job
LAST_TIMEOUT_SECONDS = 3600.0  # A mismatch this soon after a root cause that is not weak follows from it
EVALUATION_SECONDS = 3600.0  # For this long, a loop of another length in an unfinished training is an evaluation
RECENT_SECONDS = 300.0  # A root cause older than this explains no exit, and a later root cause replaces it
STARTED_SECONDS = 5.0
"""An event this long before the ranks' start belongs to an earlier run. The start is known to about 1 s."""
MAX_EVENTS = 1024  # Limit of (rank, category) pairs per job. Further events count under UNKNOWN_RANK.
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
Kind = tuple[str, str, str]  # Rank, category, role
Admit = Callable[[str], bool]  # Reserves one more series of a job; returns False at the limit


class TrainingProgress(msgspec.Struct):
    """Progress of one job. A value is None before the first line with it.

    ``of``: number of the final iteration. ``checkpoint_began``: start of the checkpoint save in progress.
    """

    iteration: SavedCount | None = None
    of: SavedCount = 0
    iteration_seconds: SavedSeconds | None = None
    checkpoint_began: SavedSeconds | None = None
    checkpoint_ended: SavedSeconds | None = None
    checkpoint_seconds: SavedSeconds | None = None


class Training:
    """Computes the progress of one job from its events."""

    def __init__(self, shown: TrainingProgress | None = None) -> None:
        self.shown = shown or TrainingProgress()
        self._marks: deque[tuple[float, int]] = deque(maxlen=MAX_MARKS)
        self._iterated_at = 0.0  # Time of the training's last iteration
        self._evaluation_of = 0  # Number of the final iteration of the last evaluation

    def take(self, event: LogEvent, seconds: float) -> bool:
        """Add an event at this time (epoch). Return True if its iteration is higher than the last iteration."""
        kind = event.rule.category
        if kind == "checkpoint_begin":
            self.shown.checkpoint_began = seconds
        elif kind == "checkpoint_end":
            self._end_checkpoint(event, seconds)
        elif (iteration := event.number("iteration")) is not None and 0 <= iteration <= MAX_ITERATION:
            return self._iterate(event, iteration, seconds)
        return False

    def begin(self, started_seconds: float) -> None:
        """Let the next loop be the training if the ranks started after the last iteration."""
        if started_seconds > self._iterated_at:
            self._iterated_at = 0.0

    def _iterate(self, event: LogEvent, iteration: int, seconds: float) -> bool:
        shown, of = self.shown, min(event.number("of") or 0, MAX_ITERATION)
        done = shown.iteration or 0
        is_within = done < shown.of and seconds - self._iterated_at <= EVALUATION_SECONDS
        if is_within and of != shown.of and (iteration < done or (of and of == self._evaluation_of)):
            self._evaluation_of = of
            return False
        self._iterated_at = seconds
        shown.of = of if of and done >= shown.of else max(of, shown.of)
        before, shown.iteration = shown.iteration, iteration
        if before is not None and iteration < before:
            self._marks.clear()
        if (milliseconds := event.decimal("ms")) is not None:
            shown.iteration_seconds = milliseconds / 1000
        else:
            self._measure(iteration, seconds)
        return before is not None and iteration > before

    def _measure(self, iteration: int, seconds: float) -> None:
        """Update the iteration duration from the times of lines, averaged over WINDOW_SECONDS."""
        marks = self._marks
        if not marks or seconds - marks[-1][0] >= WINDOW_SECONDS / MAX_MARKS:
            marks.append((seconds, iteration))
        while len(marks) > 2 and seconds - marks[1][0] >= WINDOW_SECONDS:
            marks.popleft()
        began, first = marks[0]
        if iteration > first and seconds > began:
            self.shown.iteration_seconds = (seconds - began) / (iteration - first)

    def _end_checkpoint(self, event: LogEvent, seconds: float) -> None:
        shown = self.shown
        if (duration := event.decimal("seconds")) is not None:
            shown.checkpoint_seconds = min(duration, MAX_CHECKPOINT_SECONDS)
        elif shown.checkpoint_began is not None:
            elapsed = seconds - shown.checkpoint_began
            # If one read has both lines, the duration is unknown.
            shown.checkpoint_seconds = elapsed if 0 < elapsed <= MAX_CHECKPOINT_SECONDS else None
        shown.checkpoint_ended, shown.checkpoint_began = seconds, None


class FirstEvent(msgspec.Struct, frozen=True):
    """The first event of a role. ``rank``: UNKNOWN_RANK if unknown; ``host``, ``exception``: empty if unknown."""

    category: str
    rank: str
    host: str
    seconds: SavedSeconds
    weak: bool = False
    exception: str = ""


class SavedLog(msgspec.Struct):
    """The saved tally of one job's log."""

    events: dict[Kind, SavedCount] = {}
    root: FirstEvent | None = None
    cascade: FirstEvent | None = None
    progress: TrainingProgress = msgspec.field(default_factory=TrainingProgress)


class ShownLog(msgspec.Struct, frozen=True):
    """The data of one job for rendering."""

    job_id: str
    events: dict[Kind, int]
    root: FirstEvent | None
    cascade: FirstEvent | None
    positions: tuple[WorkPosition, ...]
    progress: TrainingProgress


class JobTally:
    """One job's log. ``hostname``: this node's name. ``collectives``: the log's watchdog lines."""

    def __init__(self, job_id: str, hostname: str, admit: Admit, saved: SavedLog | None = None) -> None:
        self.saved = saved or SavedLog()
        self._job_id = job_id
        self._hostname = hostname
        self._admit = admit
        for rank, _, _ in self.saved.events:
            if rank != UNKNOWN_RANK:
                admit(job_id)  # saved series stay even above the limit, and new series have the rest
        self._training = Training(self.saved.progress)
        self.collectives = Collectives()

    def take(self, event: LogEvent, job: LoggedJob, rank: str, seconds: float) -> str:
        """Count an event and return its rank. ``rank``: the only rank that writes the log, or UNKNOWN_RANK."""
        if not event.rule.role:
            if self._training.take(event, seconds):
                self._forget_causes(seconds - RECOVERED_SECONDS)  # the training survived them
            return UNKNOWN_RANK
        speaker = self._rank(event, job, rank)
        blamed = job.valid_rank(event.number("rank"))
        if (local := event.text("local_rank")) and (node := event.text("node")) in job.hostnames:
            blamed = job.local_ranks.get((node, local)) or job.local_ranks.get(("", local), UNKNOWN_RANK)
        # A line that names a node, not a rank, does not blame its writer.
        named = speaker if blamed == UNKNOWN_RANK and not event.text("node") else blamed
        host = self._host(event, rank, job.hostnames)
        self._count(named, event.rule.category, event.rule.role)
        self._note_first(event.rule.role, FirstEvent(event.rule.category, named, host, seconds, event.rule.weak))
        self._deduce(event, speaker, seconds)
        return named

    def note_raised(self, raised: Raised, rank: str) -> None:
        """Use the exception of a rank as a possible cause. It is no log line, so no counter counts it."""
        first = FirstEvent(raised.category, rank, self._hostname, raised.seconds, raised.weak, raised.name)
        known = self.saved.root
        if known is not None and (known.rank, known.category) == (rank, raised.category):
            self.saved.root = msgspec.structs.replace(known, exception=raised.name)
        else:
            self._note_first(raised.role, first)

    def begin(self, started_seconds: float) -> None:
        """Forget causes of an earlier run. ``started_seconds``: when the ranks started (epoch)."""
        self._training.begin(started_seconds)
        self._forget_causes(started_seconds - STARTED_SECONDS)

    def shown(self, now: float) -> ShownLog:
        """Return the data to show at this time."""
        saved = self.saved
        cascade = saved.cascade
        if saved.root is not None or (cascade is not None and now - cascade.seconds < CASCADE_SECONDS):
            cascade = None
        progress = msgspec.structs.replace(saved.progress)
        positions = self.collectives.positions()
        return ShownLog(self._job_id, dict(saved.events), saved.root, cascade, positions, progress)

    def _deduce(self, event: LogEvent, speaker: str, seconds: float) -> None:
        """Store a rank's position.

        At a collective's time-out, compare the ranks' calls: a call that differs from the majority's is a mismatch.
        Lines of an unknown rank are ignored.
        """
        if speaker == UNKNOWN_RANK:
            return
        if event.rule.category in POSITIONS:
            differing = self.collectives.note_position(event, speaker)
        elif event.rule.category == "collective_timeout":
            differing = self.collectives.note_call(event, speaker)
        else:
            return
        for rank in differing[:1]:
            if not any(category == MISMATCH for _, category, _ in self.saved.events):
                self._count(rank, MISMATCH, failures().deduced[MISMATCH])
            root = self.saved.root
            if root is None or root.weak or seconds - root.seconds > LAST_TIMEOUT_SECONDS:
                self._note_first(ROOT, FirstEvent(MISMATCH, rank, "", seconds))

    def _count(self, rank: str, category: str, role: str) -> None:
        kind = (rank, category, role)
        events = self.saved.events
        if kind not in events and rank != UNKNOWN_RANK and (len(events) >= MAX_EVENTS or not self._admit(self._job_id)):
            kind = (UNKNOWN_RANK, category, role)
        events[kind] = saved_sum(events.get(kind, 0))

    def _note_first(self, role: str, first: FirstEvent) -> None:
        """Keep the first event of each role.

        But a root cause that is not ``weak`` replaces a root cause that is ``weak`` or more than RECENT_SECONDS older.
        """
        known = self.saved.root
        if role == ROOT and known is None:
            self.saved.root = first
        elif role == ROOT and known is not None and not first.weak:
            if known.weak or first.seconds - known.seconds > RECENT_SECONDS:
                self.saved.root = first
        elif role == CASCADE and self.saved.cascade is None:
            self.saved.cascade = first

    def _forget_causes(self, before_seconds: float) -> None:
        """Forget all causes if the last of them came before this time (epoch)."""
        times = [event.seconds for event in (self.saved.root, self.saved.cascade) if event is not None]
        if times and max(times) < before_seconds:
            self.saved.root = self.saved.cascade = None
            self.collectives = Collectives()

    def _rank(self, event: LogEvent, job: LoggedJob, rank: str) -> str:
        """Return the global rank of a line's writer; UNKNOWN_RANK if unknown."""
        speaker = event.speaker
        speaker_rank = job.valid_rank(speaker.rank)
        if speaker_rank == UNKNOWN_RANK and job.tasks_are_ranks:
            speaker_rank = job.valid_rank(speaker.task)
        here = not speaker.host or speaker.host in job.hostnames
        if speaker_rank == UNKNOWN_RANK and speaker.pid is not None and here:
            speaker_rank = job.pids.get(speaker.pid, UNKNOWN_RANK)
        return rank if speaker_rank == UNKNOWN_RANK else speaker_rank

    def _host(self, event: LogEvent, rank: str, hostnames: frozenset[str]) -> str:
        """Return the host that a line blames or comes from; empty without a valid name."""
        named = event.text("node") or event.speaker.host
        if named in hostnames or (not named and rank != UNKNOWN_RANK):
            return self._hostname
        return named if _HOST.fullmatch(named) else ""
