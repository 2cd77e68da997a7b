"""The job log's part of an evidence bundle: the first cause, the events of each rank, and lines around events.

Log lines may hold anything that a user printed. So the part has only the exporter's own words, and log lines around
events only if the site configures them, with masked secrets. The job may write the lines after an event later: a
passage stays open until it has its last line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from agent.sdk.evidence import Offered, Wanted, summary
from agent.sdk.ranks import UNKNOWN_RANK
from exporters.job_log.masking import masked
from exporters.job_log.matcher import MAX_LINE_BYTES, LogEvent
from exporters.job_log.ownership import Identity
from exporters.job_log.tally import CASCADE, ROOT, FirstEvent, ShownLog

AROUND = 2  # Number of lines before an event, and after it
MAX_TEXT = 512  # Limit of kept characters per line
MAX_MASKED_TEXT = 2048  # Limit of characters per line that are searched for secrets. Characters beyond it are dropped.
MAX_OF_A_CATEGORY = 4
"""Limit of passages per job and category. A passage that is OLD_SECONDS newer has another cause and replaces them."""
OLD_SECONDS = 600.0
MAX_PER_JOB = 32
MAX_PASSAGES = 512  # Limit over all jobs: 1.3 MB. At the limit the job with the most passages loses its newest one.
KINDS = {ROOT: "first cause in the job's log", CASCADE: "no cause in the job's log, first secondary failure"}


class Passage(msgspec.Struct):
    """Lines around an event; ``lines[at]`` has the event. ``seconds``: since the epoch; ``rank``: if known.

    ``missing``: number of following lines that are not read yet.
    """

    category: str
    rank: str
    seconds: float
    lines: list[str]
    at: int
    missing: int = 0


@dataclass(slots=True)
class _File:
    """The last lines read from a file, and the file's passages that still miss lines (``open``)."""

    last: deque[bytes] = field(default_factory=lambda: deque(maxlen=AROUND))
    open: list[Passage] = field(default_factory=list)


class LogPassages:
    """All passages by job, the oldest first. Belongs to the reader's thread."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Passage]] = {}
        self._files: dict[Identity, _File] = {}

    def take(
        self, identity: Identity, data: bytes, events: Iterable[tuple[LogEvent, str]], job_id: str, seconds: float
    ) -> None:
        """Add whole lines of a file. ``events``: the events in them, in order, each with its rank."""
        file = self._files.setdefault(identity, _File())
        end = 0
        for _ in range(AROUND):
            if not file.open or end >= len(data):
                break
            line, end = _line(data, end)
            for known in file.open:
                known.lines.append(_shown(line, known.lines[-1]))
                known.missing -= 1
            file.open = [known for known in file.open if known.missing]
        for event, rank in events:
            if event.rule.role and self._has_room(job_id, event.rule.category, seconds):
                self._begin(file, data, event, (job_id, rank, seconds))
        file.last.extend(_lines_before(data, len(data)))

    def keep(self, identities: Collection[Identity], jobs: Collection[str]) -> None:
        """Forget files and jobs that are not in the arguments."""
        self._files = {identity: file for identity, file in self._files.items() if identity in identities}
        self._by_job = {job_id: of_job for job_id, of_job in self._by_job.items() if job_id in jobs}

    def of(self) -> dict[str, tuple[Passage, ...]]:
        """Return copies of the current passages by job, in order."""
        return {
            job_id: tuple(msgspec.structs.replace(passage, lines=list(passage.lines)) for passage in of_job)
            for job_id, of_job in self._by_job.items()
            if of_job
        }

    def _has_room(self, job_id: str, category: str, seconds: float) -> bool:
        of_job = self._by_job.setdefault(job_id, [])
        alike = [passage for passage in of_job if passage.category == category]
        if len(alike) >= MAX_OF_A_CATEGORY or len(of_job) >= MAX_PER_JOB:
            if not alike or seconds < alike[-1].seconds + OLD_SECONDS:
                return False
            of_job[:] = [passage for passage in of_job if passage.category != category]
        if sum(map(len, self._by_job.values())) >= MAX_PASSAGES:
            most = max(self._by_job.values(), key=len)
            if len(most) <= len(of_job) + 1:
                return False
            most.pop()
        return True

    def _begin(self, file: _File, data: bytes, event: LogEvent, of: tuple[str, str, float]) -> None:
        job_id, rank, seconds = of
        before = [*file.last, *_lines_before(data, event.start)][-AROUND:]
        line, end = _line(data, event.start)
        lines, missing = [*before, line], AROUND
        while missing and end < len(data):
            line, end = _line(data, end)
            lines.append(line)
            missing -= 1
        passage = Passage(event.rule.category, rank, seconds, _shown_all(lines), len(before), missing)
        self._by_job[job_id].append(passage)
        if missing:
            file.open.append(passage)


def as_text(passages: Iterable[Passage]) -> str:
    """Return passages as readable text. The line of an event begins with ``>``."""
    blocks = []
    for passage in passages:
        rank = f"rank {passage.rank}" if passage.rank.isdigit() else "rank not known"
        lines = [f"{'>' if number == passage.at else ' '} {line}" for number, line in enumerate(passage.lines)]
        at = f"{datetime.fromtimestamp(passage.seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
        blocks.append("\n".join([f"{passage.category}, {rank}, {at}", *lines, ""]))
    return "\n".join(blocks)


def _line(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the line at offset ``start``, and the offset of the next line."""
    end = data.find(b"\n", start)
    end = len(data) if end < 0 else end
    return data[start : min(end, start + MAX_LINE_BYTES)], end + 1


