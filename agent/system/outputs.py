"""Find the files that processes write: standard output and error, and given paths with their writer's Slurm job."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from agent.system.procfs import MAX_FILES_READ, OpenFile, ProcFS
from agent.tail.hang_guard import HangGuard

OUTPUT_DESCRIPTORS = ("1", "2")
FORWARDER = "srun"  # The program that writes the output of other processes, through any descriptor
ROOT_UID = 0  # A scheduler's daemon writes the output of jobs as root
MAX_PROCESSES = 65_536  # Limit of processes per search
# Slurm's control groups (plugins cgroup/v2, /v1) at the root of the hierarchy, where users cannot make groups.
_JOB = re.compile(
    r"/(?:system\.slice/(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]{1,10})/job_([0-9]{1,10})(?=/|$)",
    re.ASCII,
)


class Outputs:
    """Reads descriptors of the processes under ``root`` (/proc, or a recorded tree).

    ``hangs``: leaves out the processes of a user whose files hang.
    """

    def __init__(self, root: Path, hangs: HangGuard | None = None) -> None:
        self._hangs = hangs or HangGuard()
        self._root = str(root)
        self._procfs = ProcFS(root)

    def of(self, pid: int, *, forwards: bool = False) -> list[OpenFile]:
        """Return a process' standard output and error, if these are regular files that the process can write.

        ``forwards``: the process (srun) writes the output of other processes, so all its descriptors are searched, not
        only output and error.
        """
        files = []
        user = user_source(self._procfs, pid)
        for number in self._procfs.names(pid, "fd", MAX_FILES_READ) if forwards else OUTPUT_DESCRIPTORS:
            link = f"{self._root}/{pid}/fd/{number}"
            try:
                target = os.readlink(link)
                with self._hangs.using(link, source=user):
                    info = os.stat(link)
            except OSError:
                continue
            file = OpenFile(int(number), target, info.st_dev, info.st_ino)
            if stat.S_ISREG(info.st_mode) and target.startswith("/") and self._procfs.may_write(pid, file):
                files.append(file)
        return files

    def open_among(self, paths: Iterable[str]) -> frozenset[str]:
        """Return the ``paths`` that are standard output or error of a process, or that an srun has open.

        Only links are read: this never blocks on a file system.
        """
        open_paths = set()
        for pid in self._procfs.pids():
            if self._procfs.is_in_exec(pid):
                continue
            known = self._procfs.stat(pid)
            forwards = known is not None and known.comm == FORWARDER
            for number in self._procfs.names(pid, "fd", MAX_FILES_READ) if forwards else OUTPUT_DESCRIPTORS:
                with suppress(OSError):
                    open_paths.add(os.readlink(f"{self._root}/{pid}/fd/{number}"))
        return frozenset(open_paths & set(paths))

    def path_of(self, pid: int, file: OpenFile) -> str | None:
        """Return a path to a process' file: the path that the process uses, or this path below the process' root.

        None if neither path leads to the file: the file is gone or was renamed.
        """
        for path in (file.target, f"{self._root}/{pid}/root{file.target}"):
            try:
                with self._hangs.using(path):
                    status = os.stat(path, follow_symlinks=False)
            except (OSError, ValueError):
                continue
            if (status.st_dev, status.st_ino) == (file.device, file.inode):
                return path
        return None


def user_source(proc: ProcFS, pid: int) -> str:
    """Return the source of a process' files (``HangGuard``): its user; for root, as in most containers, its mounts."""
    status = proc.status(pid)
    uid = 0 if status is None else status.uid
    return f"files of user {uid}" if uid else f"files of mount namespace {proc.namespace(pid, 'mnt')}"


def writers_of(proc: ProcFS, paths: Mapping[str, int], hangs: HangGuard | None = None) -> dict[tuple[int, int], str]:
    """Return the files of ``paths`` that a process of the file's owner, or of root, has open for writing.

    ``paths`` maps each path to its owner's uid. The result's key is (device, inode). The value is the Slurm job whose
    control group contains the process; empty if none does. Blocking. Needs the right to read the processes'
    descriptors; without it the result is empty.
    """
    writers: dict[tuple[int, int], str] = {}
    users = {*paths.values(), ROOT_UID}
    for pid in proc.pids()[:MAX_PROCESSES] if paths else ():
        status = proc.status(pid)
        if status is None or status.uid not in users:
            continue
        try:
            with (hangs or HangGuard()).using(f"/proc/{pid}/fd", source=user_source(proc, pid)):
                files = proc.open_files(pid, paths.__contains__) or ()
        except OSError:  # files of this user hang
            continue
        for file in files:
            is_own_or_root = paths.get(file.target) == status.uid or status.uid == ROOT_UID
            if file.inode and is_own_or_root and proc.may_write(pid, file):
                identity = (file.device, file.inode)
                writers[identity] = writers.get(identity) or next(
                    (job[1] for path in proc.cgroup(pid).values() if (job := _JOB.match(path))), ""
                )
    return writers
