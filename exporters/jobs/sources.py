"""Reads the directories with files of jobs and GPUs, if no untrusted user can write there. Blocking; for one thread."""

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from exporters.jobs.records import AmdFile, JobFile, ScheduledJob, bounded, is_gpu, is_over, job_of, with_mappings

MAX_FILES = 4096
MAX_ENTRIES = 8192  # Limit of names read in one update
MAX_FILE_BYTES = 16 * 1024

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

T = TypeVar("T")
_Version = tuple[int, ...]


class Refusal(NamedTuple):
    """A file is ignored; ``reason``: one of REASONS."""

    reason: str


REASONS = ("directory", "owner", "kind", "size", "content", "count")
"""directory: other users can write to it, or the agent may not read it. owner: no trusted user owns the file, or other
users can write to it. kind: no regular file. count: the file is beyond MAX_FILES or MAX_ENTRIES."""


class TrustedDirectory(Generic[T]):
    """Files in ``path`` whose names ``is_selected`` accepts. ``parse`` returns a file's record or raises ValueError.

    ``owners``: the users whose files are trusted. ``refused``: files ignored at the last ``look``, by reason.
    """

    def __init__(
        self, path: Path, owners: Iterable[int], is_selected: Callable[[str], bool], parse: Callable[[str, bytes], T]
    ) -> None:
        self._path = path
        self._owners = frozenset(owners)
        self._is_selected = is_selected
        self._parse = parse
        self._known: dict[str, tuple[_Version, T | Refusal]] = {}
        self.refused: Counter[str] = Counter()

    def look(self) -> Mapping[str, T] | None:
        """Return the record of each file, by name; None without such a directory."""
        self.refused.clear()
        before, self._known = self._known, {}
        try:
            directory = os.open(self._path, _DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            self.refused["directory"] += 1
            return {}
        try:
            return self._look(directory, before)
        finally:
            os.close(directory)

    def _look(self, directory: int, before: Mapping[str, tuple[_Version, T | Refusal]]) -> Mapping[str, T]:
        if not self._is_trusted(os.fstat(directory)):
            self.refused["directory"] += 1
            return {}
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]
        selected = sorted(name for name in names[:MAX_ENTRIES] if self._is_selected(name))
        self.refused["count"] += max(len(selected) - MAX_FILES, 0) + (len(names) > MAX_ENTRIES)
        files = {}
        for name in selected[:MAX_FILES]:
            try:
                record = self._file(directory, name, before)
            except FileNotFoundError:
                continue  # removed since the names were read
            except OSError:  # may be temporary: the next look reads the file again
                record = Refusal("content")
            if isinstance(record, Refusal):
                self.refused[record.reason] += 1
            else:
                files[name] = record
        return files

    def _file(self, directory: int, name: str, before: Mapping[str, tuple[_Version, T | Refusal]]) -> T | Refusal:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return Refusal("kind")
        # Before Linux 6.13 two writes within some milliseconds get the same times.
        version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        known = before.get(name)
        if known is None or known[0] != version:
            known = (version, self._read(directory, name))
        self._known[name] = known
        return known[1]

    def _read(self, directory: int, name: str) -> T | Refusal:
        file = os.open(name, _FILE_FLAGS, dir_fd=directory)
        try:
            if not self._is_trusted(os.fstat(file)):
                return Refusal("owner")
            content = os.read(file, MAX_FILE_BYTES + 1)
        finally:
            os.close(file)
        if len(content) > MAX_FILE_BYTES:
            return Refusal("size")
        try:
            return self._parse(name, content)
        except (ValueError, RecursionError):
            return Refusal("content")

    def _is_trusted(self, status: os.stat_result) -> bool:
        """Return True if a trusted user owns the file, and only that user, root's and the agent's group may write."""
        by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
        return status.st_uid in self._owners and not by_group and not status.st_mode & stat.S_IWOTH


MAX_JOBS_PER_GPU = 16  # Limit of job ids of one GPU in dcgm-exporter's mapping
CLOCK_SLACK_SECONDS = 5.0  # An end further in the future comes from a wrong clock

_JOB_FILE = re.compile(r"[^.].{0,140}\.json", re.DOTALL)


class JobSources:
    """``jobs``: the directory with a file per job. ``dcgm``, ``amd``: with a file per GPU (None: not configured)."""

    def __init__(self, jobs: Path, dcgm: Path | None, amd: Path | None, owners: Iterable[int]) -> None:
        owners = frozenset(owners)
        self._jobs = TrustedDirectory(jobs, owners, lambda name: _JOB_FILE.fullmatch(name) is not None, read_job)
        self._dcgm = None if dcgm is None else TrustedDirectory(dcgm, owners, is_gpu, read_dcgm)
        self._amd = None if amd is None else TrustedDirectory(amd, owners, is_gpu, read_amd)
        self._untimely: set[JobFile] = set()

    def look(self, now: float) -> tuple[tuple[ScheduledJob, ...], Counter[str]] | None:
        """Return the jobs at ``now`` (epoch seconds) and the refusals by reason; None without any directory."""
        jobs = self._jobs.look()
        dcgm = None if self._dcgm is None else self._dcgm.look()
        amd = None if self._amd is None else self._amd.look()
        if jobs is None and dcgm is None and amd is None:
            return None
        files = list((jobs or {}).values())
        self._note_untimely(files, now)
        over = {file.job_id for file in files if is_over(file, now) or file in self._untimely}
        own_jobs = [job_of(file) for file in files if file.job_id not in over]
        mapped = [(gpu, file) for gpu, of_gpu in (dcgm or {}).items() for file in of_gpu]
        mapped += (amd or {}).items()
        refused: Counter[str] = Counter()
        for directory in (self._jobs, self._dcgm, self._amd):
            if directory is not None:
                refused.update(directory.refused)
        shown, left_out = bounded(
            with_mappings(own_jobs, [mapping for mapping in mapped if mapping[1].job_id not in over])
        )
        refused["count"] += left_out
        return shown, +refused

    def _note_untimely(self, files: Iterable[JobFile], now: float) -> None:
        """Note the files with an end in the future: that end is never shown, even when its time has come."""
        self._untimely = {
            file
            for file in files
            if file.ended is not None and (file in self._untimely or file.ended > now + CLOCK_SLACK_SECONDS)
        }


def read_job(name: str, content: bytes) -> JobFile:
    """Parse a job's file; ValueError if the file's name is of another job."""
    file = msgspec.json.decode(content, type=JobFile)
    if name != f"{file.job_id}.json":
        raise ValueError("another job's")
    return file


def read_dcgm(_name: str, content: bytes) -> list[AmdFile]:
    """Parse a GPU's file of dcgm-exporter's mapping: a job id on each line."""
    ids = content.decode("ascii").split()  # UnicodeDecodeError is a ValueError
    return [msgspec.convert({"SLURM_JOB_ID": job_id}, AmdFile) for job_id in ids[:MAX_JOBS_PER_GPU]]


def read_amd(_name: str, content: bytes) -> AmdFile:
    """Parse a GPU's file of AMD's exporter."""
    return msgspec.json.decode(content, type=AmdFile)
