"""Render `/metrics?collect[]=liveness`: the jobs on this node, for rules that need fresh series. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agent.core.metrics import Family, Metric, declared
from agent.ranks.liveness.job_liveness import ENDED_JOB_SECONDS, EXPLAINS_SECONDS, JobLiveness
from agent.ranks.rank.process import RankProcess
from agent.ranks.snapshot import PublishedProcess, RankSnapshot, RankView

# fmt: off
JOB_EXPECTED = Family("rankwatch_job_expected_ranks", "gauge",
    "Ranks that the whole job should have, by source: environment (WORLD_SIZE and the like), "
    "communicator, or tasks (one rank per task of the scheduler's step). Use the first source that "
    "exists, not the largest value.",
    ("job_id", "source"), "3 per job", "max")
JOB_RESTARTS_LEFT = Family("rankwatch_job_restarts_left", "gauge",
    "Restarts that torchrun can still make for the job's ranks on this node: --max-restarts minus those "
    "used. Kept after the ranks' exit until their records expire; absent under other launchers.",
    ("job_id",), "1 per job under torchrun", "min")
RANKS_LIVE = Family("rankwatch_job_ranks_live", "gauge",
    "Ranks of the job that run on this node and have no SIGKILL pending; 0 for 15 minutes after the last rank's exit.",
    ("job_id",), "1 per job", "sum")
START_AGE = Family("rankwatch_job_start_age_seconds", "gauge",
    "Time since the oldest rank of the job's latest run on this node started. state: live, or ended for 30 minutes "
    "after the last rank's exit.",
    ("job_id", "state"), "1 per job", "none")
PROGRESS_AGE = Family("rankwatch_job_progress_age_seconds", "gauge",
    "Time since a rank of the job on this node last completed an operation, from records; absent without records or "
    "ranks.",
    ("job_id",), "1 per job with records", "none")
LONGEST_PAUSE = Family("rankwatch_job_longest_pause_seconds", "gauge",
    "The longest time so far between two completed operations of the job on this node. A pause this long is normal.",
    ("job_id",), "1 per job with records", "max")
ENDED_AGE = Family("rankwatch_job_ended_age_seconds", "gauge",
    "Time since the scheduler ended the job, by state (CANCELLED, PREEMPTED, TIMEOUT, DEADLINE); for 30 minutes. "
    "This end explains exits from 300 s before it to 60 s after it.",
    ("job_id", "state"), "1 per job that the scheduler ended", "none")
PROVEN = Family("rankwatch_job_proven", "gauge",
    "1 if it is proven that rank 0 of the job runs on this node: by the scheduler's cgroup, by a parent process of the "
    "scheduler, or by a pod. 0 without a proof. A node that proves only other ranks has no series.",
    ("job_id",), "1 per job", "none")
EXIT_AGE = Family("rankwatch_exit_age_seconds", "gauge",
    "Time since a lead exit. Of exits at most 60 s apart these are lead exits: the first, the first by SIGTERM or of "
    "class ok, and the first by OOM or a fatal signal. -1 for 5 minutes after it became invalid: the rank or the job "
    "runs again, the class changed, the exit is too old, or the limit is reached. class: oom, crash (SEGV, BUS, ILL, "
    "FPE, TRAP, SYS), fail (ABRT, status 1 to 127), torn (SIGKILL, then SIGTERM or a failure of a peer on this node), "
    "killed (SIGKILL), left (SIGTERM, status 0, others), ok (finished, planned, or ended by the scheduler), reboot "
    "(ran when the machine went down). lived: short below 600 s, else long.",
    ("job_id", "rank", "reason", "signal", "code", "class", "lived", "cause", "user"),
    "3 per job with exits, 64 per node, and retracted ones")
# fmt: on
FAMILIES = declared(globals())


def families(snapshot: RankSnapshot) -> Iterable[Metric]:
    """Render the liveness page from the rank table."""
    expected, left_rows = JOB_EXPECTED.rows(), JOB_RESTARTS_LEFT.rows()
    for job_id, members in by_job(snapshot.ranks).items():
        if (restarts := _restarts_left(members)) is not None:
            left_rows.add((job_id,), restarts)
        live = [process for process in members if process.exited_at is None]
        for source, size in (expected_ranks(live) if live else {}).items():
            expected.add((job_id, source), size)
    yield expected.metric
    yield left_rows.metric
    yield from _job_metrics(snapshot.jobs, snapshot.taken_at)


def by_job(ranks: Iterable[RankView]) -> Mapping[str, Sequence[PublishedProcess]]:
    """Return the processes of a snapshot's ranks, grouped by job."""
    jobs: defaultdict[str, list[PublishedProcess]] = defaultdict(list)
    for view in ranks:
        jobs[view.label.job_id].append(view.process)
    return jobs


def _restarts_left(members: Sequence[RankProcess]) -> int | None:
    """Return the restarts left that the newest process names; of several newest processes, the lowest number."""
    restarts = [(-p.found_at, p.claim.restarts_left) for p in members if p.claim.restarts_left is not None]
    return min(restarts)[1] if restarts else None


def expected_ranks(live: Sequence[RankProcess]) -> dict[str, int]:
    """Return how many ranks the job should have, by source, the most reliable source first.

    The source `environment` (WORLD_SIZE) is omitted if ranks share their task's environment. The source `tasks` is
    omitted unless each task on this node is one process.
    """
    is_shared = any(p.has_anothers_environment() for p in live)
    sizes = {
        "environment": 0 if is_shared else max(p.world_size or 0 for p in live),
        "communicator": max((m.size for p in live for m in p.members.values()), default=0),
    }
    steps = {(p.claim.tasks, p.claim.local_tasks) for p in live}
    [(total_tasks, local_tasks), *others] = steps
    if not others and total_tasks and local_tasks == len(live) == len({p.claim.task for p in live}):
        sizes["tasks"] = total_tasks
    return {source: size for source, size in sizes.items() if size}


def _job_metrics(jobs: Mapping[str, JobLiveness], now: float) -> Iterable[Metric]:
    live, start, progress = RANKS_LIVE.rows(), START_AGE.rows(), PROGRESS_AGE.rows()
    pause, ended, proven, exits = LONGEST_PAUSE.rows(), ENDED_AGE.rows(), PROVEN.rows(), EXIT_AGE.rows()
    for job_id, job in sorted(jobs.items()):
        is_shown = job.left_at is None or now - job.left_at <= ENDED_JOB_SECONDS
        if is_shown and job.live is not None:
            live.add((job_id,), job.live)
        if job.left_at is None or now - job.left_at <= EXPLAINS_SECONDS:
            start.add((job_id, "ended" if job.live == 0 else "live"), now - job.started_at)
        if job.progress_at is not None and is_shown:
            if job.left_at is None:
                progress.add((job_id,), now - job.progress_at)
            pause.add((job_id,), job.longest_pause)
        if job.end_state and now - job.end_at <= EXPLAINS_SECONDS:
            ended.add((job_id, job.end_state), now - job.end_at)
        if job.proves_first or not job.proven:
            proven.add((job_id,), float(job.proves_first))
        ages = {}
        for lead in job.leads:  # among lead exits with equal labels the newest counts
            ages[lead.labels()] = -1.0 if lead.retracted_at is not None else now - lead.exited_at
        for labels, age in ages.items():
            exits.add((job_id, *labels), age)
    return [rows.metric for rows in (live, start, progress, pause, ended, proven, exits)]
