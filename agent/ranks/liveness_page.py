"""The liveness page, `collect[]=liveness`: the jobs on this node, for rules that need fresh series. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agent.core.metrics import Family, Metric
from agent.ranks.liveness import families as liveness_families
from agent.ranks.rank.process import RankProcess
from agent.ranks.snapshot import RankSnapshot, RankView

JOB_EXPECTED = Family(
    "rankwatch_job_expected_ranks",
    "gauge",
    "Ranks that the whole job should have, by source: environment (WORLD_SIZE and the like), "
    "communicator, or tasks (one rank per task of the scheduler's step). Use the first source that "
    "exists, not the largest value.",
    ("job_id", "source"),
    "3 per job",
    "max",
)
JOB_RESTARTS_LEFT = Family(
    "rankwatch_job_restarts_left",
    "gauge",
    "Restarts that torchrun has left for the job's ranks of this node (its --max-restarts less those "
    "used). Kept after the ranks left, until their records expire; absent under other launchers.",
    ("job_id",),
    "1 per job under torchrun",
    "max",
)
FAMILIES: tuple[Family, ...] = (JOB_EXPECTED, JOB_RESTARTS_LEFT, *liveness_families.FAMILIES)


def families(snapshot: RankSnapshot) -> Iterable[Metric]:
    """Render the page from the rank table."""
    expected, left_rows = JOB_EXPECTED.rows(), JOB_RESTARTS_LEFT.rows()
    for job_id, members in by_job(snapshot.ranks).items():
        if (left := _restarts_left(members)) is not None:
            left_rows.add((job_id,), left)
        live = [process for process in members if process.exited_at is None]
        for source, size in (expected_ranks(live) if live else {}).items():
            expected.add((job_id, source), size)
    yield expected.metric
    yield left_rows.metric
    yield from liveness_families.render(snapshot.jobs, snapshot.taken_at)


def by_job(ranks: Iterable[RankView]) -> Mapping[str, Sequence[RankProcess]]:
    """Return the processes of these ranks by job, in the order of the jobs' ids."""
    jobs: defaultdict[str, list[RankProcess]] = defaultdict(list)
    for view in ranks:
        jobs[view.label.job_id].append(view.process)
    return dict(sorted(jobs.items()))


def _restarts_left(members: Sequence[RankProcess]) -> int | None:
    """Return what the newest process says, of equally new ones the fewest; None if no process says anything."""
    restarts = [(-p.found_at, p.claim.restarts_left) for p in members if p.claim.restarts_left is not None]
    return min(restarts)[1] if restarts else None


def expected_ranks(live: Sequence[RankProcess]) -> dict[str, int]:
    """Return how many ranks the job should have, by source, the most reliable source first.

    WORLD_SIZE does not count ranks if ranks share the environment of their task: then there is no source environment.
    The number of tasks counts ranks only if each task here is one process.
    """
    is_shared = any(p.has_anothers_environment() for p in live)
    found = {
        "environment": 0 if is_shared else max((p.world_size or 0 for p in live), default=0),
        "communicator": max((m.size for p in live for m in p.members.values()), default=0),
    }
    steps = {(p.claim.tasks, p.claim.local_tasks) for p in live}
    [(in_all, here), *others] = steps
    if not others and in_all and here == len(live) == len({p.claim.task for p in live}):
        found["tasks"] = in_all
    return {source: size for source, size in found.items() if size}
