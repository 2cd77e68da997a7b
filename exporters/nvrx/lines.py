"""Parses log lines of NVRx's launchers and rank monitors. Pure. A job writes the text, so each part is bounded.

Event times are UTC. The time at the beginning of a line is local time, so the parser ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

MAX_LINE_CHARACTERS = 4096
"""The parser ignores the rest of a longer line."""
MAX_RANK = 1 << 20
MAX_CYCLE = 1 << 31
MAX_SCORE = 1e9
MAX_INTERRUPTED = 64
"""Limit of (rank, kind) pairs per line."""

EVENTS = (
    *("failure_detected", "worker_terminated", "rendezvous_started", "health_check_completed"),
    *("rendezvous_completed", "worker_start_started", "worker_start_completed"),
    *("attribution_get_started", "attribution_get_completed"),
)
OTHER = "other"
"""An event or interruption of a newer NVRx version."""
INTERRUPTIONS = ("exception", "base_exception", "soft_timeout", "hard_timeout", "terminated", "unresponsive")
NOT_KNOWN = "unknown"
"""The monitor logs this if its rank never reported its number."""

_EVENT = re.compile(
    r"Cycle: ([0-9]{1,10}) Event: ([a-z_]{1,64}) Node: [\w.:-]{1,255}_[0-9]{1,10}_[0-9]{1,10} "
    r"Rank: (?:[0-9]{1,7}|None) Time: ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}) UTC",
    re.ASCII,
)
_MONITOR = re.compile(
    r"\[[A-Za-z_]{1,64}[0-9]{1,10}@[\w.-]{1,255}:([0-9]{1,7}|<none>)\] "
    r"(?:\[Cycle [0-9]{1,10}\] )?"  # NVRx 0.4 writes no cycle
    r"(?:Did not get (?P<heartbeat>initial|subsequent) heartbeat\. Waited [0-9.]{1,16} seconds"
    r"|(?P<section>Section) '[^']{0,256}' has been open for [0-9.]{1,16} seconds"
    r"|(?P<out>Was) out of section for [0-9.]{1,16} seconds)",
    re.ASCII,
)
_INTERRUPTION = re.compile(
    r"Interruption\.([A-Z_]{1,64}) (?:on ranks=|affecting ranks )[\[{]([0-9,. -]{1,4096})[\]}(]", re.ASCII
)
_RANKS = re.compile(r"(?<![0-9])([0-9]{1,7})(?:-([0-9]{1,7}))?(?![0-9])", re.ASCII)
_SCORES = re.compile(r"GPU (relative|individual) performance:\s*$")
_SCORE = re.compile(r"\bRank=([0-9]{1,7}) Node=[\w.-]{1,255} Score=([0-9.]{1,16})", re.ASCII)

_LINES: tuple[tuple[str, str, str], ...] = (
    ("no_progress", "made NO progress", r"Training cycle #[0-9]{1,10} made NO progress"),
    ("progress", "made progress", r"Training cycle #[0-9]{1,10} made progress"),
    ("stopped_without_progress", "EARLY TERMINATION", r"EARLY TERMINATION: [0-9]{1,10} consecutive training cycles"),
    (
        "restart_of_own_failure",
        "attempts left",
        r"Worker group (?:FAILED|UNHEALTHY)\. [0-9]{1,6}/[0-9]{1,6} attempts left",
    ),
    ("restart_of_others_failure", "Joining cluster restart", r"Joining cluster restart \(group_rank="),
    ("processes_left", "remaining processes in worker PGIDs", r"Found [1-9][0-9]{0,9} remaining processes"),
    ("gpu_memory_held", "GPU memory to be reclaimed", r"Timeout waiting for GPU memory to be reclaimed"),
    ("gpu_needs_reset", "Requires a reset to recover", r"GPU [0-9]{1,3}: Requires a reset to recover"),
    ("gpu_needs_reboot", "node reboot", r"GPU [0-9]{1,3}: .{0,128}node reboot"),
    ("gpu_needs_drain", "peer-to-peer traffic to be drained", r"GPU [0-9]{1,3}: .{0,128}peer-to-peer traffic"),
    ("gpu_degraded", "Operating at reduced capacity", r"GPU [0-9]{1,3}: .{0,128}Operating at reduced capacity"),
    ("nic_failed", "Health check FAILED", r"NIC device [\w.-]{1,64}: .{0,256}Health check FAILED"),
    ("nic_link_down", "link down counter has been incremented", r"GPU [0-9]{1,3} (?:NIC/IB|NIC|IB) .{0,64}link down"),
    ("nvlink_failed", "NVLinkWindowHealthCheck", r"NVLinkWindowHealthCheck: GPU [0-9]{1,3} unhealthy"),
    ("no_progress", "no progress across restarts", r"Progress tracker detected no progress across restarts\."),
    ("stop_recommended", "Attribution recommend", r"Attribution recommend(?:s|ed) stopping the job"),
    ("restart_refused", "must not be restarted", r"NVRx decided the job must not be restarted"),
    ("ranks_failed", "exited with non-zero exit code", r"Some rank\(s\) exited with non-zero exit code"),
    ("ended_well", "Agent exits with exit code", r"Agent exits with exit code = 0\."),
    (
        "restart_in_process",
        "_ex: ",
        r"rank=[0-9]{1,7} (?:init|health|fn|other|term|finalize|restart|exit|terminate|completion|abort)_ex: ",
    ),
    ("nested_restart", "[NestedRestarter]", r"\[NestedRestarter\] name=\[In(?:Process|Job)\] state=handling"),
)
_NOTICES = tuple((name, word, re.compile(pattern, re.ASCII)) for name, word, pattern in _LINES)


class LauncherEvent(NamedTuple):
    """A step of a cycle. ``event``: one of EVENTS or OTHER; ``at``: seconds since the epoch."""

    cycle: int
    event: str
    at: float


class HeartbeatTimeout(NamedTuple):
    """A rank monitor kills its rank. ``kind``: initial, subsequent, section or out_of_section."""

    rank: str
    kind: str


class Interruptions(NamedTuple):
    """Interruptions of ranks that restart in their processes. ``by_rank``: (rank, one of INTERRUPTIONS or OTHER)."""

    by_rank: tuple[tuple[str, str], ...]


class ScoreHeading(NamedTuple):
    """The heading before scores. ``kind``: relative or individual."""

    kind: str


class Score(NamedTuple):
    """The speed of a rank's GPU; the best GPU has 1."""

    rank: int
    score: float


