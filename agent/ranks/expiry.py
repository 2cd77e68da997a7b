"""Records of ranks that left: when they expire, and which a full table evicts first. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from agent.core.identity import ProcessKey
from agent.ranks.rank.process import RankProcess

ENDED_SECONDS = 900.0
FINISHED_SECONDS = 60.0
MAX_ENDED = 128
"""Records of ended ranks per user (per container, in Kubernetes per namespace) when they are of several jobs."""
MAX_ENDED_OF_JOB = 256
"""Records of ended ranks per user when they are of one job."""

_Ended: TypeAlias = tuple[ProcessKey, RankProcess]


def is_over(process: RankProcess, holds_label: bool, now: float) -> bool:
    """Return True when the record of a process that left has expired.

    ``holds_label`` False: it never had a label, or a new incarnation took its labels.
    """
    if process.exited_at is None:
        return False
    finished = not holds_label or (process.verdict is not None and process.verdict.state == "finished")
    return now - process.exited_at > (FINISHED_SECONDS if finished else ENDED_SECONDS)


def surplus(processes: Mapping[ProcessKey, RankProcess]) -> Iterator[ProcessKey]:
    """Yield the records of ended ranks to evict: those beyond MAX_ENDED of a user.

    Whole jobs go first, except the last: first jobs without a running rank, among them those without a dead rank, among
    them the one that ended first. The last job keeps MAX_ENDED_OF_JOB: dead ranks before others, each by time of exit.
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
        last_job = sorted(jobs[ranked[-1]], key=_death_and_end)
        yield from (key for key, _ in last_job[MAX_ENDED_OF_JOB:])


def _has_dead_and_end(job: list[_Ended]) -> tuple[bool, float]:
    return any(is_dead(process) for _, process in job), max(process.exited_at or 0.0 for _, process in job)


def _death_and_end(ended: _Ended) -> tuple[bool, float]:
    return not is_dead(ended[1]), ended[1].exited_at or 0.0


def gives_way(processes: Mapping[ProcessKey, RankProcess], newcomer: str) -> ProcessKey | None:
    """Return what a full table evicts for a process of the owner ``newcomer`` (an ``Owner.key``); None: it is refused.

    The owner with most loses the oldest record of a rank that left. For its own process a dead rank's record goes last.
    For another owner's it never goes; without any other record, the newest running process does.
    """
    held = Counter(process.owner.key for process in processes.values())
    most = max(held, key=lambda owner: (held[owner], owner != newcomer))
    loser = newcomer if held[newcomer] >= held[most] else most
    crowded = [(key, process) for key, process in processes.items() if process.owner.key == loser]
    exited = [(is_dead(p), p.exited_at, key) for key, p in crowded if p.exited_at is not None]
    if loser == newcomer:
        return min(exited)[2] if exited else None
    if harmless := [record for record in exited if not record[0]]:
        return min(harmless)[2]
    running = [(process.found_at, key) for key, process in crowded if process.exited_at is None]
    return max(running)[1] if running else None


def is_dead(process: RankProcess) -> bool:
    """Return True for a rank that was judged dead."""
    return process.verdict is not None and process.verdict.state == "dead"
