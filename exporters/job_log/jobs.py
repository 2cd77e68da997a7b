"""The jobs on this node from the rank table, for the log reader. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sdk.ranks import UNKNOWN_RANK, ProcessKey, RankView

MAX_RANKS = 1 << 20
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # torchrun's variable for the file of a rank's exception


class RankHere(NamedTuple):
    """A rank process of this node. ``running``: it has not exited.

    ``uid``: None if unknown. ``contained``: it runs in a pod or container. ``error_file``: empty if none is named.
    """

    key: ProcessKey
    parent_pid: int
    rank: str
    running: bool
    uid: int | None = None
    contained: bool = False
    started_seconds: float = 0.0
    error_file: str = ""

    @property
    def pid(self) -> int:
        """Return the process id, as the agent sees it."""
        return self.key.pid


class LoggedJob(NamedTuple):
    """One job with ranks here.

    ``uids``: users of its processes. ``ids``: its ids by scheduler and launcher. ``world_size``: 0 if unknown.
    ``started_seconds``: start of its oldest running rank here, since the epoch; 0 without one.
    """

    job_id: str
    uids: frozenset[int] = frozenset()
    ids: frozenset[str] = frozenset()
    pods: frozenset[str] = frozenset()
    world_size: int = 0
    tasks_are_ranks: bool = False
    started_seconds: float = 0.0
    pids: Mapping[int, str] = {}
    ranks: tuple[RankHere, ...] = ()

    def valid_rank(self, number: int | None) -> str:
        """Return a rank number from a log as a label; UNKNOWN_RANK if the job cannot have this rank."""
        if number is None or number < 0 or not self.world_size or number >= self.world_size:
            return UNKNOWN_RANK
        return str(number)

    def has_rank_zero(self) -> bool:
        """Return whether rank 0 is here. That rank's node reads shared files that no process holds open."""
        return any(one.rank == "0" for one in self.ranks)


def jobs_of(views: Iterable[RankView]) -> dict[str, LoggedJob]:
    """Return the jobs of all ranks, also of exited ranks, by the label ``job_id``."""
    by_job: dict[str, list[RankView]] = {}
    for view in views:
        if view.process.facts is not None:
            by_job.setdefault(view.label.job_id, []).append(view)
    return {job_id: _job(job_id, found) for job_id, found in by_job.items()}


def _job(job_id: str, views: list[RankView]) -> LoggedJob:
    facts = [view.process.facts for view in views if view.process.facts is not None]
    claims = [view.process.claim for view in views]
    sizes = [size for view in views if (size := view.process.world_size) is not None]
    pids: dict[int, str] = {}
    ranks = []
    for view in views:
        known = view.process.facts
        if known is None:
            continue
        rank = view.label.rank if len(view.process.slots or ()) == 1 else UNKNOWN_RANK
        for pid in {known.key.pid, known.namespace_pid}:
            pids[pid] = rank if pids.get(pid, rank) == rank else UNKNOWN_RANK  # two containers may use the same number
        ranks.append(
            RankHere(
                known.key,
                known.parent_pid,
                rank,
                view.process.exited_at is None,
                known.uid,
                bool(known.container or known.pod),
                known.start_seconds,
                (known.environment or {}).get(ERROR_FILE, ""),
            )
        )
    started = [one.start_seconds for one, view in zip(facts, views, strict=True) if view.process.exited_at is None]
    return LoggedJob(
        job_id=job_id,
        uids=frozenset(one.uid for one in facts if one.uid is not None),
        ids=frozenset(name for one in claims if (name := one.job_id)) | {one.owner.job_id for one in facts} - {""},
        pods=frozenset(one.pod for one in facts) - {""},
        world_size=max(sizes, default=0),
        tasks_are_ranks=bool(claims) and all(one.tasks is not None and one.tasks == one.world_size for one in claims),
        started_seconds=min(started, default=0.0),
        pids=pids,
        ranks=tuple(ranks),
    )
