"""The shown marks: which users may set one, and the limits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sdk.files import FairTable, Share
from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import MarkRequest

MAX_MARKS = 256
"""Limit of all users' marks on a node; at the limit the user with most marks loses the oldest."""
MAX_MARKS_PER_JOB = 8
MARKS_PER_MINUTE = 6
"""Limit for one user."""
MINUTE_SECONDS = 60.0
SHOWN_SECONDS = 3600.0
"""A mark is a point in time: it is shown for this long, enough for every scrape."""
ROOT = 0

MARK = Family(
    "rankwatch_job_mark_timestamp_seconds",
    "gauge",
    "Time when the job's owner or root set a mark by `rankwatch mark`; text is the mark's text. Shown for an hour.",
    ("job_id", "text"),
    "8 per job at most, 256 per node",
)


class Mark(NamedTuple):
    """A mark of a job."""

    job_id: str
    text: str


class _Set(NamedTuple):
    at_seconds: float
    expires_at: float


class RecentMarks:
    """The marks of the last hour; the caller gives all times."""

    def __init__(self) -> None:
        self._marks: FairTable[Mark, _Set] = FairTable()
        self._recent: dict[int, deque[float]] = {}

    def add(self, request: MarkRequest, uid: int, owners: Mapping[str, frozenset[int]], now: float, at: float) -> str:
        """Set a mark at epoch time ``at``; return why it was refused, or "".

        ``owners``: the users of each job with ranks on this node. ``now``: monotonic.
        """
        if not request.text.isprintable() or not request.text.strip():
            return "the text is not printable"
        users = owners.get(request.job_id)
        if users is None:
            return f"no rank of job {request.job_id} runs on this node"
        if uid not in (ROOT, *users):
            return f"job {request.job_id} is another user's"
        recent = self._recent.setdefault(uid, deque(maxlen=MARKS_PER_MINUTE))
        if len(recent) == MARKS_PER_MINUTE and now - recent[0] < MINUTE_SECONDS:
            return f"more than {MARKS_PER_MINUTE} marks a minute"
        recent.append(now)
        self._put(Mark(request.job_id, request.text), Share(uid, request.job_id), _Set(at, now + SHOWN_SECONDS))
        return ""

    def expire(self, now: float) -> None:
        """Forget the marks that were shown for SHOWN_SECONDS."""
        for mark in [mark for mark, when in self._marks.items() if when.expires_at <= now]:
            self._marks.pop(mark)
        self._recent = {uid: times for uid, times in self._recent.items() if now - times[-1] < MINUTE_SECONDS}

    def marks(self) -> dict[Mark, float]:
        """Return the marks, and when each was set."""
        return {mark: when.at_seconds for mark, when in self._marks.items()}

    def _put(self, mark: Mark, share: Share, when: _Set) -> None:
        self._marks.pop(mark)
        of_job = [other for other, _ in self._marks.items() if other.job_id == mark.job_id]
        if len(of_job) >= MAX_MARKS_PER_JOB:
            self._marks.pop(of_job[0])
        if len(self._marks) >= MAX_MARKS:
            of_loser = iter(self._marks.of(self._marks.losing_share(share)))
            oldest, _ = self._marks.items()[0]
            self._marks.pop(next(of_loser, oldest))  # the oldest if each user has one
        self._marks.put(mark, when, share)


def render(set_at: Mapping[Mark, float]) -> Iterable[Metric]:
    """Return the series of marks; ``set_at``: when each was set, in seconds since the epoch."""
    rows = MARK.rows()
    for mark, seconds in set_at.items():
        rows.add(tuple(mark), seconds)
    yield rows.metric
