"""Which files processes write their output to: their standard output and error, as /proc shows them."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent.system.procfs import MAX_FILES_READ, OpenFile, ProcFS

NUMBERS = ("1", "2")
FORWARDER = "srun"
"""The program that writes other processes' output, by any descriptor."""


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
        found = []
        for number in self._descriptors(pid) if forwards else NUMBERS:
            link = f"{self._root}/{pid}/fd/{number}"
            try:
                target, info = os.readlink(link), os.stat(link)
            except OSError:
                continue
            file = OpenFile(int(number), target, info.st_dev, info.st_ino)
            if stat.S_ISREG(info.st_mode) and target.startswith("/") and self._procfs.may_write(pid, file):
                found.append(file)
        return found

    def open_among(self, paths: Iterable[str]) -> frozenset[str]:
        """Which of ``paths`` some process has for its standard output or error, or a srun has open.

        Only links are read, which waits for no file system.
        """
        found = set()
        for pid in self._procfs.pids():
            if self._procfs.is_in_exec(pid):
                continue
            known = self._procfs.stat(pid)
            forwards = known is not None and known.comm == FORWARDER
            for number in self._descriptors(pid) if forwards else NUMBERS:
                with suppress(OSError):
                    found.add(os.readlink(f"{self._root}/{pid}/fd/{number}"))
        return frozenset(found & set(paths))

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
