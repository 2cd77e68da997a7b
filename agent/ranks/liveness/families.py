"""The series of liveness that rules read: per job and node, as ages in seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.core.metrics import Family, Metric
from agent.ranks.liveness.job_line import ENDED_SECONDS, JobLine

RANKS_LIVE = Family(
    "rankwatch_job_ranks_live",
    "gauge",
    "Ranks of the job that run on this node and have no SIGKILL pending; 0 for 15 minutes after the last one left.",
    ("job_id",),
    "1 per job",
    "sum",
)
START_AGE = Family(
    "rankwatch_job_start_age_seconds",
    "gauge",
    "Time since the oldest rank of the job's latest run on this node started; kept for 15 minutes after the last "
    "rank left.",
    ("job_id",),
    "1 per job",
    "none",
)
PROGRESS_AGE = Family(
    "rankwatch_job_progress_age_seconds",
    "gauge",
    "Time since the job's newest completed operation on this node, by records; absent without records or ranks.",
    ("job_id",),
    "1 per job with records",
    "none",
)
LONGEST_PAUSE = Family(
    "rankwatch_job_longest_pause_seconds",
    "gauge",
    "The longest time between two completed operations of the job on this node so far: normal for this job.",
    ("job_id",),
    "1 per job with records",
    "max",
)
ENDED_AGE = Family(
    "rankwatch_job_ended_age_seconds",
    "gauge",
    "Time since the scheduler ended the job, by state (CANCELLED, PREEMPTED, TIMEOUT, DEADLINE); for 15 minutes. "
    "It explains exits from 300 s before it to 60 s after it.",
    ("job_id", "state"),
    "1 per job that the scheduler ended",
    "none",
)
PROVEN = Family(
    "rankwatch_job_proven",
    "gauge",
    "0 where nothing proves that the processes here are of the job that they name; 1 on the node of a rank 0 that the "
    "scheduler's cgroup, its parent process or a pod proves. No series on other nodes of a proven job.",
    ("job_id",),
    "1 per job",
    "none",
)
EXIT_AGE = Family(
    "rankwatch_exit_age_seconds",
    "gauge",
    "Time since a lead exit: of exits at most 60 s apart the first, the first by SIGTERM or ok, the first by OOM or a "
    "fatal signal. -1 for 5 minutes once retracted: rank or job runs again, class changed, too old, no room. class: "
    "oom, crash (SEGV, BUS, ILL, FPE, TRAP, SYS), fail (ABRT, status 1 to 127), torn (SIGKILL, then SIGTERM for a peer "
    "here), killed (SIGKILL), left (SIGTERM, status 0, others), ok (finished, planned, or ended by the scheduler), "
    "reboot (ran when the machine went down). lived: short below 600 s, else long.",
    ("job_id", "rank", "reason", "signal", "code", "class", "lived", "cause", "user"),
    "3 per job with exits, 64 per node, and retracted ones",
)
FAMILIES: tuple[Family, ...] = (RANKS_LIVE, START_AGE, PROGRESS_AGE, LONGEST_PAUSE, ENDED_AGE, PROVEN, EXIT_AGE)
RETRACTED = -1.0


def render(jobs: Mapping[str, JobLine], now: float) -> Iterable[Metric]:
    """Render the lines of all jobs, by id, at ``now`` (seconds since the boot)."""
    live, start, progress = RANKS_LIVE.rows(), START_AGE.rows(), PROGRESS_AGE.rows()
    pause, ended, proven, exits = LONGEST_PAUSE.rows(), ENDED_AGE.rows(), PROVEN.rows(), EXIT_AGE.rows()
    for job_id, line in sorted(jobs.items()):
        is_shown = line.left_at is None or now - line.left_at <= ENDED_SECONDS
        if is_shown and line.live is not None:
            live.add((job_id,), line.live)
        if is_shown:
            start.add((job_id,), now - line.started_at)
        if line.progress_at is not None and is_shown:
            if line.left_at is None:
                progress.add((job_id,), now - line.progress_at)
            pause.add((job_id,), line.longest_pause)
        if line.end_state and now - line.end_at <= ENDED_SECONDS:
            ended.add((job_id, line.end_state), now - line.end_at)
        if line.proves_first or not line.proven:
            proven.add((job_id,), float(line.proves_first))
        ages = {}
        for lead in line.leads:  # the newest of equal labels counts
            ages[lead.labels()] = RETRACTED if lead.retracted_at is not None else now - lead.exited_at
        for labels, age in ages.items():
            exits.add((job_id, *labels), age)
    return [rows.metric for rows in (live, start, progress, pause, ended, proven, exits)]
