"""Reads the scheduler's files once a second, and reports to the rank table how jobs ended."""

import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import Context, ExporterConfig, NoData, ShownExporter, Spec
from agent.sdk.metrics import Family, Metric, clean_label
from agent.sdk.ranks import JobEnd
from exporters.jobs.gpu_mapping import GpuMapping, jobs_of_gpus
from exporters.jobs.records import DIRECTORY_TROUBLES, ScheduledJob
from exporters.jobs.sources import JobSources

# fmt: off
ALLOCATION = Family("rankwatch_job_allocation_info", "gauge",
    "A job that the scheduler runs on this node, with or without ranks; always 1. scheduler_cluster is the scheduler's "
    "name of the cluster, nodes the job's number of nodes; a label is empty if the scheduler's files lack it.",
    ("job_id", "user", "account", "partition", "scheduler_cluster", "name", "nodes", "array_job_id", "array_task_id"),
    "1 per job that the scheduler runs on this node", "max")
GPU = Family("rankwatch_job_gpu_info", "gauge",
    "A GPU of this node, by its number (0.1: a part of GPU 0), that the scheduler gave to a running job; always 1.",
    ("job_id", "gpu"), "1 per GPU given to a job")
DIRECTORY_TROUBLE = Family("rankwatch_job_directory_trouble", "gauge",
    "1 for a job if Slurm's prolog could not properly create the directory for its Inspector records. taken: another "
    "user's file had the directory's name, and was moved away. none: the prolog created no directory; then the "
    "TaskProlog tries to create it, and the job's output says if that fails, too.",
    ("job_id", "trouble"), "1 per job in trouble", "max")
END = Family("rankwatch_job_end_timestamp_seconds", "gauge",
    "Time at which the scheduler ended a job on this node (node's clock; jobs of the last hour), with the state. "
    "state: BOOT_FAIL, CANCELLED, "
    "COMPLETED, DEADLINE, FAILED, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, REQUEUED, TIMEOUT, OTHER, or UNKNOWN if only an "
    "exit status of 0 is known, which a cancelled job has too. One node of the job exports the scheduler's state: "
    "combine by job_id.",
    ("job_id", "state", "reason", "code", "signal"),
    "1 per job that ended on this node in the last hour", "max")
# fmt: on
FAMILIES: tuple[Family, ...] = (ALLOCATION, GPU, DIRECTORY_TROUBLE, END)


def render(jobs: Iterable[ScheduledJob]) -> Iterable[Metric]:
    """Return the families of the jobs."""
    allocation, gpus, trouble = ALLOCATION.rows(), GPU.rows(), DIRECTORY_TROUBLE.rows()
    end = END.rows()
    for job in jobs:
        file, ending = job.file, job.ending
        if ending is not None:
            end.add((file.job_id, ending.state, ending.reason, ending.code, ending.signal), float(file.ended or 0))
            continue
        nodes = str(file.nodes) if file.nodes else ""
        who = map(clean_label, (file.user, file.account, file.partition, file.cluster, file.name))
        allocation.add((file.job_id, *who, nodes, file.array_job_id, file.array_task_id), 1.0)
        for gpu in job.gpus:
            gpus.add((file.job_id, gpu), 1.0)
        if file.records in DIRECTORY_TROUBLES:
            trouble.add((file.job_id, file.records), 1.0)
    return [rows.metric for rows in (allocation, gpus, trouble, end)]


MAX_OWNERS = 16

_Path = Annotated[str, msgspec.Meta(pattern=r"^(/[^\0]*)?$", max_length=4096)]
_Uid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 2)]


class JobsConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``directory``: has the files of jobs. ``dcgm_mapping``, ``amd_mapping``: have the files of GPUs. Empty: the
    default directory; ``dcgm_mapping`` has no default. ``write_dcgm_mapping``: a directory in which the exporter writes
    dcgm-exporter's files from the rank table, if set. ``owner_uids``: trusted users besides root and the agent's user.
    """

    directory: _Path = ""
    dcgm_mapping: _Path = ""
    amd_mapping: _Path = ""
    write_dcgm_mapping: _Path = ""
    owner_uids: Annotated[list[_Uid], msgspec.Meta(max_length=MAX_OWNERS)] = msgspec.field(default_factory=list)


class JobsExporter(ShownExporter[tuple[ScheduledJob, ...]]):
    """Exports the scheduler's jobs on this node."""

    def __init__(self, config: JobsConfig) -> None:
        super().__init__((), render)
        self._config = config
        self._refused: Counter[str] = Counter()
        self._mapping = GpuMapping(Path(config.write_dcgm_mapping)) if config.write_dcgm_mapping else None

    async def start(self, ctx: Context) -> None:
        """Prepare the thread and the sources; no file is read yet."""
        self._ctx = ctx
        self._thread = ctx.thread("jobs")
        config, run = self._config, ctx.roots.run
        self._sources = JobSources(
            jobs=Path(config.directory) if config.directory else run / "rankwatch/jobs",
            dcgm=Path(config.dcgm_mapping) if config.dcgm_mapping else None,
            amd=Path(config.amd_mapping) if config.amd_mapping else run / "exporter",
            owners={0, os.geteuid(), *config.owner_uids},
        )

    async def update(self) -> None:
        """Read the directories once; NoData if no directory exists."""
        now = self._ctx.clock.time()
        if self._mapping is not None:
            write = partial(self._mapping.write, jobs_of_gpus(self._ctx.ranks.snapshot().ranks))
            await self._thread.call(partial(self._ctx.failures.attempt, "the mapping of GPUs", write))
        answer = await self._thread.call(lambda: self._sources.look(now))
        if answer is None:
            self.shown = ()
            raise NoData
        self.shown, refused = answer
        if refused != self._refused:
            self._refused = refused
            if refused:
                self._ctx.log.warning("files about jobs are ignored, by reason: {refused}", refused=dict(refused))
        self._ctx.ranks.observe_job_ends(ends(self.shown))


def ends(jobs: Iterable[ScheduledJob]) -> list[JobEnd]:
    """Return the ends of jobs for the rank table."""
    return [
        JobEnd(job.file.job_id, job.file.started, job.file.ended, job.ending.state)
        for job in jobs
        if job.ending is not None and job.file.ended is not None
    ]


SPEC = Spec(
    name="jobs",
    config=JobsConfig,
    build=JobsExporter,
    interval_seconds=1.0,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=5_000,
)
