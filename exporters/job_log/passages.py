"""The lines around those in which logs tell of errors, kept for a bundle of evidence, secrets masked.

What follows an event may be written later: a passage stays open until its last line has come.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from exporters.job_log.masking import masked
from exporters.job_log.matcher import MAX_LINE_BYTES, LogEvent
from exporters.job_log.ownership import Identity

AROUND = 2
"""Lines before, and as many after."""
MAX_TEXT = 512
"""Characters of a line that are kept."""
MAX_MASKED_TEXT = 2048
"""Characters of a line in which secrets are looked for: nothing beyond is kept."""
MAX_OF_A_CATEGORY = 4
"""Of a job; the first, until one comes OLD_SECONDS later: that is of another trouble."""
OLD_SECONDS = 600.0
MAX_PER_JOB = 32
MAX_PASSAGES = 512
"""Of all jobs: 1.3 MB. Beyond it the job that has most gets no more."""


class Passage(NamedTuple):
    """``seconds`` (since the epoch) and ``rank`` as far as known; ``lines``: the event's is ``lines[at]``."""

    job_id: str
    category: str
    rank: str
    seconds: float
    lines: tuple[str, ...]
    at: int


class _File:
    """The end of what was read of a file, and which passages (numbers) want how many lines more."""

    __slots__ = ("last", "open")

    def __init__(self) -> None:
        self.last: deque[bytes] = deque(maxlen=AROUND)
        self.open: dict[int, int] = {}


class LogPassages:
    """All passages, by number. Used by the reader's thread; what ``of`` gave does not change any more."""

    def __init__(self) -> None:
        self._kept: dict[int, Passage] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._of_jobs: Counter[str] = Counter()
        self._newest: dict[tuple[str, str], float] = {}
        self._numbers = itertools.count()
        self._files: dict[Identity, _File] = {}

    def take(
        self, identity: Identity, data: bytes, found: Iterable[tuple[LogEvent, str]], job_id: str, seconds: float
    ) -> None:
        """Take in whole lines of a file, and the events in them, in order, each with the rank that it is of."""
        file = self._files.setdefault(identity, _File())
        end = 0
        for _ in range(AROUND):
            if not file.open or end >= len(data):
                break
            line, end = _line(data, end)
            self._continue(file, line)
        for event, rank in found:
            if event.rule.role and self._has_room(job_id, event.rule.category, seconds):
                self._begin(file, data, event, (job_id, rank, seconds))
        file.last.extend(_lines_before(data, len(data)))

    def keep(self, identities: Collection[Identity], jobs: Collection[str]) -> None:
        """Forget all other files and jobs."""
        self._files = {identity: file for identity, file in self._files.items() if identity in identities}
        for number in [number for number, each in self._kept.items() if each.job_id not in jobs]:
            self._drop(number)

    def of(self) -> dict[str, tuple[Passage, ...]]:
        """What there is now, by job."""
        found: dict[str, list[Passage]] = {}
        for each in self._kept.values():
            found.setdefault(each.job_id, []).append(each)
        return {job_id: tuple(each) for job_id, each in found.items()}

    def _has_room(self, job_id: str, category: str, seconds: float) -> bool:
        if self._is_full(job_id, category):
            if seconds < self._newest.get((job_id, category), seconds) + OLD_SECONDS:
                return False
            of_this = [
                number for number, each in self._kept.items() if (each.job_id, each.category) == (job_id, category)
            ]
            for number in of_this:
                self._drop(number)
            if self._is_full(job_id, category):
                return False
        if len(self._kept) >= MAX_PASSAGES:
            [(most, count)] = self._of_jobs.most_common(1)
            if count <= self._of_jobs[job_id] + 1:
                return False
            self._drop(max(number for number, each in self._kept.items() if each.job_id == most))
        return True

    def _is_full(self, job_id: str, category: str) -> bool:
        return self._of_jobs[job_id] >= MAX_PER_JOB or self._counts[job_id, category] >= MAX_OF_A_CATEGORY

    def _drop(self, number: int) -> None:
        gone = self._kept.pop(number)
        self._of_jobs -= Counter([gone.job_id])  # also of what is nothing any more
        self._counts -= Counter([(gone.job_id, gone.category)])
        if (gone.job_id, gone.category) not in self._counts:
            self._newest.pop((gone.job_id, gone.category), None)

    def _begin(self, file: _File, data: bytes, event: LogEvent, of: tuple[str, str, float]) -> None:
        job_id, rank, seconds = of
        before = [*file.last, *_lines_before(data, event.start)][-AROUND:]
        line, end = _line(data, event.start)
        lines, left = [*before, line], AROUND
        while left and end < len(data):
            line, end = _line(data, end)
            lines.append(line)
            left -= 1
        number = next(self._numbers)
        self._counts[job_id, event.rule.category] += 1
        self._of_jobs[job_id] += 1
        self._newest[job_id, event.rule.category] = seconds
        self._kept[number] = Passage(job_id, event.rule.category, rank, seconds, _shown_all(lines), len(before))
        if left:
            file.open[number] = left

    def _continue(self, file: _File, line: bytes) -> None:
        for number, left in list(file.open.items()):
            if number in self._kept:
                known = self._kept[number]
                self._kept[number] = known._replace(lines=(*known.lines, _shown(line, known.lines[-1])))
            file.open[number] = left - 1
            if left <= 1 or number not in self._kept:
                del file.open[number]


def as_text(passages: Iterable[Passage]) -> str:
    """Return passages as text for people; the line of an event begins with ``>``."""
    blocks = []
    for each in passages:
        rank = f"rank {each.rank}" if each.rank.isdigit() else "rank not known"
        lines = [f"{'>' if number == each.at else ' '} {line}" for number, line in enumerate(each.lines)]
        at = f"{datetime.fromtimestamp(each.seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
        blocks.append("\n".join([f"{each.category}, {rank}, {at}", *lines, ""]))
    return "\n".join(blocks)


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    """The line that begins at ``start``, and where the next one does."""
    end = data.find(b"\n", start)
    end = len(data) if end < 0 else end
    return data[start : min(end, start + MAX_LINE_BYTES)], end + 1


def _lines_before(data: bytes, end: int) -> list[bytes]:
    """The last lines of ``data`` before ``end``, where a line begins."""
    found: list[bytes] = []
    while len(found) < AROUND and end > 0:
        start = data.rfind(b"\n", 0, end - 1) + 1
        found.insert(0, data[start : min(end - 1, start + MAX_LINE_BYTES)])
        end = start
    return found


def _shown_all(lines: Iterable[bytes]) -> tuple[str, ...]:
    shown: list[str] = []
    for line in lines:
        shown.append(_shown(line, shown[-1] if shown else ""))
    return tuple(shown)


def _shown(line: bytes, before: str) -> str:
    """A line as it is kept: secrets masked before it is cut, nothing that would steer a terminal.

    ``before``: the line before it, as it is kept.
    """
    text = line.decode("utf-8", "replace")
    if len(text) > MAX_MASKED_TEXT:  # without the word that is cut, in which a secret might not be told any more
        text = text[:MAX_MASKED_TEXT].rpartition(" ")[0] or text[:MAX_MASKED_TEXT]
    text = masked(text, before)
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_TEXT])