NvrxLine = LauncherEvent | HeartbeatTimeout | Interruptions | ScoreHeading | Score


def read_line(line: str) -> NvrxLine | None:
    """Return the parsed line; None for nearly all lines."""
    text = line[:MAX_LINE_CHARACTERS]
    for word, pattern, reader in _READERS:
        if word in text:
            match = pattern.search(text)
            return None if match is None else reader(match)
    return None


def read_notice(line: str) -> str:
    """Return the name of the decision or defect that a line reports; an empty text for nearly all lines."""
    text = line[:MAX_LINE_CHARACTERS]
    return next((name for name, word, pattern in _NOTICES if word in text and pattern.search(text)), "")


def _event(match: re.Match[str]) -> LauncherEvent | None:
    cycle, event, at = match.groups()
    try:
        moment = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return LauncherEvent(int(cycle), event if event in EVENTS else OTHER, moment) if int(cycle) <= MAX_CYCLE else None


def _timeout(match: re.Match[str]) -> HeartbeatTimeout:
    rank = match[1] if match[1].isdigit() and int(match[1]) < MAX_RANK else NOT_KNOWN
    kind = match["heartbeat"] or ("section" if match["section"] else "out_of_section")
    return HeartbeatTimeout(rank if rank == NOT_KNOWN else str(int(rank)), kind)


def _interruptions(match: re.Match[str]) -> Interruptions | None:
    by_rank = tuple(islice(_interrupted(match.string), MAX_INTERRUPTED))
    return Interruptions(by_rank) if by_rank else None


def _interrupted(text: str) -> Iterator[tuple[str, str]]:
    """Yield each interrupted rank with the kind. NVRx shortens a long list to ``3...12``: such ranks are missing."""
    for name, ranks in _INTERRUPTION.findall(text):
        kind = name.lower() if name.lower() in INTERRUPTIONS else OTHER
        for first, last in _RANKS.findall(ranks):
            yield from ((str(rank), kind) for rank in range(int(first), min(int(last or first) + 1, MAX_RANK)))


def _heading(match: re.Match[str]) -> ScoreHeading:
    return ScoreHeading(match[1])


def _score(match: re.Match[str]) -> Score | None:
    try:
        score = float(match[2])
    except ValueError:
        return None
    return Score(int(match[1]), score) if 0 <= score <= MAX_SCORE and int(match[1]) < MAX_RANK else None


_READERS = (
    (" Event: ", _EVENT, _event),
    ("Interruption.", _INTERRUPTION, _interruptions),
    (" performance:", _SCORES, _heading),
    (" Score=", _SCORE, _score),
    (" seconds", _MONITOR, _timeout),
)
