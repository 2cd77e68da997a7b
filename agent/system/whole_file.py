"""Read small files of jobs or of a site as a whole when they change. Blocking."""

import os
import stat
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from agent.system.inside import read_bounded

LOOK_BYTES = 8 * 1024 * 1024  # Approximate limit of bytes per call; later calls read further files
T = TypeVar("T")
FileVersion = tuple[int, int, int]  # Version of a file: inode, size, modification time in nanoseconds
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_changed(
    path: str, max_bytes: int, known: FileVersion | None, uid: int | None = None
) -> tuple[FileVersion, bytes] | None:
    """Return a regular file's version and its first ``max_bytes`` + 1 bytes; raises OSError if unreadable.

    Returns None if the version is ``known``, or if the file is not regular. With ``uid``, returns None for a file of
    another owner, and raises OSError for a link.
    """
    fd = os.open(path, _FLAGS | (0 if uid is None else os.O_NOFOLLOW))
    try:
        status = os.fstat(fd)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode) or version == known or (uid is not None and status.st_uid != uid):
            return None
        return version, read_bounded(fd, max_bytes)
    finally:
        os.close(fd)


class ChangedFiles(Generic[T]):
    """Contents of files by path. While a file is half written or too long, its last good content stays."""

    def __init__(self, max_bytes: int, read: Callable[[bytes], T | None]) -> None:
        self._max_bytes = max_bytes
        self._read = read
        self._places: dict[str, FileVersion] = {}
        self.contents: dict[str, T] = {}

    def look(self, paths: Mapping[str, int | None]) -> None:
        """Read the changed files of ``paths``; drop files outside ``paths``.

        ``paths`` maps a path to the uid of its required owner (None: any user).
        """
        for path in self._places.keys() - paths.keys():
            self._forget(path)
        room = LOOK_BYTES
        for path, uid in paths.items():
            if room <= 0:
                break
            try:
                changed = read_changed(path, self._max_bytes, self._places.get(path), uid)
            except OSError:
                self._forget(path)
                continue
            if changed is not None:
                self._places[path], raw = changed
                room -= len(raw)
                content = self._read(raw) if len(raw) <= self._max_bytes else None
                if content is not None:
                    self.contents[path] = content

    def _forget(self, path: str) -> None:
        self._places.pop(path, None)
        self.contents.pop(path, None)
