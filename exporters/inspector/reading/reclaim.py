"""Frees disk space: punches holes into files that were read, and deletes ended writers' files. Opt-in; for one thread.

Inspector's files grow without end. NCCL opens them without O_APPEND, so a hole below its write offset does not disturb
NCCL. A hole ends below the offset in the agent's checkpoint on disk, so the agent never reads the hole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.exporter import Clock, Logger
from agent.sdk.files import FollowedFile, Position
from agent.sdk.ranks import is_record_file
from agent.sdk.system import ProcFS
from exporters.inspector.reading.record_files import FileKey

RUN_SECONDS = 5.0  # Interval between checks of the files: the interval of the agent's checkpoint
RUN_BUDGET_SECONDS = 0.1  # After this time a run starts no further file; the other files wait for the next run
KEPT_BYTES = 4096  # Kept at a file's front: its first record identifies the file and its owner
PUNCH_STEP_BYTES = 1 << 20  # A hole is made, or made longer, in steps of at least this size
MAX_TAIL_BYTES = 1 << 20  # A file with more than this after its last whole line counts as not read to its end
MIN_DELETE_AFTER_SECONDS = 60.0

_STAT_BLOCK_BYTES = 512
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PID_IN_NAME = re.compile(r"-pid([0-9]{1,10})\.(?:log|jsonl)$", re.ASCII)
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Reclaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How disk space is freed: holes replace the part of a file that was read; files of ended writers are deleted after
    ``delete_after_seconds`` without a write (None: never). Needs write permission for the files."""

    enabled: bool = False
    punch_holes: bool = True
    delete_after_seconds: Annotated[float, msgspec.Meta(ge=MIN_DELETE_AFTER_SECONDS)] | None = None


class _Offsets(msgspec.Struct):
    """The part of a reader's section that the reclaimer reads."""

    positions: list[Position]


class _Sections(msgspec.Struct):
    """The part of the exporter's section that the reclaimer reads."""

    sections: dict[str, bytes] = {}


class Reclaimer:
    """Frees the disk space of one directory's files. ``errors``: failed attempts, by reason."""

    def __init__(self, path: str, config: Reclaim, clock: Clock, proc: ProcFS, log: Logger) -> None:
        self._path = path
        self._log = log
        self._root = str(Path(path))
        self._config = config
        self._clock = clock
        self._proc = proc
        self._durable: bytes | None = None
        self._positions: list[Position] = []
        self._unchecked: list[Position] = []
        self._punched: dict[FileKey, int] = {}
        self.errors: Counter[str] = Counter()
        self._run_at = float("-inf")

    def run(self, durable: bytes | None, owned: Mapping[tuple[int, int], FollowedFile]) -> None:
        """Check the files in ``owned``, which are certainly this node's. ``durable``: the checkpoint's section on disk.

        An error is logged and counted, not raised: the result of the reader's turn must not be lost.
        """
        now = self._clock.monotonic()
        if not self._config.enabled or durable is None or now - self._run_at < RUN_SECONDS:
            return
        self._run_at = now
        try:
            self._run(durable, owned, now)
        except Exception as error:  # noqa: BLE001  # whatever it is
            self.errors[type(error).__name__] += 1
            self._log.error("inspector disk space not freed", path=self._path, error=error)

    def _run(self, durable: bytes, owned: Mapping[tuple[int, int], FollowedFile], now: float) -> None:
        if durable is not self._durable:
            self._durable = durable
            section = msgspec.msgpack.decode(durable, type=_Sections).sections.get(self._path)
            self._positions = [] if section is None else msgspec.msgpack.decode(section, type=_Offsets).positions
        self._unchecked = self._unchecked or list(self._positions)  # older offsets are lower, so their holes are safe
        while self._unchecked and self._clock.monotonic() - now < RUN_BUDGET_SECONDS:
            position = self._unchecked.pop()
            file = owned.get((position.device, position.inode))
            if file is None or file.generation != position.generation or file.unlinked:
                continue
            punched = self._punched.get(position.key, 0)
            due = self._config.punch_holes and position.offset - punched >= PUNCH_STEP_BYTES
            if due or self._is_old(file.modified_ns):  # else no system call is made
                try:
                    self._reclaim(file.path, position)
                except OSError as error:
                    self.errors[errno.errorcode.get(error.errno or 0, "EUNKNOWN")] += 1
        self._punched = {file_key: end for file_key, end in self._punched.items() if file_key[:2] in owned}

    def _reclaim(self, path: str, position: Position) -> None:
        """Delete the file if that is allowed, else punch a hole. Leave a file that replaced the file that was read."""
        directory, name = os.path.split(path)
        with contextlib.ExitStack() as opened:
            parent = os.open(directory, _DIRECTORY_FLAGS | (0 if directory == self._root else os.O_NOFOLLOW))
            opened.callback(os.close, parent)
            descriptor = os.open(name, _OPEN_FLAGS, dir_fd=parent)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if not _is_same(descriptor, status, position):
                self.errors["replaced"] += 1
            elif status.st_nlink != 1:  # the file's other name may belong to another user
                self.errors["linked"] += 1
            elif (
                self._is_old(status.st_mtime_ns)
                and _is_read(descriptor, status, position)
                and not self._may_be_written(name, position)
            ):
                os.unlink(name, dir_fd=parent)
                self._log.info("inspector file deleted", path=path, bytes=status.st_blocks * _STAT_BLOCK_BYTES)
            elif self._config.punch_holes:
                self._punch(descriptor, status, position)

    def _punch(self, descriptor: int, status: os.stat_result, position: Position) -> None:
        block_bytes = max(KEPT_BYTES, status.st_blksize)
        start = max(block_bytes, self._punched.get(position.key, 0))
        end = position.offset // block_bytes * block_bytes
        if end <= start:
            return
        if _LIBC.fallocate(descriptor, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, start, end - start):
            raise OSError(ctypes.get_errno(), "fallocate")
        self._punched[position.key] = end

    def _is_old(self, modified_ns: int) -> bool:
        after = self._config.delete_after_seconds
        return after is not None and modified_ns >= 0 and self._clock.time() - modified_ns / 1e9 >= after

    def _may_be_written(self, name: str, position: Position) -> bool:
        """Return True when a local process has the file open and has the pid in the file's name, in any namespace.

        If descriptors are unreadable, or processes may be hidden (hidepid), the file counts as open.
        """
        match = _PID_IN_NAME.search(name)
        if match is None or self._proc.status(1) is None:
            return True
        for pid in self._proc.pids():
            status = self._proc.status(pid)
            if status is not None and int(match[1]) in status.namespace_pids:
                files = self._proc.open_files(pid, is_record_file)
                if files is None or any((file.device, file.inode) == position.key[:2] for file in files):
                    return True
        return False


def _is_same(descriptor: int, status: os.stat_result, position: Position) -> bool:
    """Return True when the open file is the file that was read up to the position: its first bytes are the same."""
    fingerprint = position.fingerprint
    is_same = stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) == (position.device, position.inode)
    is_read = status.st_size >= position.offset and fingerprint != b""
    return is_same and is_read and os.pread(descriptor, len(fingerprint), 0) == fingerprint


def _is_read(descriptor: int, status: os.stat_result, position: Position) -> bool:
    """Return True when no whole line lies beyond the position."""
    tail_bytes = status.st_size - position.offset
    return tail_bytes <= MAX_TAIL_BYTES and b"\n" not in os.pread(descriptor, tail_bytes, position.offset)
