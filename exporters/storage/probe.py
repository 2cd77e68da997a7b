"""Probes paths in the helper; each path has its own thread, so that a hanging path does not delay the others."""

import errno
import os
import stat
import threading
import time

import msgspec

FIRST_BYTES = 4096  # Bytes read from a file: enough to need an answer from the server
GRACE_SECONDS = 0.5  # A poll waits at most this time for all its probes. A healthy file system answers in milliseconds.
STACK_BYTES = 256 * 1024


class ProbeRequest(msgspec.Struct, frozen=True):
    """The absolute paths to probe. The answer leaves out absent ``optional`` paths, unless their probe runs."""

    paths: list[str]
    optional: list[str] = []


class Probe(msgspec.Struct, frozen=True):
    """The last probe that ended, and the seconds since the running probe started (0: no probe is running).

    ``ok``: None before the first probe ended. ``free``: free share of the file system for users, None if unknown.
    """

    path: str
    ok: bool | None
    seconds: float
    under_way_seconds: float
    free: float | None = None


class _Prober:
    """Probes one path, one probe after the other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._missing = False
        self._last = Probe(path, None, 0.0, 0.0)
        self._started_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a probe, unless one is running."""
        if not self._is_running():
            self._started_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def wait(self, until: float) -> None:
        """Wait for the probe, at most until monotonic ``until``."""
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0.0))

    @property
    def missing(self) -> bool:
        """Return True if the path did not exist at the last probe; False while a new probe runs: it may hang."""
        return self._missing and not self._is_running()

    def state(self) -> Probe:
        """Return the last probe's result, and for how long the running probe has run (0: none runs)."""
        if not self._is_running():
            return self._last
        return msgspec.structs.replace(self._last, under_way_seconds=time.monotonic() - self._started_at)

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        ok, free, missing = True, None, False
        try:
            touch(self._path)
            free = free_share(self._path)
        except OSError as error:
            ok, missing = False, error.errno == errno.ENOENT
        self._missing = missing
        self._last = Probe(self._path, ok, time.monotonic() - self._started_at, 0.0, free)


_probers: dict[str, _Prober] = {}


def probe(request: ProbeRequest, _body: bytes) -> list[Probe]:
    """Start a probe of each path, wait at most GRACE_SECONDS for all, and return the state of each."""
    threading.stack_size(STACK_BYTES)
    paths = list(dict.fromkeys((*request.paths, *request.optional)))
    for path in paths:
        _probers.setdefault(path, _Prober(path)).start()
    until = time.monotonic() + GRACE_SECONDS
    for path in paths:
        _probers[path].wait(until)
    required = frozenset(request.paths)
    return [_probers[path].state() for path in paths if path in required or not _probers[path].missing]


def touch(path: str) -> None:
    """Read the first entry of a directory or the first bytes of a file. Raise OSError if that fails."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            with os.scandir(fd) as entries:
                next(entries, None)
        else:
            os.read(fd, FIRST_BYTES)
    finally:
        os.close(fd)


def free_share(path: str) -> float:
    """Return the smaller of the free shares of bytes and inodes at a path. Without a total number, a share is 1."""
    info = os.statvfs(path)
    counts = ((info.f_bavail, info.f_blocks), (info.f_favail, info.f_files))
    return min(free / total if total else 1.0 for free, total in counts)