def _lines_before(data: bytes, end: int) -> list[bytes]:
    """Return the last lines of ``data`` before ``end``, the start of a line."""
    lines: list[bytes] = []
    while len(lines) < AROUND and end > 0:
        start = data.rfind(b"\n", 0, end - 1) + 1
        lines.insert(0, data[start : min(end - 1, start + MAX_LINE_BYTES)])
        end = start
    return lines


def _shown_all(lines: Iterable[bytes]) -> list[str]:
    shown: list[str] = []
    for line in lines:
        shown.append(_shown(line, shown[-1] if shown else ""))
    return shown


def _shown(line: bytes, before: str) -> str:
    """Return the text of a line: masked, then cut, and without terminal escapes.

    ``before``: the previous kept line.
    """
    text = line.decode("utf-8", "replace")
    if len(text) > MAX_MASKED_TEXT:  # drop the cut word, whose secret might be unrecognizable
        text = text[:MAX_MASKED_TEXT].rpartition(" ")[0] or text[:MAX_MASKED_TEXT]
    text = masked(text, before)
    return "".join(letter if letter.isprintable() else " " for letter in text[:MAX_TEXT])


def log_part(jobs: Iterable[ShownLog], passages: Mapping[str, Iterable[Passage]], wanted: Wanted) -> Offered:
    """Return the part of a bundle; empty if this node reads no log of the job. ``passages``: the kept lines by job."""
    shown = next((job for job in jobs if job.job_id == wanted.job_id), None)
    if shown is None:
        return Offered({}, why="no log of this job")
    events = [
        summary.Event(first.seconds, _rank(first), _words(role, first), "job_log")
        for role, first in ((ROOT, shown.root), (CASCADE, shown.cascade))
        if first is not None
    ]
    words = []
    if shown.root is not None and _rank(shown.root):
        words.append(summary.Word(_rank(shown.root), "job_log", _words(ROOT, shown.root), blames=True))
    counts = [
        {"rank": rank, "category": category, "role": role, "lines": count}
        for (rank, category, role), count in sorted(shown.events.items())
    ]
    files = {"log.json": msgspec.json.format(msgspec.json.encode(counts)) + b"\n"}
    if wanted.job_id in passages:
        files["lines.txt"] = as_text(passages[wanted.job_id]).encode()
    return Offered(files, words, events)


def _rank(first: FirstEvent) -> str:
    return "" if first.rank == UNKNOWN_RANK else first.rank


def _words(role: str, first: FirstEvent) -> str:
    host = f" on {first.host}" if first.host else ""
    category = first.category.replace("_", " ")
    if first.exception:
        return f"raised {first.exception}{host} ({category})"
    return f"{KINDS[role]}: {category}{host}"[: summary.MAX_TEXT]
