"""The families, and how they are made of what the reader published. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.metrics import Family, Metric
from exporters.job_log.catalogue import advice
from exporters.job_log.reader import PublishedLogs
from exporters.job_log.tally import FirstEvent

EVENTS = Family(
    "rankwatch_job_log_events_total",
    "counter",
    "Lines of the job's own log that tell of a failure or an end, by the rank that wrote them or that they blame, what "
    "they mean and whether that can be the cause: root, cascade, confirmation, advice, benign, planned.",
    ("job_id", "rank", "category", "role"),
    "1 per rank and category seen, at most 1024 per job",
    "max",
)
FIRST_ROOT = Family(
    "rankwatch_job_log_first_root_info",
    "gauge",
    "The first line of the job's log that can be a cause, since its ranks started; one that can follow from another "
    "gives way to one that cannot. host: the one that it blames or comes from, empty where it does not say. advice: "
    "what helps, where that is certain: restart, restart_elsewhere (without the host), fix_program, fix_system. It "
    "goes when the training goes on.",
    ("job_id", "category", "rank", "host", "advice"),
    "1 per job whose log is read here",
    "max",
)
FIRST_CASCADE = Family(
    "rankwatch_job_log_first_cascade_info",
    "gauge",
    "The first line that says that others failed, where for a minute nothing said why.",
    ("job_id", "category", "rank", "host"),
    "1 per job whose log is read here",
    "max",
)
FIRST_ROOT_SECONDS = Family(
    "rankwatch_job_log_first_root_timestamp_seconds",
    "gauge",
    "When the line of rankwatch_job_log_first_root_info was read, or its file written where that was earlier.",
    ("job_id",),
    "1 per job whose log is read here",
)
LAST_WORK = Family(
    "rankwatch_job_log_last_work",
    "gauge",
    "Number of the last operation of a process group that a rank had enqueued, and completed, when its watchdog ended "
    "it: of the ranks that were least far, and of the farthest. Who has enqueued less than the others keeps them "
    "waiting.",
    ("job_id", "rank", "group", "what"),
    "10 per process group, at most 8 groups per job, after a timeout",
    "max",
)
ITERATION = Family(
    "rankwatch_train_iteration",
    "gauge",
    "The iteration that the job's log told of last.",
    ("job_id",),
    "1 per job whose log is read here",
    "max",
)
ITERATION_SECONDS = Family(
    "rankwatch_train_iteration_seconds",
    "gauge",
    "Time of one iteration: as the log tells it, else by when its lines came in the last minute.",
    ("job_id",),
    "1 per job whose log is read here",
    "max",
)
CHECKPOINT_LAST = Family(
    "rankwatch_train_checkpoint_last_success_timestamp_seconds",
    "gauge",
    "When the job's log said last that a checkpoint was saved.",
    ("job_id",),
    "1 per job whose log is read here",
    "max",
)
CHECKPOINT_SECONDS = Family(
    "rankwatch_train_checkpoint_seconds",
    "gauge",
    "How long saving the last checkpoint took, by the log's own words or by when its lines came.",
    ("job_id",),
    "1 per job whose log is read here",
    "max",
)
CHECKPOINT_BEGAN = Family(
    "rankwatch_train_checkpoint_began_timestamp_seconds",
    "gauge",
    "Since when the job saves a checkpoint; absent while it saves none.",
    ("job_id",),
    "1 per job that saves a checkpoint",
    "max",
)
FAMILIES = (
    EVENTS, FIRST_ROOT, FIRST_CASCADE, FIRST_ROOT_SECONDS, LAST_WORK, ITERATION, ITERATION_SECONDS, CHECKPOINT_LAST,
    CHECKPOINT_SECONDS, CHECKPOINT_BEGAN,
)  # fmt: skip
_OF_TRAINING = {
    ITERATION: "iteration",
    ITERATION_SECONDS: "iteration_seconds",
    CHECKPOINT_LAST: "checkpoint_ended",
    CHECKPOINT_SECONDS: "checkpoint_seconds",
    CHECKPOINT_BEGAN: "checkpoint_began",
}


def render(found: PublishedLogs) -> Iterable[Metric]:
    """Return the families of what was published."""
    rows = {family: family.rows() for family in FAMILIES}
    for job in found.jobs:
        for (rank, category, role), count in job.events.items():
            rows[EVENTS].add((job.job_id, rank, category, role), count)
        if job.root is not None:
            rows[FIRST_ROOT].add((*_labels(job.job_id, job.root), advice().get(job.root.category, "")), 1.0)
            rows[FIRST_ROOT_SECONDS].add((job.job_id,), job.root.seconds)
        if job.cascade is not None:
            rows[FIRST_CASCADE].add(_labels(job.job_id, job.cascade), 1.0)
        for one in job.positions:
            rows[LAST_WORK].add((job.job_id, one.rank, one.group, "enqueued"), one.enqueued)
            rows[LAST_WORK].add((job.job_id, one.rank, one.group, "completed"), one.completed)
        for family, name in _OF_TRAINING.items():
            value: float | None = getattr(job.progress, name)
            if value is not None:
                rows[family].add((job.job_id,), value)
    return [one.metric for one in rows.values()]


def _labels(job_id: str, first: FirstEvent) -> tuple[str, ...]:
    return job_id, first.category, first.rank, first.host
