"""Decide when the record of an ended rank expires, and which record a full table evicts first. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from agent.core.identity import ProcessKey
from agent.ranks.rank.facts import Owner
from agent.ranks.rank.process import RankProcess

ENDED_RANK_SECONDS = 900.0
FINISHED_SECONDS = 60.0
MAX_ENDED = 128
"""Limit of ended ranks' records per user, container or Kubernetes namespace, if the records are of several jobs."""
MAX_ENDED_OF_JOB = 256
"""Limit of ended ranks' records per user, container or Kubernetes namespace, if the records are of one job."""

_Ended: TypeAlias = tuple[ProcessKey, RankProcess]


def is_over(process: RankProcess, holds_label: bool, now: float) -> bool:
    """Return True when the record of an ended process has expired.

    ``holds_label`` False: the process never had a label, or a restarted rank took its labels.
    """
    if process.exited_at is None:
        return False
    finished = not holds_label or process.shown_state == "finished"
    return now - process.exited_at > (FINISHED_SECONDS if finished else ENDED_RANK_SECONDS)


def surplus(processes: Mapping[ProcessKey, RankProcess]) -> Iterator[ProcessKey]:
    """Yield the keys of the ended ranks' records to evict: the records beyond MAX_ENDED per ``share``.

    Whole jobs are evicted, the oldest first; but jobs with a dead rank come after jobs without one, and jobs with a
    running rank come last. The last job keeps MAX_ENDED_OF_JOB records: those of dead ranks, then those of the earliest
    exits.
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
        last_job = sorted(
            jobs[ranked[-1]], key=lambda ended: (ended[1].shown_state != "dead", ended[1].exited_at or 0.0)
        )
        yield from (key for key, _ in last_job[MAX_ENDED_OF_JOB:])


def _has_dead_and_end(job: list[_Ended]) -> tuple[bool, float]:
    return any(process.shown_state == "dead" for _, process in job), max(process.exited_at or 0.0 for _, process in job)


def eviction_candidate(processes: Mapping[ProcessKey, RankProcess], owner: Owner) -> ProcessKey | None:
    """Return the key of the record that a full table evicts for a new process of ``owner``; None to refuse the process.

    The owner with the most records loses its oldest record of an ended rank. If it is the owner of the new process, its
    records of dead ranks go last. Another owner keeps its records of dead ranks, and loses its newest running process
    instead. A container or a user takes nothing from a proven job: a user can have many containers.
    """
    newcomer = owner.key
    counts = Counter(p.owner.key for p in processes.values() if not owner.is_unproven() or p.owner.is_unproven())
    most = max(counts, key=lambda owner: (counts[owner], owner != newcomer), default=newcomer)
    loser = newcomer if counts[newcomer] >= counts[most] else most
    records = [(key, process) for key, process in processes.items() if process.owner.key == loser]
    exited = [(p.shown_state == "dead", p.exited_at, key) for key, p in records if p.exited_at is not None]
    if loser == newcomer:
        return min(exited)[2] if exited else None
    if harmless := [record for record in exited if not record[0]]:
        return min(harmless)[2]
    running = [(process.found_at, key) for key, process in records if process.exited_at is None]
    return max(running)[1] if running else None
