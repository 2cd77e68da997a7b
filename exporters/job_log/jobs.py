"""The jobs on this node from the rank table, for the log reader. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.sdk.ranks import UNKNOWN_RANK, RankSnapshot, RankView, local_ranks

MAX_RANKS = 1 << 20
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torchrun's variable for the file of a rank's exception


class LoggedJob(NamedTuple):
    """One job with ranks on this node.

    ``uids``: users of its processes. ``ids``: its job ids from scheduler and launcher. ``world_size``: 0 if unknown.
    ``started_seconds``: start of its oldest running rank on this node, since the epoch; 0 if no rank runs.
    ``local_ranks``: its ranks by host name (empty: any host name of this node) and local rank. ``hostnames``: names of
    this node and of the job's containers, which all count as this node's name.
    """

    job_id: str
    uids: frozenset[int] = frozenset()
    ids: frozenset[str] = frozenset()
    pods: frozenset[str] = frozenset()
    world_size: int = 0
    tasks_are_ranks: bool = False
    started_seconds: float = 0.0
    pids: Mapping[int, str] = {}
    ranks: tuple[RankView, ...] = ()
    local_ranks: Mapping[tuple[str, str], str] = {}
    hostnames: frozenset[str] = frozenset()

    def valid_rank(self, number: int | None) -> str:
        """Return a rank number from a log as a label; UNKNOWN_RANK if the job cannot have this rank."""
        if number is None or number < 0 or not self.world_size or number >= self.world_size:
            return UNKNOWN_RANK
        return str(number)

    def has_rank_zero(self) -> bool:
        """Return True if rank 0 is on this node. The node of rank 0 reads shared files that no process holds open."""
        return any(rank_of(view) == "0" for view in self.ranks)


def rank_of(view: RankView) -> str:
    """Return the rank of a process; UNKNOWN_RANK if it has several."""
    return view.label.rank if len(view.process.slots or ()) == 1 else UNKNOWN_RANK


def jobs_of(snapshot: RankSnapshot) -> dict[str, LoggedJob]:
    """Return the jobs of all ranks, even exited ranks, by the label ``job_id``."""
    by_job: dict[str, list[RankView]] = {}
    for view in snapshot.ranks:
        by_job.setdefault(view.label.job_id, []).append(view)
    return {job_id: _job(job_id, views, snapshot) for job_id, views in by_job.items()}


def _job(job_id: str, views: list[RankView], snapshot: RankSnapshot) -> LoggedJob:
    facts = [view.process.facts for view in views]
    hostnames = snapshot.hostnames_of({process.uid for process in facts})
    claims = [view.process.claim for view in views]
    sizes = [size for view in views if (size := view.process.world_size) is not None]
    pids: dict[int, str] = {}
    for view in views:
        rank = rank_of(view)
        for pid in {view.process.facts.key.pid, view.process.facts.namespace_pid}:
            pids[pid] = rank if pids.get(pid, rank) == rank else UNKNOWN_RANK  # two containers may use the same pid
    started = [view.process.facts.start_seconds for view in views if view.process.exited_at is None]
    return LoggedJob(
        job_id=job_id,
        uids=frozenset(process.uid for process in facts if process.uid is not None),
        ids=frozenset(name for claim in claims if (name := claim.job_id))
        | {process.owner.job_id for process in facts} - {""},
        pods=frozenset(process.pod for process in facts) - {""},
        world_size=max(sizes, default=0),
        tasks_are_ranks=bool(claims)
        and all(claim.tasks is not None and claim.tasks == claim.world_size for claim in claims),
        started_seconds=min(started, default=0.0),
        pids=pids,
        ranks=tuple(views),
        local_ranks=local_ranks(views, hostnames),
        hostnames=hostnames,
    )
