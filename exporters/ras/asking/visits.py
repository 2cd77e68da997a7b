"""When each job is queried, and how its last queries went. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random
from typing import NamedTuple

import msgspec

from exporters.ras.asking.jobs import OwnedJob, Question
from exporters.ras.asking.policy import Pace, Role, Timing, Wake, after_query, after_wake, first_wait_seconds, next_pace
from exporters.ras.protocol.client import Endpoint
from exporters.ras.report.model import Report


class Visit(msgspec.Struct):
    """One job at an address; ``failures``: queries without a report since the last one."""

    timing: Timing
    pace: Pace
    up: bool | None = None
    failures: int = 0

    @property
    def interval_seconds(self) -> float | None:
        """From the last query to the next; None before the first."""
        return self.timing.due_at - self.timing.asked_at if self.up is not None else None


class Due(NamedTuple):
    """The query to make now."""

    question: Question
    role: Role
    visit: Visit


class Visits:
    """See the module. Times are monotonic; ``least_seconds``: the shortest interval that the site allows."""

    def __init__(self, least_seconds: float, random: Random, *, once: bool) -> None:
        self._least_seconds = least_seconds
        self._random = random
        self._once = once
        self._known: dict[Question, Visit] = {}

    def keep(self, sites: Collection[Endpoint], jobs: Collection[OwnedJob]) -> None:
        """Forget all but these. A job that may not be queried for a while keeps its schedule."""
        self._known = {at: visit for at, visit in self._known.items() if at.endpoint in sites and at.job in jobs}

    def reschedule_after_events(self, wakes: Mapping[Endpoint, Wake], now: float) -> None:
        """Put the next query forward at the addresses in ``wakes``; ``now`` is monotonic."""
        for question, visit in self._known.items():
            if wake := wakes.get(question.endpoint):
                visit.timing = after_wake(visit.timing, wake, visit.pace, now, self._random.random())

    def due(self, wanted: Mapping[Question, Role], now: float) -> Due | None:
        """Return the query of ``wanted`` that was due first; None when none is due."""
        for question, role in wanted.items():
            if question not in self._known:
                wait = 0.0 if self._once else first_wait_seconds(role, self._random.random())
                self._known[question] = Visit(Timing(now + wait), Pace(least_seconds=self._least_seconds))
        found = [Due(question, role, self._known[question]) for question, role in wanted.items()]
        return min(
            (each for each in found if each.visit.timing.due_at <= now),
            key=lambda each: each.visit.timing.due_at,
            default=None,
        )

    def note(self, due: Due, answer: tuple[Report, float] | None, world_size: int, now: float) -> None:
        """Note the result of a query: its report and duration in seconds, or None; ``world_size`` 0: not known."""
        visit = due.visit
        visit.up = answer is not None
        visit.failures = 0 if visit.up else visit.failures + 1
        visit.pace = next_pace(visit.pace, answer, world_size)
        visit.timing = after_query(visit.timing, due.role, visit.pace, now, self._random.random())

    def of(self, asked: Collection[Question]) -> dict[Question, Visit]:
        """Return the visits of these questions."""
        return {question: visit for question, visit in self._known.items() if question in asked}
