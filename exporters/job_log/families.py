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
FILES = Family(
    "rankwatch_job_log_files",
    "gauge",
    "Logs found, by what is done with them: followed, of_no_job_here, read_elsewhere (by the node of their writer), "
    "refused.",
    ("state",),
    "4 per node",
)
SKIPPED = Family(
    "rankwatch_job_log_skipped_total",
    "counter",
    "Files and directories that were left out of a look, by reason.",
    ("reason",),
    "1 per reason seen",
)
OVERLONG = Family("rankwatch_job_log_overlong_lines_total", "counter", "Lines of more than 1 MiB, which were not read.")
PASSED = Family(
    "rankwatch_job_log_passed_bytes_total",
    "counter",
    "Bytes of logs that were already there when a log was found and were not read: all but the last 16 MiB.",
)
LAG = Family("rankwatch_job_log_lag_bytes", "gauge", "Bytes of the logs followed that were not read yet.")
FAMILIES = (
    EVENTS, FIRST_ROOT, FIRST_CASCADE, FIRST_ROOT_SECONDS, LAST_WORK, ITERATION, ITERATION_SECONDS, CHECKPOINT_LAST,
    CHECKPOINT_SECONDS, CHECKPOINT_BEGAN, FILES, SKIPPED, OVERLONG, PASSED, LAG,
)  # fmt: skip


def render(found: PublishedLogs) -> Iterable[Metric]:
    """Turn what was published into families."""
    yield from _of_events(found)
    yield from _of_training(found)
    files, skipped = FILES.rows(), SKIPPED.rows()
    for state, count in found.files.items():
        files.add((state,), count)
    for reason, count in found.skipped.items():
        skipped.add((reason,), count)
    yield files.metric
    yield skipped.metric
    yield OVERLONG.single(found.overlong)
    yield PASSED.single(found.passed_bytes)
    yield LAG.single(found.lag_bytes)


def _of_events(found: PublishedLogs) -> Iterable[Metric]:
    events, work, seconds = EVENTS.rows(), LAST_WORK.rows(), FIRST_ROOT_SECONDS.rows()
    roots, cascades = FIRST_ROOT.rows(), FIRST_CASCADE.rows()
    for job in found.jobs:
        for (rank, category, role), count in job.events.items():
            events.add((job.job_id, rank, category, role), count)
        if job.root is not None:
            roots.add((*_labels(job.job_id, job.root), advice().get(job.root.category, "")), 1.0)
            seconds.add((job.job_id,), job.root.seconds)
        if job.cascade is not None:
            cascades.add(_labels(job.job_id, job.cascade), 1.0)
        for one in job.positions:
            work.add((job.job_id, one.rank, one.group, "enqueued"), one.enqueued)
            work.add((job.job_id, one.rank, one.group, "completed"), one.completed)
    for rows in (events, roots, cascades, seconds, work):
        yield rows.metric


def _labels(job_id: str, first: FirstEvent) -> tuple[str, ...]:
    return job_id, first.category, first.rank, first.host


def _of_training(found: PublishedLogs) -> Iterable[Metric]:
    told = {
        ITERATION: "iteration",
        ITERATION_SECONDS: "iteration_seconds",
        CHECKPOINT_LAST: "checkpoint_ended",
        CHECKPOINT_SECONDS: "checkpoint_seconds",
        CHECKPOINT_BEGAN: "checkpoint_began",
    }
    for family, name in told.items():
        rows = family.rows()
        for job in found.jobs:
            value: float | None = getattr(job.progress, name)
            if value is not None:
                rows.add((job.job_id,), value)
        yield rows.metric
