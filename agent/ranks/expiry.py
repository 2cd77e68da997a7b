"""Ranks that left: how long their record stays in the table, and which is removed first when it is full. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from agent.core.identity import ProcessKey
from agent.ranks.rank.process import RankProcess

ENDED_SECONDS = 900.0
FINISHED_SECONDS = 60.0
MAX_ENDED = 128
"""Records of ended ranks per user (in containers: per container, in Kubernetes per namespace), but for one job's."""
MAX_ENDED_OF_JOB = 256
"""Records of ended ranks of the one job that may have more than MAX_ENDED."""

_Ended: TypeAlias = tuple[ProcessKey, RankProcess]


def is_over(process: RankProcess, holds_label: bool, now: float) -> bool:
    """True when the record of a process that left has expired.

    ``holds_label`` False: it was never bound, or a new incarnation took its labels.
    """
    if process.exited_at is None:
        return False
    finished = not holds_label or (process.verdict is not None and process.verdict.state == "finished")
    return now - process.exited_at > (FINISHED_SECONDS if finished else ENDED_SECONDS)


def surplus(processes: Mapping[ProcessKey, RankProcess]) -> Iterator[ProcessKey]:
    """Yield the records of ended ranks beyond MAX_ENDED of a user.

    Whole jobs are evicted, but not the last one: those without a rank that runs first, of these the ones without a dead
    rank, and of these the job that ended first. Of the last one the records beyond MAX_ENDED_OF_JOB are evicted: dead
    ranks' last, and of these that of the first death.
    """
    ended: defaultdict[str, defaultdict[str, list[_Ended]]] = defaultdict(lambda: defaultdict(list))
    running = set()
    for key, process in processes.items():
        if process.exited_at is None:
            running.add((process.share, process.shown_job_id))
        else:
            ended[process.share][process.shown_job_id].append((key, process))
    for user, jobs in ended.items():
        count = sum(map(len, jobs.values()))
        ranked = sorted(jobs, key=lambda job: ((user, job) in running, *_has_dead_and_end(jobs[job])))
        for job in ranked[:-1]:
            if count <= MAX_ENDED:
                break
            count -= len(jobs[job])
            yield from (key for key, _ in jobs[job])
        last = sorted(jobs[ranked[-1]], key=_death_and_end)
        yield from (key for key, _ in last[MAX_ENDED_OF_JOB:])


def _has_dead_and_end(job: list[_Ended]) -> tuple[bool, float]:
    return any(is_dead(process) for _, process in job), max(process.exited_at or 0.0 for _, process in job)


def _death_and_end(ended: _Ended) -> tuple[bool, float]:
    return not is_dead(ended[1]), ended[1].exited_at or 0.0


def gives_way(processes: Mapping[ProcessKey, RankProcess], newcomer: str) -> ProcessKey | None:
    """Who leaves a full table for a process of the owner ``newcomer`` (an ``Owner.key``); None: it is refused.

    Who holds most gives way: of its own records the oldest of a rank that left, a dead one last. A process of another
    owner may take the place of one that runs, the newest, but never that of a dead one.
    """
    held = Counter(process.owner.key for process in processes.values())
    most = max(held, key=lambda owner: (held[owner], owner != newcomer))
    giver = newcomer if held[newcomer] >= held[most] else most
    own = [(key, process) for key, process in processes.items() if process.owner.key == giver]
    left = [(is_dead(p), p.exited_at, key) for key, p in own if p.exited_at is not None]
    if giver == newcomer:
        return min(left)[2] if left else None
    if harmless := [each for each in left if not each[0]]:
        return min(harmless)[2]
    running = [(process.found_at, key) for key, process in own if process.exited_at is None]
    return max(running)[1] if running else None


def is_dead(process: RankProcess) -> bool:
    """True for a rank that was judged dead."""
    return process.verdict is not None and process.verdict.state == "dead"
