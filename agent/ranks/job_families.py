"""The ranks of the rank table by job, for people and dashboards, as metric families; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from agent.core.metrics import Family, Metric
from agent.ranks.liveness_page import by_job, expected_ranks
from agent.ranks.rank.process import RankProcess
from agent.ranks.snapshot import RankView

JOB_RANKS = Family(
    "rankwatch_job_ranks",
    "gauge",
    "Ranks of the job on this node, by state; states without ranks have no series.",
    ("job_id", "state"),
    "1 to 6 per job",
    "sum",
)
JOB_INFO = Family(
    "rankwatch_job_info",
    "gauge",
    "Facts about a job with live ranks here, as far as its environment has them; always 1. scheduler_cluster is "
    "Slurm's name of the cluster, restarts counts requeues (Slurm) or restarts (torchrun, JobSet).",
    ("job_id", "user", "name", "world_size", "partition", "scheduler_cluster", "nodes", "restarts"),
    "1 per job",
    "max",
)
FAMILIES: tuple[Family, ...] = (
    JOB_RANKS,
    JOB_INFO,
)


def state_of(process: RankProcess) -> str:
    """Return the state that was last judged; until then, whether it runs."""
    if process.verdict is not None:
        return process.verdict.state
    return "alive" if process.exited_at is None else "exited"


def render(ranks: Sequence[RankView]) -> Iterable[Metric]:
    """Render the jobs of these ranks."""
    by_state, info = JOB_RANKS.rows(), JOB_INFO.rows()
    for job_id, members in by_job(ranks).items():
        for name, count in sorted(Counter(map(state_of, members)).items()):
            by_state.add((job_id, name), count)
        live = [p for p in members if p.exited_at is None]
        if not live:
            continue
        info.add((job_id, *_facts(live), *_scheduled(live)), 1.0)
    return [by_state.metric, info.metric]


def _facts(live: Sequence[RankProcess]) -> tuple[str, str, str]:
    """User, name and world size of a job."""
    user = next((p.facts.user for p in live if p.facts is not None), "")
    name = next((p.claim.job_name for p in live if p.claim.job_name), "")
    return user, name, str(next(iter(expected_ranks(live).values()), ""))


def _scheduled(live: Sequence[RankProcess]) -> tuple[str, str, str, str]:
    """Partition, the scheduler's cluster, nodes and restarts; empty where no rank's environment has them."""
    claims = [p.claim for p in live]
    return (
        next((claim.partition for claim in claims if claim.partition), ""),
        next((claim.cluster for claim in claims if claim.cluster), ""),
        next((claim.nodes for claim in claims if claim.nodes), ""),
        next((claim.restarts for claim in claims if claim.restarts), ""),
    )
