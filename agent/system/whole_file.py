"""Read small files of jobs or of a site as a whole when they change. Blocking."""

import os
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from agent.system.inside import open_named, read_bounded
from agent.tail.hang_guard import HangGuard

LOOK_BYTES = 8 * 1024 * 1024  # Approximate limit of bytes per call; the next call begins with the other files
T = TypeVar("T")
FileVersion = tuple[int, int, int]  # Version of a file: inode, size, modification time in nanoseconds


def read_changed(
    path: str, max_bytes: int, known: FileVersion | None, uid: int | None = None
) -> tuple[FileVersion, bytes] | None:
    """Return a file's version and its first ``max_bytes`` + 1 bytes; raises OSError if unreadable or not regular.

    Returns None if the version is ``known``. With ``uid``, returns None for a file of another owner, and raises OSError
    for a link.
    """
    with open_named(path, is_link=uid is None) as fd:
        status = os.fstat(fd)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if version == known or uid not in (None, status.st_uid):
            return None
        return version, read_bounded(fd, max_bytes)


class ChangedFiles(Generic[T]):
    """Contents of files by path. While a file is half written or too long, its last good content stays.

    ``hangs``: leaves out files that hang.
    """

    def __init__(self, max_bytes: int, read: Callable[[bytes], T | None], hangs: HangGuard | None = None) -> None:
        self._hangs = hangs or HangGuard()
        self._max_bytes = max_bytes
        self._read = read
        self._versions: dict[str, FileVersion] = {}
        self.contents: dict[str, T] = {}

    def look(self, paths: Mapping[str, int | None]) -> None:
        """Read the changed files of ``paths``; drop files outside ``paths``.

        ``paths`` maps a path to the uid of its required owner (None: any user).
        """
        for path in self._versions.keys() - paths.keys():
            self._forget(path)
        remaining_bytes = LOOK_BYTES
        turns = {path: turn for turn, path in enumerate(self._versions)}  # the file that was read last is the last
        for path in sorted(paths, key=lambda path: turns.get(path, -1)):
            if remaining_bytes <= 0:
                break
            try:
                with self._hangs.using(path):
                    changed = read_changed(path, self._max_bytes, self._versions.get(path), paths[path])
            except OSError:
                self._forget(path)
                continue
            if changed is not None:
                self._versions.pop(path, None)
                self._versions[path], raw = changed
                remaining_bytes -= len(raw)
                content = self._read(raw) if len(raw) <= self._max_bytes else None
                if content is not None:
                    self.contents[path] = content

    def _forget(self, path: str) -> None:
        self._versions.pop(path, None)
        self.contents.pop(path, None)
