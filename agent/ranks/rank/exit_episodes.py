"""Group a job's exits on this node into episodes: a first exit, and the exits that the launcher then caused. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence, Set
from signal import SIGABRT, SIGKILL, SIGTERM, Signals

from agent.core.identity import ProcessKey
from agent.ranks.rank.evidence import VerdictReason
from agent.ranks.rank.exit_status import FATAL_SIGNALS, ExitStatus
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict_thresholds import DEFAULTS, Thresholds

SIMULTANEOUS_SECONDS = 0.1
"""Exits this close together have no known order: a struck exit (see ``struck_exits``) then counts as the earliest."""
_LAST_OWN_STATUS = 127  # shells and signal handlers exit with 128+n after signal n


def killed_before_teardown(exits: Sequence[RankProcess], thresholds: Thresholds = DEFAULTS) -> set[ProcessKey]:
    """Return each episode's first exits if they are by SIGKILL, and a running peer later failed or ended by SIGTERM.

    ``exits``: in order of time. An exit by SIGTERM within SIMULTANEOUS_SECONDS of the SIGKILL counts as later. Episodes
    lie ``episode_seconds`` apart, so a peer's exit is evidence in one episode only. If SIGKILL ended several processes
    at once, a person or program ended the job: then a peer that ended by SIGTERM is a sign of a teardown, but a peer
    that failed is not.
    """
    killed = [p for p in exits if ended_by(p, SIGKILL) and p.unproven_since is None]
    failed = [p for p in exits if _fails(p) or ended_by(p, SIGTERM)] if killed else []
    victims = preceded([p for p in exits if not ended_by(p, SIGTERM)], thresholds) if failed else set()
    killed_at = [left_at_of(process) for process in killed]
    first_killed = set()
    for process in killed:
        left_at = left_at_of(process)
        if process.key in victims:
            continue
        first = bisect_left(failed, left_at - SIMULTANEOUS_SECONDS, key=left_at_of)
        if first and _precedes(failed[first - 1], process, set(), thresholds):
            continue
        end = bisect_right(failed, left_at + thresholds.teardown_seconds, key=left_at_of)
        is_alone = _count_near(killed_at, left_at) == 1
        if any(peer.found_at < left_at and (is_alone or ended_by(peer, SIGTERM)) for peer in failed[first:end]):
            first_killed.add(process.key)
    return first_killed


def preceded(exits: Sequence[RankProcess], thresholds: Thresholds = DEFAULTS) -> set[ProcessKey]:
    """Return the processes that exited after another process of the same episode: they can be victims of a teardown.

    ``exits``: in order of time. Each process is compared with at most three exits: the last clearly earlier exit, the
    first simultaneous exit, and the first simultaneous struck exit.
    """
    struck_keys = struck_exits(exits, thresholds)
    struck = [p for p in exits if p.key in struck_keys]
    left_at, struck_at = ([left_at_of(p) for p in group] for group in (exits, struck))
    victims = set()
    for process, at in zip(exits, left_at, strict=True):
        near = bisect_left(left_at, at - SIMULTANEOUS_SECONDS)
        near_struck = bisect_left(struck_at, at - SIMULTANEOUS_SECONDS)
        others = (*exits[max(near - 1, 0) : near + 1], *struck[near_struck : near_struck + 1])
        if any(_precedes(other, process, struck_keys, thresholds) for other in others):
            victims.add(process.key)
    return victims


def lead_exits(
    exits: Sequence[RankProcess], soft: Collection[ProcessKey], thresholds: Thresholds = DEFAULTS
) -> set[ProcessKey]:
    """Return the keys of the lead exits: of each episode the first exit, the first soft exit and the first struck exit.

    ``exits``: exits of one job on this node, in order of time. ``soft``: exits by SIGTERM or of class ok, a sign that
    the job was cancelled or ended. An episode ends when no rank has exited for ``episode_seconds``, or with the run.
    """
    victims, struck = preceded(exits, thresholds), struck_exits(exits, thresholds)
    leads: set[ProcessKey] = {process.key for process in exits if process.key not in victims}
    for episode in _episodes(exits, thresholds.episode_seconds):
        for chosen in (soft, struck):
            leads.update([process.key for process in episode if process.key in chosen][:1])
    return leads


def _episodes(exits: Sequence[RankProcess], seconds: float) -> Iterator[Sequence[RankProcess]]:
    start = 0
    for number in range(1, len(exits) + 1):
        is_over = number == len(exits) or left_at_of(exits[number]) - left_at_of(exits[number - 1]) > seconds
        if is_over or exits[number].started_at > left_at_of(exits[number - 1]):
            yield exits[start:number]
            start = number


def left_at_of(process: RankProcess) -> float:
    """Return the exit time of the process, infinity while it runs."""
    return process.exited_at if process.exited_at is not None else float("inf")


def _precedes(other: RankProcess, process: RankProcess, struck: Set[ProcessKey], thresholds: Thresholds) -> bool:
    """Return True when ``other`` exited before ``process`` in the same episode, and can have caused its exit.

    An exit of the job's former run causes no exit of the next run.
    """
    apart = left_at_of(process) - left_at_of(other)
    if abs(apart) <= SIMULTANEOUS_SECONDS:
        return _order(other, struck) < _order(process, struck)
    return 0 < apart <= thresholds.episode_seconds and process.started_at <= left_at_of(other)


def _order(process: RankProcess, struck: Set[ProcessKey]) -> tuple[bool, float, ProcessKey]:
    return (process.key not in struck, left_at_of(process), process.key)


def struck_exits(exits: Sequence[RankProcess], thresholds: Thresholds = DEFAULTS) -> set[ProcessKey]:
    """Return the struck exits: by the OOM killer or a fatal signal, but not by SIGABRT after a single peer's SIGKILL.

    ``exits``: in order of time. Several SIGKILLs at once do not explain a SIGABRT: see ``killed_before_teardown``.
    """
    killed_at = [left_at_of(p) for p in exits if ended_by(p, SIGKILL) and fatal_reason(p.exit) is None]

    def follows(process: RankProcess) -> bool:
        before = bisect_right(killed_at, left_at_of(process))
        if not before or not ended_by(process, SIGABRT):
            return False
        last = killed_at[before - 1]
        is_near = left_at_of(process) - last <= thresholds.teardown_seconds
        return is_near and _count_near(killed_at, last) == 1

    return {p.key for p in exits if fatal_reason(p.exit) in ("oom_killed", "fatal_signal") and not follows(p)}


def _count_near(times: Sequence[float], at: float) -> int:
    return bisect_right(times, at + SIMULTANEOUS_SECONDS) - bisect_left(times, at - SIMULTANEOUS_SECONDS)


def _fails(process: RankProcess) -> bool:
    ends_here = process.exit is not None and process.exit.by_launcher
    return ends_here or fatal_reason(process.exit) == "failure_status" or ended_by(process, SIGABRT)


def fatal_reason(status: ExitStatus | None) -> VerdictReason | None:
    """Return the reason if this exit alone proves a death, whatever the peers do; else None."""
    if status is None or not status.known or status.by_launcher:
        return None
    if status.oom:
        return "oom_killed"
    if status.signal in FATAL_SIGNALS:
        return "fatal_signal"
    if status.signal == 0 and 1 <= status.code <= _LAST_OWN_STATUS:
        return "failure_status"
    return None


def ended_by(process: RankProcess, signal: Signals) -> bool:
    """Return True when the process is known to have ended by this signal."""
    return process.exit is not None and process.exit.known and process.exit.signal == signal
