"""A small file of a job or a site, read whole when it has changed. Blocking."""

from __future__ import annotations

import os
import stat

FilePlace = tuple[int, int, int]
"""Which file it was and when: inode, size, and time of the last change in nanoseconds."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_changed(
    path: str, max_bytes: int, known: FilePlace | None, uid: int | None = None
) -> tuple[FilePlace, bytes] | None:
    """Return the first ``max_bytes`` + 1 bytes of a regular file; OSError where it cannot be read.

    None while it is as ``known``, where it is no regular file, and, with ``uid``, where it is a link or another user's.
    """
    fd = os.open(path, _FLAGS | (0 if uid is None else os.O_NOFOLLOW))
    try:
        status = os.fstat(fd)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode) or version == known or (uid is not None and status.st_uid != uid):
            return None
        raw = b""
        while len(raw) <= max_bytes and (piece := os.read(fd, max_bytes + 1 - len(raw))):
            raw += piece
        return version, raw
    finally:
        os.close(fd)
