"""The metric families, and their rendering from the reader's results. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.metrics import Family, Metric
from exporters.job_log.catalogue import failures
from exporters.job_log.reader import PublishedLogs

_EACH = "1 per job whose log is read on this node"

# fmt: off
EVENTS = Family(
    "rankwatch_job_log_events_total", "counter",
    "Lines about failures and exits in the job's own log. rank: the rank that the line blames, else its writer. role: "
    "whether the category can be the cause (root, cascade, confirmation, advice, benign, planned).",
    ("job_id", "rank", "category", "role"), "1 per rank and category seen, at most 1024 per job", "max")
FIRST_ROOT = Family(
    "rankwatch_job_log_first_root_timestamp_seconds", "gauge",
    "Time of the first root cause in the job's log since its ranks started: when the line was read, or when the log "
    "was last written if earlier. A certain later cause replaces a cause that is uncertain or 5 minutes older. host: "
    "the host that the line blames or comes from, empty if unknown. advice, if certain: restart, restart_elsewhere "
    "(without the host), fix_program or fix_system. The series ends when the training makes progress.",
    ("job_id", "category", "rank", "host", "advice"), _EACH, "max")
LAST_WORK = Family(
    "rankwatch_job_log_last_work", "gauge",
    "Number of the last operation that the rank had enqueued or completed (label what) in the process group, as the "
    "rank's NCCL watchdog logged after a timeout on any rank. The 4 ranks with the lowest numbers and the rank with "
    "the highest number are shown. A rank with a lower enqueued number blocks the others.",
    ("job_id", "rank", "group", "what"), "10 per process group, at most 8 groups per job, after a timeout", "max")
# fmt: on


def _training(name: str, text: str, cost: str = _EACH) -> Family:
    return Family(name, "gauge", text, ("job_id",), cost, "max")


ITERATION = _training("rankwatch_train_iteration", "Last iteration in the job's log.")
ITERATION_SECONDS = _training(
    "rankwatch_train_iteration_seconds",
    "Duration of one iteration: from the log line, else from the times of lines in the last minute.",
)
CHECKPOINT_LAST = _training(
    "rankwatch_train_checkpoint_last_success_timestamp_seconds",
    "Time of the last line about a saved checkpoint in the job's log.",
)
CHECKPOINT_SECONDS = _training(
    "rankwatch_train_checkpoint_seconds",
    "Duration of the last checkpoint save: from the log line, else the time between the lines of begin and end.",
)
CHECKPOINT_BEGAN = _training(
    "rankwatch_train_checkpoint_began_timestamp_seconds",
    "Start time of the checkpoint save in progress; absent without one.",
    "1 per job that saves a checkpoint",
)
FAMILIES = (
    EVENTS, FIRST_ROOT, LAST_WORK, ITERATION, ITERATION_SECONDS, CHECKPOINT_LAST,
    CHECKPOINT_SECONDS, CHECKPOINT_BEGAN,
)  # fmt: skip
_OF_TRAINING = {
    ITERATION: "iteration",
    ITERATION_SECONDS: "iteration_seconds",
    CHECKPOINT_LAST: "checkpoint_ended",
    CHECKPOINT_SECONDS: "checkpoint_seconds",
    CHECKPOINT_BEGAN: "checkpoint_began",
}


def render(logs: PublishedLogs) -> Iterable[Metric]:
    """Return the families of the reader's result."""
    rows = {family: family.rows() for family in FAMILIES}
    for job in logs.jobs:
        for (rank, category, role), count in job.events.items():
            rows[EVENTS].add((job.job_id, rank, category, role), count)
        if job.root is not None:
            root, advice = job.root, failures().advice.get(job.root.category, "")
            rows[FIRST_ROOT].add((job.job_id, root.category, root.rank, root.host, advice), root.seconds)
        for position in job.positions:
            rows[LAST_WORK].add((job.job_id, position.rank, position.group, "enqueued"), position.enqueued)
            rows[LAST_WORK].add((job.job_id, position.rank, position.group, "completed"), position.completed)
        for family, name in _OF_TRAINING.items():
            value: float | None = getattr(job.progress, name)
            if value is not None:
                rows[family].add((job.job_id,), value)
    return [row.metric for row in rows.values()]
