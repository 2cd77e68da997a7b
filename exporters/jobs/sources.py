"""The directories with files of jobs, read together. Blocking; used from one thread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from exporters.jobs.directory import TrustedDirectory
from exporters.jobs.records import AmdFile, JobFile, ScheduledJob, bounded, is_gpu, is_over, job_of, with_mappings

MAX_JOBS_PER_GPU = 16
"""Of one GPU in dcgm-exporter's mapping."""
CLOCK_SLACK_SECONDS = 5.0
"""An end so far in the future was written by a clock that was wrong."""

_JOB_FILE = re.compile(r"[^.].{0,140}\.json", re.DOTALL)


class JobSources:
    """``jobs``: files of jobs by id; ``dcgm`` and ``amd``: files of GPUs (None: there is none such)."""

    def __init__(self, jobs: Path, dcgm: Path | None, amd: Path | None, owners: Iterable[int]) -> None:
        owners = frozenset(owners)
        self._jobs = TrustedDirectory(jobs, owners, lambda name: _JOB_FILE.fullmatch(name) is not None, read_job)
        self._dcgm = None if dcgm is None else TrustedDirectory(dcgm, owners, is_gpu, read_dcgm)
        self._amd = None if amd is None else TrustedDirectory(amd, owners, is_gpu, read_amd)
        self._untimely: set[JobFile] = set()

    def look(self, now: float) -> tuple[tuple[ScheduledJob, ...], Counter[str]] | None:
        """The jobs at ``now`` (epoch seconds) and what was refused by reason; None where no directory is there."""
        jobs = self._jobs.look()
        dcgm = None if self._dcgm is None else self._dcgm.look()
        amd = None if self._amd is None else self._amd.look()
        if jobs is None and dcgm is None and amd is None:
            return None
        files = list((jobs or {}).values())
        self._note_untimely(files, now)
        over = {file.job_id for file in files if is_over(file, now) or file in self._untimely}
        own = [job_of(file) for file in files if file.job_id not in over]
        mapped = [(gpu, said) for gpu, several in (dcgm or {}).items() for said in several]
        mapped += (amd or {}).items()
        refused: Counter[str] = Counter()
        for directory in (self._jobs, self._dcgm, self._amd):
            if directory is not None:
                refused.update(directory.refused)
        shown, left_out = bounded(with_mappings(own, [each for each in mapped if each[1].job_id not in over]))
        refused["count"] += left_out
        return shown, +refused

    def _note_untimely(self, files: Iterable[JobFile], now: float) -> None:
        """Note the files with an end in the future: that end is not shown when its time comes either."""
        self._untimely = {
            file
            for file in files
            if file.ended is not None and (file in self._untimely or file.ended > now + CLOCK_SLACK_SECONDS)
        }


def read_job(name: str, content: bytes) -> JobFile:
    """Read a job's file; it must be of the job in its name."""
    file = msgspec.json.decode(content, type=JobFile)
    if name != f"{file.job_id}.json":
        raise ValueError("another job's")
    return file


def read_dcgm(_name: str, content: bytes) -> list[AmdFile]:
    """Read a GPU's file of dcgm-exporter's mapping: an id of a job on each line."""
    ids = content.decode("ascii").split()  # UnicodeDecodeError is a ValueError
    return [msgspec.convert({"SLURM_JOB_ID": job_id}, AmdFile) for job_id in ids[:MAX_JOBS_PER_GPU]]


def read_amd(_name: str, content: bytes) -> AmdFile:
    """Read a GPU's file of AMD's exporter."""
    return msgspec.json.decode(content, type=AmdFile)
