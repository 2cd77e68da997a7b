"""Decides for which jobs a bundle is due, by comparing the rank table with its previous state. Pure."""

from collections import deque
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agent.sdk.ranks import Pauses, ProcessKey, RankLabel, RankView

MAX_CHANGES_PER_JOB = 512  # Limit of remembered changes of state per job: the newest
MAX_JOBS = 256  # Limit of jobs with remembered changes; a node of 1,024 processes has fewer

Reason = Literal["dead", "unresponsive", "hardware", "silent", "stalled", "asked"]


class Occasion(NamedTuple):
    """A due bundle: its job, the reason, and the rank that it is about."""

    job_id: str
    trigger: Reason
    rank: str


class Change(NamedTuple):
    """A rank's new state, since ``at`` (s since the epoch), and the verdict's reason."""

    at: float
    rank: str
    state: str
    reason: str


class WatchedTrouble(NamedTuple):
    """Due bundles, and the jobs with a rank that has just ended and whose exit status is unknown or not 0."""

    occasions: tuple[Occasion, ...]
    failing: frozenset[str]


@dataclass(slots=True)
class _RankHistory:
    """The remembered state of one process of a rank."""

    state: str = ""
    has_left: bool = False
    pauses: Pauses = field(default_factory=Pauses)
    silent_at: float | None = None
    struck: bool | None = None


class TroubleWatch:
    """Finds occasions for bundles. ``silence_seconds``: see the configuration; the caller gives all times.

    ``troubled``: jobs that may have an open page: a rank is or was dead, does not respond, is silent, or is on failed
    hardware. ``covered``: by job, the time of its newest bundle from before the agent's restart (seconds since the
    epoch). A rank that is dead when first seen, and died before that time, is no occasion.
    """

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self.covered: dict[str, float] = {}
        self._histories: dict[tuple[RankLabel, ProcessKey], _RankHistory] = {}
        self._changes: dict[str, deque[Change]] = {}
        self._stalled: frozenset[str] = frozenset()
        self._ill: frozenset[str] = frozenset()

    @property
    def troubled(self) -> frozenset[str]:
        """Return the jobs that may have an open page; see the class."""
        return self._ill | self._stalled

    def look(
        self, views: Collection[RankView], now_seconds: float, struck: Container[RankLabel] = ()
    ) -> WatchedTrouble:
        """Compare the ranks with those of the previous call. ``now_seconds``: since the epoch.

        ``struck``: ranks on failed hardware; a rank that was never seen on healthy hardware is no occasion.

        Each state and each silence of a rank is one occasion. A rank that is dead, unresponsive or silent at the first
        call is an occasion, too, unless ``covered`` excludes it.
        """
        job_ids = {view.label.job_id for view in views}
        self._changes = {job_id: changes for job_id, changes in self._changes.items() if job_id in job_ids}
        occasions = []
        failing = set()
        ill = set()
        histories: dict[tuple[RankLabel, ProcessKey], _RankHistory] = {}
        for view in views:
            process = view.process
            key = (view.label, process.key)
            history = histories[key] = self._histories.get(key) or _RankHistory()
            if not history.has_left and process.exited_at is not None:
                history.has_left = True
                if process.exit is None or process.exit.signal or process.exit.code:
                    failing.add(view.label.job_id)
            is_struck = process.exited_at is None and view.label in struck
            triggers: tuple[Reason | None, ...] = (  # all three, so that the next call does not return the second one
                self._changed(view, history, now_seconds),
                _newly_struck(history, is_struck=is_struck),
                self._silent(view, history, now_seconds),
            )
            trigger = next((trigger for trigger in triggers if trigger), None)
            if trigger:
                occasions.append(Occasion(view.label.job_id, trigger, view.label.rank))
            if trigger or is_struck or _is_ill(view, history):
                ill.add(view.label.job_id)
        self._histories, self._ill = histories, frozenset(ill)
        return WatchedTrouble(tuple(occasions), frozenset(failing))

    def changes(self, job_id: str) -> Iterable[Change]:
        """Return the changes of the states of a job's ranks on this node, in order."""
        return tuple(self._changes.get(job_id, ()))

    def stalled(self, stalls: Mapping[str, float]) -> list[Occasion]:
        """Return jobs whose stall (seconds by job) exceeds ``silence_seconds`` and did not at the last call."""
        due = frozenset(job for job, seconds in stalls.items() if seconds > self._silence_seconds)
        new, self._stalled = due - self._stalled, due
        return [Occasion(job, "stalled", "") for job in sorted(new)]

    def _changed(self, view: RankView, history: _RankHistory, now_seconds: float) -> Reason | None:
        verdict = view.process.verdict
        if verdict is None or verdict.state == history.state:
            return None
        is_first, history.state = not history.state, verdict.state
        if view.label.job_id in self._changes or len(self._changes) < MAX_JOBS:
            changes = self._changes.setdefault(view.label.job_id, deque(maxlen=MAX_CHANGES_PER_JOB))
            changes.append(Change(now_seconds, view.label.rank, verdict.state, verdict.reason))
        if verdict.state == "dead":
            is_covered = is_first and view.process.exited_seconds < self.covered.get(view.label.job_id, 0.0)
            return None if is_covered else "dead"
        return "unresponsive" if verdict.state == "unresponsive" else None

    def _silent(self, view: RankView, history: _RankHistory, now_seconds: float) -> Reason | None:
        if view.process.exited_at is not None:
            return None
        since = history.pauses.silent_since(view.process.progress_seconds, now_seconds, self._silence_seconds)
        if since is None or history.silent_at == since:
            return None
        history.silent_at = since
        return "silent"


def _is_ill(view: RankView, history: _RankHistory) -> bool:
    """Return whether a rank is dead, does not respond, or is still silent since its last operation."""
    if view.process.verdict is not None and view.process.verdict.state in ("dead", "unresponsive"):
        return True
    is_silent = history.silent_at is not None and history.silent_at == view.process.progress_seconds
    return is_silent and view.process.exited_at is None


def _newly_struck(history: _RankHistory, *, is_struck: bool) -> Reason | None:
    was_well, history.struck = history.struck is False, is_struck
    return "hardware" if is_struck and was_well else None
