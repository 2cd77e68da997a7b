"""The ranks of the rank table by job and by communicator, as metric families; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from agent.core.identity import Membership
from agent.core.metrics import Family, Metric
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
JOB_TASKS = Family(
    "rankwatch_job_expected_tasks",
    "gauge",
    "Tasks of the scheduler's job step (SLURM_STEP_NUM_TASKS); with torchrun one per node, not one per rank.",
    ("job_id",),
    "1 per job under Slurm",
    "max",
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
JOB_RESTARTS_LEFT = Family(
    "rankwatch_job_restarts_left",
    "gauge",
    "Restarts that torchrun has left for the job's ranks of this node (its --max-restarts less those "
    "used). Kept after the ranks left, until their records expire; absent under other launchers.",
    ("job_id",),
    "1 per job under torchrun",
    "max",
)
JOB_RESTARTS = Family(
    "rankwatch_job_restarts",
    "gauge",
    "Restarts of the job's ranks so far, by torchrun or NVRx (TORCHELASTIC_RESTART_COUNT). Kept after the "
    "ranks left, until their records expire; absent under other launchers.",
    ("job_id",),
    "1 per job under torchrun",
    "max",
)
COMMUNICATOR_INFO = Family(
    "rankwatch_communicator_info",
    "gauge",
    "A communicator that ranks of this node belong to; always 1. ranks is how many it has, nodes is NCCL's count of "
    "NVLink domains.",
    ("job_id", "comm", "comm_name", "ranks", "nodes"),
    "1 per communicator",
    "max",
)
COMMUNICATOR_MEMBER = Family(
    "rankwatch_communicator_member_info",
    "gauge",
    "Maps a place in a communicator (comm, comm_rank) to the rank in the job; always 1.",
    ("job_id", "comm", "comm_rank", "rank"),
    "1 per rank and communicator",
    "max",
)
FAMILIES: tuple[Family, ...] = (
    JOB_RANKS,
    JOB_EXPECTED,
    JOB_TASKS,
    JOB_INFO,
    JOB_RESTARTS_LEFT,
    JOB_RESTARTS,
    COMMUNICATOR_INFO,
    COMMUNICATOR_MEMBER,
)


def render(ranks: Sequence[RankView]) -> Iterable[Metric]:
    """Render the jobs of these ranks and the communicators of those that live."""
    yield from _jobs(ranks)
    yield from _communicators(ranks)


def state_of(process: RankProcess) -> str:
    """The state that was last judged; until then, whether it runs."""
    if process.verdict is not None:
        return process.verdict.state
    return "alive" if process.exited_at is None else "exited"


def _jobs(ranks: Sequence[RankView]) -> Iterable[Metric]:
    by_state, expected, tasks, info = JOB_RANKS.rows(), JOB_EXPECTED.rows(), JOB_TASKS.rows(), JOB_INFO.rows()
    left_rows, restarts = JOB_RESTARTS_LEFT.rows(), JOB_RESTARTS.rows()
    jobs: defaultdict[str, list[RankProcess]] = defaultdict(list)
    for view in ranks:
        jobs[view.label.job_id].append(view.process)
    for job_id, members in sorted(jobs.items()):
        for name, count in sorted(Counter(map(state_of, members)).items()):
            by_state.add((job_id, name), count)
        if (left := _restarts_left(members)) is not None:
            left_rows.add((job_id,), left)
        if counts := [(p.found_at, p.claim.restarted) for p in members if p.claim.restarted is not None]:
            restarts.add((job_id,), max(counts)[1])  # what the newest says
        live = [p for p in members if p.exited_at is None]
        if not live:
            continue
        sizes = _expected(live)
        for source, size in sizes.items():
            expected.add((job_id, source), size)
        if step_tasks := max((p.claim.tasks or 0 for p in live), default=0):
            tasks.add((job_id,), step_tasks)
        info.add((job_id, *_facts(live), *_scheduled(live)), 1.0)
    return [by_state.metric, expected.metric, tasks.metric, info.metric, left_rows.metric, restarts.metric]


def _restarts_left(members: Sequence[RankProcess]) -> int | None:
    """What the job's newest processes say, the fewest where they differ; None where none says anything."""
    told = [(-p.found_at, p.claim.restarts_left) for p in members if p.claim.restarts_left is not None]
    return min(told)[1] if told else None


def _expected(live: Sequence[RankProcess]) -> dict[str, int]:
    """How many ranks the job should have, by who says so, the best first.

    A number of tasks is one of ranks where every task here is one process's; where several share one, so is WORLD_SIZE.
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


def _facts(live: Sequence[RankProcess]) -> tuple[str, str, str]:
    """User, name and world size of a job."""
    user = next((p.facts.user for p in live if p.facts is not None), "")
    name = next((p.claim.job_name for p in live if p.claim.job_name), "")
    return user, name, str(next(iter(_expected(live).values()), ""))


def _scheduled(live: Sequence[RankProcess]) -> tuple[str, str, str, str]:
    """Partition, the scheduler's cluster, nodes and restarts; empty where no rank's environment has them."""
    claims = [p.claim for p in live]
    return (
        next((claim.partition for claim in claims if claim.partition), ""),
        next((claim.cluster for claim in claims if claim.cluster), ""),
        next((claim.nodes for claim in claims if claim.nodes), ""),
        next((claim.restarts for claim in claims if claim.restarts), ""),
    )


def _communicators(ranks: Sequence[RankView]) -> Iterable[Metric]:
    info, members = COMMUNICATOR_INFO.rows(), COMMUNICATOR_MEMBER.rows()
    seen: dict[tuple[str, str], Membership] = {}
    placed: dict[tuple[str, str, str], str] = {}
    for view in ranks:
        if view.process.exited_at is not None:
            continue
        for (comm, comm_rank), membership in view.process.members.items():
            if _is_place(view, comm, comm_rank):
                seen.setdefault((view.label.job_id, comm), membership)
                placed.setdefault((view.label.job_id, comm, str(comm_rank)), view.label.rank)
    for (job_id, comm), m in seen.items():
        info.add((job_id, comm, m.name, str(m.size), str(m.nodes)), 1.0)
    for place, rank in placed.items():
        members.add((*place, rank), 1.0)
    return [info.metric, members.metric]


def _is_place(view: RankView, comm: str, comm_rank: int) -> bool:
    """True when (comm, comm_rank) is the view's own place, told by order inside a process of several ranks."""
    slots = view.process.slots or []
    if len(slots) == 1:
        return True
    local = view.process.local_ranks(comm)
    return len(local) == len(slots) and local[view.slot] == comm_rank
