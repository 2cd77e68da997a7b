"""Open a file that a job names: only the file that the job's process would open. Blocking; only the standard library.

Below /proc/PID/root an absolute symbolic link would lead to the agent's own files, and O_NOFOLLOW protects only the
last name. So this module walks the path name by name, and reads and follows each link itself. openat2(RESOLVE_IN_ROOT)
does the same, but kernels before 5.6 lack it, and some filters of system calls forbid it. The status is read first
(O_PATH): only the requested kind of file is opened, and no device or lease can block.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

MAX_PATH_BYTES = 4096
MAX_LINKS = 40  # The kernel's own limit
MAX_NAMES = 256  # Limit of directories on a path, including directories in links
_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OtherUserError(OSError):
    """The file does not belong to the expected user."""


def open_inside(root: str, path: str, uid: int | None = None) -> AbstractContextManager[int]:
    """Open the regular file at ``path`` under the root directory ``root``; raises OSError. The caller closes it.

    ``uid``: the file must belong to this user.
    """
    with _path_descriptors(root, path) as descriptors:
        _check_owner(descriptors[-1], uid)
        return _closing(open_regular(descriptors[-1]))


def stat_inside(root: str, path: str) -> os.stat_result:
    """Return the status of the file at ``path`` under ``root`` and open nothing; raises OSError."""
    with _path_descriptors(root, path) as descriptors:
        return os.fstat(descriptors[-1])


def open_pipe_inside(root: str, path: str, uid: int) -> int:
    """Return a descriptor to write to user ``uid``'s FIFO at ``path`` under ``root``; OSError ENXIO: no reader.

    A link as the last part of ``path`` is refused.
    """
    directory, _, name = path.rpartition("/")
    with _path_descriptors(root, directory) as descriptors:
        descriptors.append(os.open(name, _WALK, dir_fd=descriptors[-1]))
        if not stat.S_ISFIFO(os.fstat(descriptors[-1]).st_mode):
            raise OSError(errno.EINVAL, "not a FIFO")
        _check_owner(descriptors[-1], uid)
        return os.open(f"/proc/self/fd/{descriptors[-1]}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def open_regular(fd: int) -> int:
    """Return a descriptor to read the file of ``fd`` (O_PATH); raises OSError unless it is regular."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def open_named(path: str, *, is_link: bool = False) -> AbstractContextManager[int]:
    """Open the regular file at ``path``; raises OSError. The caller closes it. ``is_link``: a link is allowed."""
    with _closing(os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if is_link else os.O_NOFOLLOW))) as fd:
        return _closing(open_regular(fd))


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def read_bounded(fd: int, max_bytes: int) -> bytes:
    """Return up to ``max_bytes`` + 1 bytes of an open file: more than ``max_bytes`` means that the file is too long."""
    pieces, missing = [], max_bytes + 1
    while missing > 0 and (piece := os.read(fd, missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _walk(descriptors: list[int], path: str) -> None:
    """Walk ``path`` from the last descriptor of ``descriptors``; the first descriptor is the root. Raises OSError."""
    names, links = path.split("/")[::-1], 0
    while names:
        name = names.pop()
        if name == "..":
            _close_after(descriptors, max(len(descriptors) - 1, 1))
        elif name not in ("", "."):
            descriptors.append(os.open(name, _WALK, dir_fd=descriptors[-1]))
            if stat.S_ISLNK(os.fstat(descriptors[-1]).st_mode):
                links += 1
                target = os.readlink("", dir_fd=descriptors[-1])
                _close_after(descriptors, 1 if target.startswith("/") else len(descriptors) - 1)
                names += target.split("/")[::-1]
        if links > MAX_LINKS or len(descriptors) - 1 > MAX_NAMES:
            raise OSError(errno.ELOOP, "too many links or directories")


def _close_after(descriptors: list[int], length: int) -> None:
    while len(descriptors) > length:
        os.close(descriptors.pop())


@contextmanager
def _path_descriptors(root: str, path: str) -> Iterator[list[int]]:
    """Yield descriptors of ``root`` and of the names on the way to ``path``; close them at the end."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, "a long path")
    descriptors = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        _walk(descriptors, path)
        yield descriptors
    finally:
        for fd in descriptors:
            os.close(fd)


def _check_owner(fd: int, uid: int | None) -> None:
    if uid is not None and os.fstat(fd).st_uid != uid:
        raise OtherUserError(errno.EPERM, "another user's file")
