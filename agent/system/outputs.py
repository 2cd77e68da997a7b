"""Which files processes write: their standard output and error, and files by name, with each writer's Slurm job."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from agent.system.procfs import MAX_FILES_READ, OpenFile, ProcFS

NUMBERS = ("1", "2")
FORWARDER = "srun"  # The program that writes other processes' output, by any descriptor
ROOT_UID = 0  # Schedulers' daemons write the output of jobs as root
MAX_PROCESSES = 65_536  # Of a node, looked at in one look
# Slurm's control groups from the root of the hierarchy on, where no user can make one (plugins cgroup/v2 and /v1).
_JOB = re.compile(
    r"/(?:system\.slice/(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]{1,10})/job_([0-9]{1,10})(?=/|$)",
    re.ASCII,
)


class Outputs:
    """Looks at the processes under ``root`` (/proc, or a recorded tree)."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._procfs = ProcFS(root)

    def of(self, pid: int, *, forwards: bool = False) -> list[OpenFile]:
        """A process' standard output and error as far as they are regular files that it may write to.

        ``forwards``: files by its other descriptors too, since it writes the output of others. Waits where a file
        system hangs.
        """
        files = []
        for number in self._descriptors(pid) if forwards else NUMBERS:
            link = f"{self._root}/{pid}/fd/{number}"
            try:
                target, info = os.readlink(link), os.stat(link)
            except OSError:
                continue
            file = OpenFile(int(number), target, info.st_dev, info.st_ino)
            if stat.S_ISREG(info.st_mode) and target.startswith("/") and self._procfs.may_write(pid, file):
                files.append(file)
        return files

    def open_among(self, paths: Iterable[str]) -> frozenset[str]:
        """Which of ``paths`` some process has for its standard output or error, or a srun has open.

        Only links are read, which waits for no file system.
        """
        open_paths = set()
        for pid in self._procfs.pids():
            if self._procfs.is_in_exec(pid):
                continue
            known = self._procfs.stat(pid)
            forwards = known is not None and known.comm == FORWARDER
            for number in self._descriptors(pid) if forwards else NUMBERS:
                with suppress(OSError):
                    open_paths.add(os.readlink(f"{self._root}/{pid}/fd/{number}"))
        return frozenset(open_paths & set(paths))

    def _descriptors(self, pid: int) -> list[str]:
        try:
            return os.listdir(f"{self._root}/{pid}/fd")[:MAX_FILES_READ]
        except OSError:
            return []

    def path_of(self, pid: int, file: OpenFile) -> str | None:
        """Where a process' file is found: by the name that the process has for it, else by way of its own root.

        None where neither leads to it: it is gone, or was renamed.
        """
        for path in (file.target, f"{self._root}/{pid}/root{file.target}"):
            try:
                status = os.stat(path, follow_symlinks=False)
            except (OSError, ValueError):
                continue
            if (status.st_dev, status.st_ino) == (file.device, file.inode):
                return path
        return None


def writers_of(proc: ProcFS, paths: Mapping[str, int]) -> dict[tuple[int, int], str]:
    """Which of ``paths`` (each with the uid of its file) a process of that user, or of root, can write to now.

    Returns device and inode, with the id of the Slurm job whose control group holds that process; empty where there is
    none. Blocking. Takes the right to the processes' descriptors; where that is missing nothing is found.
    """
    writers: dict[tuple[int, int], str] = {}
    users = {*paths.values(), ROOT_UID}
    for pid in proc.pids()[:MAX_PROCESSES] if paths else ():
        status = proc.status(pid)
        if status is None or status.uid not in users:
            continue
        for file in proc.open_files(pid, paths.__contains__) or ():
            is_theirs = paths.get(file.target) == status.uid or status.uid == ROOT_UID
            if file.inode and is_theirs and proc.may_write(pid, file):
                identity = (file.device, file.inode)
                writers[identity] = writers.get(identity) or _job_of(proc, pid)
    return writers


def _job_of(proc: ProcFS, pid: int) -> str:
    jobs = (_JOB.match(path) for path in proc.cgroup(pid).values())
    return next((job[1] for job in jobs if job is not None), "")
