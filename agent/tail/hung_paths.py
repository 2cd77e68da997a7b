"""Leave out file systems that hang: a call to such a file system returns only when the file system answers again."""

import errno
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

HUNG_SECONDS = 15.0
"""A call that takes longer hangs. A call is one open, one read, or the wait for one entry of a directory."""
MAX_HUNG = 8
"""Limit of calls that hang at once and are left out; each keeps a thread and the open files of an exporter's run."""
MAX_MOUNTS_BYTES = 8 * 1024 * 1024
"""Limit of a process' mountinfo. A node with ten thousand mounts has about 2 MB."""
_MOUNT = re.compile(rb"^(\d{1,10}) \d{1,10} (\d{1,10}):(\d{1,10}) \S{1,4096} (\S{1,4096}) ", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d{1,10})$", re.MULTILINE)


class HungCall(NamedTuple):
    """A call that hangs: the device number of its file system, and when the file system was left out (monotonic)."""

    device: int
    left_out_at: float


class HungDevices:
    """The file systems that hang. Called from any thread; ``device_of`` blocks."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = os.fsencode(proc)
        self._calls: list[HungCall] = []

    def add(self, path: str, since: float) -> HungCall | None:
        """Leave out the file system of a call that began at ``since``; blocking.

        Return None for the root file system, if the file system had been left out before, and at the limit.
        """
        device = self.device_of(path)
        was_left_out = any(call.device == device and call.left_out_at <= since for call in self._calls)
        if not device or was_left_out or len(self._calls) >= MAX_HUNG:
            return None
        call = HungCall(device, time.monotonic())
        self._calls.append(call)
        return call

    def remove(self, call: HungCall) -> None:
        """Note that a call has returned."""
        self._calls.remove(call)

    def is_in_use(self) -> bool:
        """Return True if a file system is left out."""
        return bool(self._calls)

    def has(self, path: str) -> bool:
        """Return True if the path is in a file system that is left out."""
        return self.is_in_use() and self.device_of(path) in {call.device for call in self._calls}

    def device_of(self, path: str) -> int:
        """Return the device of the mount that contains a path, without a call to its file system.

        Return 0 for the root file system, and if the mount is unknown. A path below /proc/PID/root or /proc/PID/fd is
        in a mount of this process (proc_pid_mountinfo(5)).
        """
        raw, process, mount_id = os.fsencode(path), b"self", b""
        if raw.startswith(self._proc + b"/"):
            process, kind, below = (*raw[len(self._proc) + 1 :].split(b"/", 2), b"", b"")[:3]
            raw = b"/" + below
            if kind == b"fd":
                match = _MOUNT_ID.search(self._read(process + b"/fdinfo" + raw))
                mount_id = match[1] if match else b"unknown"
        best, device = b"/", 0
        for number, major, minor, escaped in _MOUNT.findall(self._read(process + b"/mountinfo")):
            mount = _ESCAPE.sub(lambda code: bytes([int(code[1], 8)]), escaped)
            is_of = number == mount_id if mount_id else (raw + b"/").startswith(mount + b"/")
            if is_of and mount != b"/" and len(mount) >= len(best):  # the last of several mounts at a path hides them
                best, device = mount, os.makedev(int(major), int(minor))
        return device

    def _read(self, name: bytes) -> bytes:
        try:
            with Path(os.fsdecode(self._proc + b"/" + name)).open("rb") as file:
                return file.read(MAX_MOUNTS_BYTES)
        except OSError:
            return b""


class PathUse(NamedTuple):
    """A call that uses ``path``, since a monotonic time."""

    path: str
    since: float


class PathGuard:
    """Notes the path that an exporter's thread uses, and refuses paths in file systems that hang."""

    def __init__(self, devices: HungDevices | None = None) -> None:
        self._devices = devices or HungDevices()
        self._closed = False
        self._use: PathUse | None = None
        self._hung: deque[HungCall] = deque()
        self._refused = ""

    @contextmanager
    def using(self, path: str) -> Iterator[None]:
        """Use ``path`` within the block; raise OSError if its file system hangs. Blocks can be nested."""
        if self._closed or self._devices.has(path):
            self._refused = path
            raise OSError(errno.EHOSTDOWN, os.strerror(errno.EHOSTDOWN), path)
        outer, self._use = self._use, PathUse(path, time.monotonic())
        try:
            yield
        finally:
            self._use = outer and PathUse(outer.path, time.monotonic())
            self._note_return()

    def note_answer(self) -> None:
        """Note that the file system of the block has answered one of several calls."""
        if self._use is not None:
            self._use = PathUse(self._use.path, time.monotonic())

    def hung(self) -> PathUse | None:
        """Return the current call if it hangs."""
        use = self._use
        return use if use is not None and time.monotonic() - use.since > HUNG_SECONDS else None

    def leave_out(self, use: PathUse) -> bool:
        """Leave out the file system of a hung call until the call returns; return False if impossible. Blocking."""
        call = self._devices.add(use.path, use.since)
        if call is None:
            self._use = use._replace(since=float("inf"))
            return False
        self._hung.append(call)
        if self._use is not use:  # it returned meanwhile
            self._note_return()
        return bool(self._hung)

    def _note_return(self) -> None:
        with suppress(IndexError):  # both the exporter's thread and ``leave_out`` may note it
            self._devices.remove(self._hung.popleft())

    def close(self) -> None:
        """Refuse every path: the exporter's run has ended, and a late update must end soon."""
        self._closed = True

    def why(self) -> str:
        """Return which path was refused, while file systems are left out; else an empty text."""
        path = self._refused if self._devices.is_in_use() else ""
        return path and f"{path} is not read: a call to its file system does not return"
