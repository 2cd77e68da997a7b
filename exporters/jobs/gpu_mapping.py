"""Writes the jobs of each GPU to the files that dcgm-exporter reads (DCGM_HPC_JOB_MAPPING_DIR). Blocking.

A file's name is the GPU's index, its lines are job ids. The file OWN beside them lists the agent's own files, so that
the agent removes its files even after a restart, and touches no file of another program.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from agent.sdk.ranks import RankView

OWN = ".rankwatch"  # The list of own files. dcgm-exporter ignores names that are not numbers.
MAX_GPUS = 1024
MAX_LIST_BYTES = 16 * 1024
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def jobs_of_gpus(views: Iterable[RankView]) -> dict[str, str]:
    """Return the content of each GPU's file by name: the jobs whose ranks run on the GPU, for at most MAX_GPUS GPUs."""
    jobs: dict[int, set[str]] = {}
    for view in views:
        for gpu in view.gpus() if view.process.exited_at is None else ():
            if gpu.index in jobs or len(jobs) < MAX_GPUS:
                jobs.setdefault(gpu.index, set()).add(view.label.job_id)
    return {str(index): "".join(f"{job_id}\n" for job_id in sorted(ids)) for index, ids in jobs.items()}


class GpuMapping:
    """The files in ``directory``, which must exist. Used from one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: set[str] | None = None
        self._written: dict[str, str] = {}

    def write(self, contents: Mapping[str, str]) -> None:
        """Write changed and missing files; delete own files that ``contents`` lacks. After an OSError call it again."""
        fd = os.open(self._directory, _DIRECTORY)
        try:
            if self._own is None:
                self._own = _listed(fd)
            free = {name for name in contents if name in self._own or not _exists(name, fd)}
            for name in self._own - free:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=fd)
                self._written.pop(name, None)
            # The list comes before the files: after a crash the next run removes them.
            if self._own != free or (free and not _exists(OWN, fd)):
                _replace(OWN, "".join(f"{name}\n" for name in sorted(free)), fd)
                self._own = free
            for name in sorted(free):
                if self._written.get(name) != contents[name] or not _exists(name, fd):
                    _replace(name, contents[name], fd)
                    self._written[name] = contents[name]
        finally:
            os.close(fd)


def _listed(directory: int) -> set[str]:
    try:
        fd = os.open(OWN, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return set()
    try:
        names = os.read(fd, MAX_LIST_BYTES).decode("ascii", "replace").split()
    finally:
        os.close(fd)
    return {name for name in names[:MAX_GPUS] if name.isascii() and name.isdigit()}


def _exists(name: str, directory: int) -> bool:
    return os.access(name, os.F_OK, dir_fd=directory, follow_symlinks=False)


def _replace(name: str, content: str, directory: int) -> None:
    new = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    fd = os.open(new, _NEW, 0o644, dir_fd=directory)
    try:
        os.write(fd, content.encode("utf-8", "replace"))
    finally:
        os.close(fd)
    os.replace(new, name, src_dir_fd=directory, dst_dir_fd=directory)
