"""Training progress from log lines. Pure. Times are seconds since the epoch."""

from __future__ import annotations

from collections import deque

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds
from exporters.job_log.matcher import LogEvent

WINDOW_SECONDS = 60.0
"""Averaging time of the iteration duration, if lines do not have it."""
MAX_MARKS = 16
MAX_ITERATION = 10**15
MAX_CHECKPOINT_SECONDS = 86_400.0


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

    def take(self, event: LogEvent, seconds: float) -> bool:
        """Add an event at this time (epoch). Return True if its iteration is higher than the last one."""
        kind = event.rule.category
        if kind == "checkpoint_begin":
            self.shown.checkpoint_began = seconds
        elif kind == "checkpoint_end":
            self._end_checkpoint(event, seconds)
        elif (iteration := event.number("iteration")) is not None and 0 <= iteration <= MAX_ITERATION:
            return self._iterate(event, iteration, seconds)
        return False

    def _iterate(self, event: LogEvent, iteration: int, seconds: float) -> bool:
        shown, of = self.shown, min(event.number("of") or 0, MAX_ITERATION)
        if of < shown.of and iteration < (shown.iteration or 0):
            return False  # an evaluation loop within the training
        shown.of = max(of, shown.of)
        before, shown.iteration = shown.iteration, iteration
        if before is not None and iteration < before:
            self._marks.clear()
        milliseconds = event.text("ms")
        if milliseconds:
            shown.iteration_seconds = float(milliseconds) / 1000
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
        duration = event.text("seconds")
        if duration:
            shown.checkpoint_seconds = min(float(duration), MAX_CHECKPOINT_SECONDS)
        elif shown.checkpoint_began is not None:
            took = seconds - shown.checkpoint_began
            # If one read has both lines, the duration is unknown.
            shown.checkpoint_seconds = took if 0 < took <= MAX_CHECKPOINT_SECONDS else None
        shown.checkpoint_ended, shown.checkpoint_began = seconds, None
