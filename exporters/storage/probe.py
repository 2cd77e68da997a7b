"""The helper's side: a thread for each path, so that a path that hangs costs no other."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

import msgspec

FIRST_BYTES = 4096
"""Read of a file: enough to have the server answer."""
GRACE_SECONDS = 0.5
"""A look waits this long for its probes, in all; a healthy file system answers in milliseconds."""
STACK_BYTES = 256 * 1024


class ProbeRequest(msgspec.Struct, frozen=True):
    """The paths to probe, absolute; of the ``optional`` ones those that do not exist are left out of the answer."""

    paths: list[str]
    optional: list[str] = []


class FreeSpace(msgspec.Struct, frozen=True):
    """Bytes and inodes of the file system at a path: in all, and left for users."""

    size_bytes: int
    available_bytes: int
    inodes: int
    inodes_available: int


class Probe(msgspec.Struct, frozen=True):
    """The last probe that ended (``ok`` None: none has), and the seconds of the one under way (0: none).

    ``error`` is the name of the errno.
    """

    path: str
    ok: bool | None
    seconds: float
    under_way_seconds: float
    error: str = ""
    room: FreeSpace | None = None


class _Prober:
    """Probes one path, one probe after the other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._missing = False
        self._last = Probe(path, None, 0.0, 0.0)
        self._began_at = 0.0
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start a probe, unless one is under way."""
        if not self._is_under_way():
            self._began_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def wait(self, until: float) -> None:
        """Wait for the probe, to monotonic ``until`` at the longest."""
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0.0))

    @property
    def missing(self) -> bool:
        """True when the last probe found no such path; false while a probe is under way."""
        return self._missing and not self._is_under_way()

    def state(self) -> Probe:
        """The last probe, and the one under way."""
        if not self._is_under_way():
            return self._last
        return msgspec.structs.replace(self._last, under_way_seconds=time.monotonic() - self._began_at)

    def _is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        error, room, missing = "", None, False
        try:
            touch(self._path)
            room = room_at(self._path)
        except OSError as failure:
            error = os.strerror(failure.errno) if failure.errno else "error"
            missing = failure.errno == errno.ENOENT
        self._missing = missing
        self._last = Probe(self._path, not error, time.monotonic() - self._began_at, 0.0, error, room)


_probers: dict[str, _Prober] = {}


def probe(request: ProbeRequest, _body: bytes) -> list[Probe]:
    """Begin a probe of each path, and return the state of each."""
    threading.stack_size(STACK_BYTES)
    paths = list(dict.fromkeys((*request.paths, *request.optional)))
    for path in paths:
        _probers.setdefault(path, _Prober(path)).begin()
    until = time.monotonic() + GRACE_SECONDS
    for path in paths:
        _probers[path].wait(until)
    wanted = frozenset(request.paths)
    return [_probers[path].state() for path in paths if path in wanted or not _probers[path].missing]


def touch(path: str) -> None:
    """Have the file system answer: the first entry of a directory, or the first bytes of a file. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            with os.scandir(fd) as found:
                next(found, None)
        else:
            os.read(fd, FIRST_BYTES)
    finally:
        os.close(fd)


def room_at(path: str) -> FreeSpace:
    """The free space of a path's file system. OSError."""
    found = os.statvfs(path)
    return FreeSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail)
