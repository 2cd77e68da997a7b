"""Keeps the data of one job: counts of the events that its launchers and monitors log, scores of GPUs, and the time of
the last recovery. Pure.

A job writes the text, so each part is bounded. Event times are UTC. The first time in a line is local and is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from agent.sdk.files import SavedTexts
from agent.sdk.ranks import UNKNOWN_RANK

MAX_LINE_CHARACTERS = 4096  # The parser ignores the rest of a longer line
MAX_RANK = 1 << 20
MAX_CYCLE = 1 << 31
MAX_SCORE = 1e9
MAX_INTERRUPTED = 64  # Limit of (rank, kind) pairs per line

EVENTS = (
    *("failure_detected", "worker_terminated", "rendezvous_started", "health_check_completed"),
    *("rendezvous_completed", "worker_start_started", "worker_start_completed"),
    *("attribution_get_started", "attribution_get_completed"),
)
OTHER = "other"  # An event or interruption of a newer NVRx version
INTERRUPTIONS = ("exception", "base_exception", "soft_timeout", "hard_timeout", "terminated", "unresponsive")
LocalRanks = Mapping[tuple[str, str], str]
"""Ranks by host and local rank: since NVRx 0.5 a monitor logs no rank, or the rank in the launcher's first cycle."""

_EVENT = re.compile(
    r"Cycle: ([0-9]{1,10}) Event: ([a-z_]{1,64}) Node: [\w.:-]{1,255}_[0-9]{1,10}_[0-9]{1,10} "
    r"Rank: (?:[0-9]{1,7}|None) Time: ([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}) UTC",
    re.ASCII,
)
_MONITOR = re.compile(
    r"\[(?:[A-Za-z_]{1,64}[0-9]{1,10}@[\w.-]{1,255}:(?P<rank>[0-9]{1,7}|<none>)\] "  # NVRx 0.4
    r"|(?P<node>[\w.-]{1,255})\] \[workload:[0-9?]{1,7}\((?P<local>[0-9?]{1,7})\) infra:[0-9?]{1,7}\([0-9?]{1,7}\)\] "
    r"rank_monitor_server\.py:[0-9]{1,7} (?:\[Cycle [0-9]{1,10}\] )?)"
    r"(?:Did not get (?P<heartbeat>initial|subsequent) heartbeat\. Waited [0-9.]{1,16} seconds"
    r"|(?P<section>Section) '.{0,256}?' has been open for [0-9.]{1,16} seconds"
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
    (  # until NVRx 0.5
        "restart_of_others_failure",
        " from group_rank=",
        r"Detected (?:cluster changes|[0-9]{1,6} new nodes) from group_rank=[0-9]{1,7}.{0,64}; will restart",
    ),
    ("processes_left", "remaining processes in worker PGIDs", r"Found [1-9][0-9]{0,9} remaining processes"),
    ("gpu_memory_held", "GPU memory to be reclaimed", r"Timeout waiting for GPU memory to be reclaimed"),
    ("gpu_needs_reset", "Requires a reset to recover", r"GPU [0-9]{1,3}: Requires a reset to recover"),
    ("gpu_needs_reboot", "node reboot", r"GPU [0-9]{1,3}: .{0,128}node reboot"),
    ("gpu_needs_drain", "peer-to-peer traffic to be drained", r"GPU [0-9]{1,3}: .{0,128}peer-to-peer traffic"),
    ("gpu_degraded", "Operating at reduced capacity", r"GPU [0-9]{1,3}: .{0,128}Operating at reduced capacity"),
    ("nic_failed", "Health check FAILED", r"NIC device [\w.-]{1,64}: .{0,256}Health check FAILED"),
    ("nic_link_down", "link down counter has been incremented", r"GPU [0-9]{1,3} (?:NIC/IB|NIC|IB) .{0,64}link down"),
    ("nvlink_failed", "NVLinkWindowHealthCheck", r"NVLinkWindowHealthCheck: GPU [0-9]{1,3} unhealthy"),
    ("stop_recommended", "Attribution recommends", r"Attribution recommends stopping the job"),
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
MAX_BY_RANK = 1024  # Limit of (rank, kind) pairs per job, for time-outs and for interruptions separately
MAX_RECOVERY_SECONDS = 86_400.0
SLOW_START_SECONDS = 10.0  # A node can finish starting its workers this long after the next failure on another node
MAX_SCORES = 64  # Limit per report, which has num_gpu_perf_scores_to_print of the best and of the worst ranks

Admit = Callable[[], bool]
_Text = Annotated[str, msgspec.Meta(max_length=512)]
_ByRank = dict[tuple[_Text, _Text], SavedCount]


class Recovery(msgspec.Struct):
    """The last restart of a job, in seconds since the epoch. ``started``: when the last workers were started.

    ``progressed``: when a rank completed its first known operation after ``started``.
    """

    cycle: int
    failed: SavedSeconds
    started: SavedSeconds | None = None
    progressed: SavedSeconds | None = None


class JobEvents(msgspec.Struct):
    """Counts of one job since the exporter first read its lines. ``recovery``: None without a failure. ``heading``: the
    kind of the report that is being read; ``scored``: number of the report's lines so far."""

    events: dict[_Text, SavedCount] = {}
    timeouts: _ByRank = {}
    interruptions: _ByRank = {}
    scores: dict[tuple[_Text, _Text], SavedSeconds] = {}
    recovery: Recovery | None = None
    heading: _Text = ""
    scored: int = 0

    def take(self, line: str, ranks: LocalRanks, admit: Admit) -> None:
        """Count the event in a line; most lines have none. Lines must come in the order of their file.

        ``admit`` reserves one more series of a rank. A rank without a series counts under UNKNOWN_RANK.
        """
        text = line[:MAX_LINE_CHARACTERS]
        known = next((reader for reader in _READERS if reader[0] in text), None)
        if known is not None and (match := known[1].search(text)) is not None:
            known[2](self, match)
        if " seconds" in text and (match := _MONITOR.search(text)) is not None:
            self.take_timeout(match, ranks, admit)
        if "Interruption." in text:
            for key in islice(_interrupted(text), MAX_INTERRUPTED):
                _count(self.interruptions, key, admit)
        for name, word, pattern in _NOTICES:
            if word in text and pattern.search(text):
                self.events[name] = saved_sum(self.events.get(name, 0))
                break

    def rows(self) -> int:
        """Return the number of series of ranks in timeouts and interruptions."""
        return len(self.timeouts) + len(self.interruptions)

    def progress(self, at: float) -> None:
        """Record that a rank completed an operation at this time (seconds since the epoch)."""
        last = self.recovery
        if last is None or last.started is None or last.progressed is not None:
            return
        if last.started < at <= last.failed + MAX_RECOVERY_SECONDS:
            last.progressed = at

    def recovery_seconds(self) -> dict[str, float]:
        """Return the seconds from the last failure until workers started, and until a rank made progress."""
        last = self.recovery
        if last is None:
            return {}
        ends = {"workers_started": last.started, "progress": last.progressed}
        return {until: end - last.failed for until, end in ends.items() if end is not None and end >= last.failed}

    def take_event(self, match: re.Match[str]) -> None:
        """Count a step of a cycle. A recovery lasts from a failure to the start of the workers.

        A job that is requeued with the same id counts its cycles from 0 again.
        """
        try:
            at = datetime.fromisoformat(match[3]).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return
        cycle, event, last = int(match[1]), match[2] if match[2] in EVENTS else OTHER, self.recovery
        if cycle > MAX_CYCLE:
            return
        self.events[event] = saved_sum(self.events.get(event, 0))
        if event == "failure_detected":
            if last is None or cycle > last.cycle or (cycle == last.cycle and at > (last.started or at)):
                self.recovery = Recovery(cycle, at)
            elif cycle == last.cycle:
                last.failed = min(last.failed, at)
        elif event == "worker_start_completed" and last is not None:
            if cycle == last.cycle:
                last.started = max(last.started or at, at)
            elif cycle < last.cycle and at > (last.started or last.failed + SLOW_START_SECONDS):
                self.recovery = None

    def take_timeout(self, match: re.Match[str], ranks: LocalRanks, admit: Admit) -> None:
        """Count a rank that its monitor kills; UNKNOWN_RANK if it never reported its number or is not on this node."""
        number = match["rank"] or ranks.get((match["node"], match["local"]), "")
        rank = str(int(number)) if number.isdigit() and int(number) < MAX_RANK else UNKNOWN_RANK
        kind = match["heartbeat"] or ("section" if match["section"] else "out_of_section")
        _count(self.timeouts, (rank, kind), admit)

    def take_heading(self, match: re.Match[str]) -> None:
        """Begin a report: forget the last report of its kind."""
        self.heading, self.scored = match[1], 0
        self.scores = {key: score for key, score in self.scores.items() if key[1] != match[1]}

    def take_score(self, match: re.Match[str]) -> None:
        """Store the score of a rank's GPU, if a heading came before its line; 1 is the best score."""
        try:
            score = float(match[2])
        except ValueError:
            return
        if not self.heading or not 0 <= score <= MAX_SCORE or int(match[1]) >= MAX_RANK:
            return
        self.scores[str(int(match[1])), self.heading] = score
        self.scored += 1
        if self.scored >= MAX_SCORES:
            self.heading = ""


_READERS: tuple[tuple[str, re.Pattern[str], Callable[[JobEvents, re.Match[str]], None]], ...] = (
    (" Event: ", _EVENT, JobEvents.take_event),
    (" performance:", _SCORES, JobEvents.take_heading),
    (" Score=", _SCORE, JobEvents.take_score),
)


def _interrupted(text: str) -> Iterator[tuple[str, str]]:
    """Yield each rank with its interruption. NVRx shortens long lists of ranks to first and last (``3...12``)."""
    for name, ranks in _INTERRUPTION.findall(text):
        kind = name.lower() if name.lower() in INTERRUPTIONS else OTHER
        for first, last in _RANKS.findall(ranks):
            yield from ((str(rank), kind) for rank in range(int(first), min(int(last or first) + 1, MAX_RANK)))


def _count(counts: _ByRank, key: tuple[str, str], admit: Admit) -> None:
    if key not in counts and key[0] != UNKNOWN_RANK and (len(counts) >= MAX_BY_RANK or not admit()):
        key = (UNKNOWN_RANK, key[1])
    counts[key] = saved_sum(counts.get(key, 0))


class SavedLines(SavedTexts):
    """The checkpoint: counts from all lines read before, by job."""

    jobs: dict[Annotated[str, msgspec.Meta(max_length=256)], JobEvents] = msgspec.field(default_factory=dict)
