"""Lines of NVRx's launcher and rank monitors. Pure; the text is the job's, so bounded.

Times of events are UTC; the time at which a line was written is local and not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

MAX_LINE_CHARACTERS = 4096
"""What lies beyond is not looked at."""
MAX_RANK = 1 << 20
MAX_RANK_DIGITS = 7
MAX_CYCLE = 1 << 31
MAX_SECONDS = 1e9
MAX_STRAGGLERS = 64
"""Of one warning."""

EVENTS = (
    "failure_detected",
    "worker_terminated",
    "rendezvous_started",
    "health_check_completed",
    "rendezvous_completed",
    "worker_start_started",
    "worker_start_completed",
    "attribution_get_started",
    "attribution_get_completed",
)
OTHER = "other"
"""An event of a later version."""
INTERRUPTIONS = ("exception", "base_exception", "soft_timeout", "hard_timeout", "terminated", "unresponsive")
TimeoutKind = Literal["initial", "subsequent", "section", "out_of_section"]
ScoreKind = Literal["relative", "individual"]

_EVENT = re.compile(
    r"Cycle: ([0-9]{1,10}) Event: ([a-z_]{1,64}) Node: ([\w.:-]{1,255})_([0-9]{1,10})_([0-9]{1,10}) "
    r"Rank: ([0-9]{1,7}|None) Time: ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}) UTC",
    re.ASCII,
)
_MONITOR = re.compile(
    r"\[[A-Za-z_]{1,64}[0-9]{1,10}@([\w.-]{1,255}):([0-9]{1,7}|<none>)\] \[Cycle ([0-9]{1,10})\] (.*)", re.ASCII
)
_HEARTBEAT = re.compile(r"Did not get (initial|subsequent) heartbeat\. Waited ([0-9.]{1,16}) seconds")
_SECTION = re.compile(r"Section '[^']{0,256}' has been open for ([0-9.]{1,16}) seconds")
_OUT_OF_SECTION = re.compile(r"Was out of section for ([0-9.]{1,16}) seconds")
_STRAGGLERS = re.compile(r"STRAGGLER DETECTION WARNING: Some GPUs (have worse|performance dropped)")
_STRAGGLER = re.compile(r"StragglerId\(rank=([0-9]{1,7})[,)]")
_SCORES = re.compile(r"GPU (relative|individual) performance:\s*$")
_SCORE = re.compile(r"\bRank=([0-9]{1,7}) Node=[\w.-]{1,255} Score=([0-9.]{1,16})", re.ASCII)
_INTERRUPTION = re.compile(r"Interruption\.([A-Z_]{1,64}) on ranks=[\[{]([0-9, ]{1,4096})[\]}]", re.ASCII)


class LauncherEvent(msgspec.Struct, frozen=True):
    """A step of a cycle. ``event``: one of EVENTS or OTHER; ``group_rank``: a node's number; ``at``: epoch seconds."""

    cycle: int
    event: str
    host: str
    launcher_pid: int
    group_rank: int | None
    at: float


class HeartbeatTimeout(msgspec.Struct, frozen=True):
    """A rank's monitor gave it up, and kills it. ``seconds``: what was waited; ``rank`` None: it never told its own."""

    rank: int | None
    host: str
    cycle: int
    kind: TimeoutKind
    seconds: float


class Stragglers(msgspec.Struct, frozen=True):
    """Ranks that NVRx found slow: slower than others (``relative``), or than they were (``individual``)."""

    kind: ScoreKind
    ranks: tuple[int, ...]


class Interruptions(msgspec.Struct, frozen=True):
    """A rank restarts within its process: ranks with what stopped each, one of INTERRUPTIONS or OTHER."""

    found: tuple[tuple[int, str], ...]


class ScoreHeading(msgspec.Struct, frozen=True):
    """The scores that follow are of this kind."""

    kind: ScoreKind


class Score(msgspec.Struct, frozen=True):
    """How fast a rank's GPU is: 1 is as fast as the best."""

    rank: int
    score: float


NvrxLine = LauncherEvent | HeartbeatTimeout | Stragglers | Interruptions | ScoreHeading | Score


def read_line(line: str) -> NvrxLine | None:
    """What a line tells; None for nearly all."""
    text = line[:MAX_LINE_CHARACTERS]
    for word, reader in _READERS:
        if word in text:
            return reader(text)
    return None


def _event(text: str) -> LauncherEvent | None:
    found = _EVENT.search(text)
    if found is None:
        return None
    cycle, event, host, pid, _, group_rank, at = found.groups()
    try:
        moment = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    if int(cycle) > MAX_CYCLE:
        return None
    number = None if group_rank == "None" else int(group_rank)
    return LauncherEvent(int(cycle), event if event in EVENTS else OTHER, host, int(pid), number, moment)


def _timeout(text: str) -> HeartbeatTimeout | None:
    found = _MONITOR.search(text)
    told = None if found is None else _timed_out(found[4])
    if found is None or told is None or int(found[3]) > MAX_CYCLE:
        return None
    kind, seconds = told
    rank = None if found[2] == "<none>" else int(found[2])
    return HeartbeatTimeout(rank if rank is None or rank < MAX_RANK else None, found[1], int(found[3]), kind, seconds)


def _timed_out(text: str) -> tuple[TimeoutKind, float] | None:
    """What was waited for, and how long."""
    if found := _HEARTBEAT.match(text):
        return _told("initial" if found[1] == "initial" else "subsequent", found[2])
    if found := _SECTION.match(text):
        return _told("section", found[1])
    if found := _OUT_OF_SECTION.match(text):
        return _told("out_of_section", found[1])
    return None


def _told(kind: TimeoutKind, text: str) -> tuple[TimeoutKind, float] | None:
    seconds = _decimal(text)
    return None if seconds is None else (kind, seconds)


def _stragglers(text: str) -> Stragglers | None:
    found = _STRAGGLERS.search(text)
    if found is None:
        return None
    ranks = {int(each) for each in _STRAGGLER.findall(text)}
    known = sorted(rank for rank in ranks if rank < MAX_RANK)[:MAX_STRAGGLERS]
    return Stragglers("relative" if found[1] == "have worse" else "individual", tuple(known))


def _interruptions(text: str) -> Interruptions | None:
    found = []
    for name, ranks in _INTERRUPTION.findall(text):
        kind = name.lower() if name.lower() in INTERRUPTIONS else OTHER
        numbers = {int(each) for each in ranks.replace(",", " ").split() if len(each) <= MAX_RANK_DIGITS}
        found += [(rank, kind) for rank in sorted(numbers) if rank < MAX_RANK]
    return Interruptions(tuple(found[:MAX_STRAGGLERS])) if found else None


def _heading(text: str) -> ScoreHeading | None:
    found = _SCORES.search(text)
    return None if found is None else ScoreHeading("relative" if found[1] == "relative" else "individual")


def _score(text: str) -> Score | None:
    found = _SCORE.search(text)
    score = None if found is None else _decimal(found[2])
    if found is None or score is None or int(found[1]) >= MAX_RANK:
        return None
    return Score(int(found[1]), score)


def _decimal(text: str) -> float | None:
    """A number that is not negative and not absurd; None else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= MAX_SECONDS else None


_READERS: tuple[tuple[str, Callable[[str], NvrxLine | None]], ...] = (
    (" Event: ", _event),
    ("] [Cycle ", _timeout),
    ("STRAGGLER DETECTION WARNING: ", _stragglers),
    ("Interruption.", _interruptions),
    (" performance:", _heading),
    (" Score=", _score),
)
