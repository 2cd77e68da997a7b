"""The contents of the scheduler's files, with types and bounds, and the jobs that they describe. Pure."""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from agent.sdk.ranks import ExitStatus

MAX_TEXT = 256
MAX_GPUS = 64  # Limit of GPUs per job on a node
MAX_GPU_TEXT = 512
MAX_NUMBER = 1 << 40
KEPT_SECONDS = 3600.0  # How long a job is shown after its end
MAX_RUNNING = 512
MAX_ENDED = 128
"""Limit of shown ended jobs: those that ended last. If more end in an hour, the earlier jobs were already scraped."""

STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REQUEUED", "TIMEOUT"),
    }
)
"""Slurm's states of an ended job; REQUEUED: the job will run again, for an unknown reason."""
OTHER, UNKNOWN = "OTHER", "UNKNOWN"
REASONS = frozenset(
    {
        *("None", "BeginTime", "JobHeldAdmin", "JobHeldUser", "NodeDown", "NonZeroExitCode", "OutOfMemory"),
        *("Preempted", "RaisedSignal", "Requeue", "SystemFailure", "TimeLimit"),
    }
)
"""Slurm's reasons that explain an end."""

DIRECTORY_TROUBLES = frozenset({"taken", "none"})
"""Values of ``records``: problems with the directory for a job's Inspector records."""

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_JobId = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z][0-9A-Za-z_.\[\]-]{0,127}$")]
_GPU_NAME = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?", re.ASCII)
_GPU_RANGE = re.compile(r"([0-9]{1,3})-([0-9]{1,3})", re.ASCII)


class JobFile(msgspec.Struct, frozen=True):
    """The file of one job, as deploy/slurm writes it. Times are epoch seconds, 0 when unknown.

    ``ended`` None: the job runs. ``state``: the scheduler's state, empty when unknown. ``records``: the problem with
    the directory for the job's records. Further keys of a file are ignored.
    """

    job_id: _JobId
    user: _Text = ""
    account: _Text = ""
    partition: _Text = ""
    cluster: _Text = ""
    name: _Text = ""
    gpus: Annotated[str, msgspec.Meta(max_length=MAX_GPU_TEXT)] = ""
    array_job_id: _Text = ""
    array_task_id: _Text = ""
    nodes: _Number = 0
    started: _Number = 0
    ended: _Number | None = None
    exit_code: _Number | None = None
    exit_signal: _Number = 0
    state: _Text = ""
    reason: _Text = ""
    records: _Text = ""


class AmdFile(msgspec.Struct, frozen=True):
    """The file of one GPU, as the scripts of AMD's exporter write it: the environment of Slurm's prolog."""

    job_id: _JobId = msgspec.field(name="SLURM_JOB_ID")
    user: _Text = msgspec.field(name="SLURM_JOB_USER", default="")
    partition: _Text = msgspec.field(name="SLURM_JOB_PARTITION", default="")
    cluster: _Text = msgspec.field(name="SLURM_CLUSTER_NAME", default="")


class Ending(msgspec.Struct, frozen=True):
    """How a job ended. ``state``: one of STATES, OTHER or UNKNOWN; other fields are empty when unknown."""

    state: str
    reason: str = ""
    code: str = ""
    signal: str = ""


class ScheduledJob(msgspec.Struct, frozen=True):
    """One job of this node. ``gpus``: the driver's numbers of its GPUs; empty when unknown."""

    file: JobFile
    gpus: tuple[str, ...] = ()
    ending: Ending | None = None


def job_of(file: JobFile) -> ScheduledJob:
    """Return the job of one file."""
    return ScheduledJob(file, gpu_numbers(file.gpus), None if file.ended is None else ending(file))


def is_over(file: JobFile, now: float) -> bool:
    """Return True when a job ended more than KEPT_SECONDS before ``now`` (epoch seconds)."""
    return file.ended is not None and now - file.ended > KEPT_SECONDS


def bounded(jobs: Iterable[ScheduledJob]) -> tuple[tuple[ScheduledJob, ...], int]:
    """Return MAX_RUNNING running jobs and the last MAX_ENDED ended jobs, and the number of running jobs left out."""
    all_jobs = list(jobs)
    running = [job for job in all_jobs if job.file.ended is None]
    ended = [job for job in all_jobs if job.file.ended is not None]
    ended.sort(key=lambda job: (-(job.file.ended or 0), job.file.job_id))
    return (*running[:MAX_RUNNING], *ended[:MAX_ENDED]), max(len(running) - MAX_RUNNING, 0)


def ending(file: JobFile) -> Ending:
    """Return how the job of this file ended.

    Without the scheduler's state, a nonzero exit status means failure; 0 proves nothing: a cancelled job can have 0,
    too.
    """
    state = file.state
    if not state:
        state = "FAILED" if file.exit_code else UNKNOWN
    elif state not in STATES:
        state = OTHER
    reason = file.reason if file.reason in REASONS else ""
    code = "" if file.exit_code is None else str(file.exit_code)
    signal = ExitStatus(known=True, signal=file.exit_signal).signal_name
    return Ending(state, "" if reason == "None" else reason, code, signal)


def gpu_numbers(text: str) -> tuple[str, ...]:
    """Return the GPUs in a list as Slurm writes it ("0,1", "0-3"), at most MAX_GPUS; skip words that are no number."""
    numbers: dict[str, None] = {}
    for word in text.split(","):
        if among := _GPU_RANGE.fullmatch(word):
            first, last = int(among[1]), int(among[2])
            numbers.update((str(number), None) for number in range(first, min(last, first + MAX_GPUS) + 1))
        elif is_gpu(word):
            numbers[word] = None
    return tuple(numbers)[:MAX_GPUS]


def is_gpu(name: str) -> bool:
    """Return True for the number of a GPU, or of a part of a GPU ("0.1")."""
    return _GPU_NAME.fullmatch(name) is not None


def with_mappings(jobs: Iterable[ScheduledJob], mapped: Iterable[tuple[str, AmdFile]]) -> tuple[ScheduledJob, ...]:
    """Add the facts in the mappings (GPU, content of its file): the GPUs of jobs, and jobs without a file of their own.

    If a job's own file names its GPUs, the mapping's GPUs are ignored.
    """
    known = {job.file.job_id: job for job in jobs}
    gpus: dict[str, dict[str, None]] = {}
    for gpu, entry in mapped:
        stub = JobFile(entry.job_id, user=entry.user, partition=entry.partition, cluster=entry.cluster)
        known.setdefault(entry.job_id, ScheduledJob(stub))
        gpus.setdefault(entry.job_id, {})[gpu] = None
    for job_id, of_job in gpus.items():
        if not known[job_id].gpus and known[job_id].ending is None:
            known[job_id] = msgspec.structs.replace(known[job_id], gpus=tuple(of_job)[:MAX_GPUS])
    return tuple(known.values())
