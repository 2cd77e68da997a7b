"""What is known of the jobs of this node, as metric families; pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.sdk.metrics import Family, Metric, clean_label
from exporters.jobs.records import DIRECTORY_TROUBLES, ScheduledJob

_RUNNING = "1 per job that the scheduler runs here"
_ENDED = "1 per job that ended here in the last hour"

# fmt: off
ALLOCATION = Family("rankwatch_job_allocation_info", "gauge",
    "A job that the scheduler runs on this node, with or without ranks; always 1. scheduler_cluster is the scheduler's "
    "name of the cluster, nodes how many the job has; labels are empty where the scheduler's files do not say it.",
    ("job_id", "user", "account", "partition", "scheduler_cluster", "name", "nodes", "array_job_id", "array_task_id"),
    _RUNNING, "max")
GPU = Family("rankwatch_job_gpu_info", "gauge",
    "A GPU of this node, by its number (0.1: a part of it), that the scheduler gave to a job which runs; always 1.",
    ("job_id", "gpu"), "1 per GPU given to a job")
DIRECTORY_TROUBLE = Family("rankwatch_job_directory_trouble", "gauge",
    "1 for a job for whose records of Inspector Slurm's prolog could not make the directory as it should. taken: "
    "another user's file had its name, and was moved away. none: it made none; the TaskProlog then tries, and says in "
    "the job's output where it cannot either.",
    ("job_id", "trouble"), "1 per job in trouble", "max")
END = Family("rankwatch_job_end_info", "gauge",
    "How the scheduler ended a job here in the last hour; always 1. state: BOOT_FAIL, CANCELLED, COMPLETED, DEADLINE, "
    "FAILED, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, REQUEUED, TIMEOUT, OTHER, or UNKNOWN where only a status of 0 is "
    "known, which a cancelled job has too. The scheduler's word is on one node of the job: combine by job_id.",
    ("job_id", "state", "reason", "code", "signal"), _ENDED)
END_TIME = Family("rankwatch_job_end_timestamp_seconds", "gauge",
    "When the scheduler ended a job here in the last hour, by the node's clock.",
    ("job_id",), _ENDED, "max")
# fmt: on
FAMILIES: tuple[Family, ...] = (ALLOCATION, GPU, DIRECTORY_TROUBLE, END, END_TIME)


def render(jobs: Iterable[ScheduledJob]) -> Iterable[Metric]:
    """Render the jobs."""
    allocation, gpus, trouble = ALLOCATION.rows(), GPU.rows(), DIRECTORY_TROUBLE.rows()
    end, end_time = END.rows(), END_TIME.rows()
    for job in jobs:
        file, ending = job.file, job.ending
        if ending is not None:
            end.add((file.job_id, ending.state, ending.reason, ending.code, ending.signal), 1.0)
            end_time.add((file.job_id,), float(file.ended or 0))
            continue
        nodes = str(file.nodes) if file.nodes else ""
        who = map(clean_label, (file.user, file.account, file.partition, file.cluster, file.name))
        allocation.add((file.job_id, *who, nodes, file.array_job_id, file.array_task_id), 1.0)
        for gpu in job.gpus:
            gpus.add((file.job_id, gpu), 1.0)
        if file.records in DIRECTORY_TROUBLES:
            trouble.add((file.job_id, file.records), 1.0)
    return [rows.metric for rows in (allocation, gpus, trouble, end, end_time)]
