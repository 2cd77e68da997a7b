"""Lines from growing files that others write: identity, truncation, holes, bounds. It knows no format.

Used from one thread, which it may block. A file is its (device, inode) and the first bytes of what it holds; the offset
always lies at a line's start, so the durable position is the offset alone: a partial last line is read again later.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.tail.file import MAX_LINE_BYTES, Chunk, FollowedFile, Position
from agent.tail.reader import DIRECTORY_FLAGS, LineReader, closing, error_name

IDLE_SECONDS = 60.0
MAX_FORGOTTEN = 65_536
MAX_LEFT = 1024
"""Files out of sight whose position is kept: a file renamed or a directory unmounted may come back."""

_NO_ENTRY = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR})
"""Errors that say that there is nothing to read; any other may hide files that are there."""


class FollowLimits(NamedTuple):
    """How much of a directory tree is looked at; what lies beyond is counted in ``Follower.skipped``."""

    open_files: int = 256
    files: int = 4096
    entries: int = 65_536
    directories: int = 256


class Follower:
    """Follows the files of one directory and of its subdirectories, one level deep.

    ``matches`` chooses by file name. ``start_at_end``: files there at the first look and not in ``resume`` are read
    from their last newline on; files that appear later always from their first byte. ``generations`` holds the first
    free generation of identities used in the past, so that a reused inode is never taken for its former file.
    ``skipped`` counts by reason what was refused, once per look. No OSError leaves this class.

    ``left`` are positions in files that were out of sight when it was made, as ``self.left`` gave them. When there are
    more files than ``limits`` allows, those written to last are followed.

    ``available`` says whether the directory was there at the last look, ``looked`` whether one look was complete;
    ``passed_over`` counts the files that the last look left alone at its caller's word.
    """

    def __init__(
        self,
        root: Path,
        matches: Callable[[str], bool],
        clock: Callable[[], float],
        *,
        resume: Sequence[Position] = (),
        left: Sequence[Position] = (),
        generations: Mapping[tuple[int, int], int] | None = None,
        start_at_end: bool = False,
        limits: FollowLimits = FollowLimits(),  # noqa: B008  # immutable
    ) -> None:
        self._root = root
        self._matches = matches
        self._clock = clock
        self._resume = {(position.device, position.inode): position for position in resume}
        self._left = {(position.device, position.inode): position for position in left}
        self._start_at_end = start_at_end
        self._old: set[tuple[int, int]] = set()  # there at the first look and not followed: not new when they are
        self._idle: list[tuple[int, tuple[int, int]]] | None = None
        self._limits = limits
        self._files: dict[tuple[int, int], FollowedFile] = {}
        self._generations = dict(generations or {})
        self._whole = True
        self._foreign: Callable[[str, tuple[int, int]], bool] = lambda *_: False
        self.skipped: Counter[str] = Counter()
        self._reader = LineReader(root, clock, limits.open_files, self.skipped)
        self.available = False
        self.looked = False
        self.passed_over = 0

    def files(self) -> list[FollowedFile]:
        """All files followed now."""
        return list(self._files.values())

    def positions(self) -> list[Position]:
        """Where reading stands in each file that was read, and in each of ``resume`` not found again yet."""
        return [*self._resume.values(), *(file.position() for file in self._files.values() if file.fingerprint)]

    def left(self) -> list[Position]:
        """Where reading stood in files that went out of sight."""
        return list(self._left.values())

    def lag_bytes(self, file: FollowedFile) -> int:
        """Bytes of ``file`` not yet read."""
        return 0 if file.start_at_end else max(0, file.size_bytes - file.offset)

    def discover(self, foreign: Callable[[str, tuple[int, int]], bool] = lambda *_: False) -> list[FollowedFile]:
        """Look through the directories, take up new files, let go of those gone; return the files followed now.

        ``foreign`` says by name and identity which new files to leave alone; nothing is asked of the file system for
        them.
        """
        seen: set[tuple[int, int]] = set()
        self._whole = True
        self._foreign = foreign
        self._idle = None
        self.passed_over = 0
        try:
            root = os.open(self._root, DIRECTORY_FLAGS)
        except OSError as error:
            self.available = False
            if error.errno != errno.ENOENT:
                self._skip(error)
        else:
            self.available = True
            with closing(root):
                self._look(root, seen)
        self._release(seen)
        if self._whole:
            self.looked = True
            self._start_at_end = False  # whatever appears later is new
        if self._whole and self.available:
            for position in self._resume.values():  # gone while nobody looked
                self._retire(position)
            self._resume.clear()
            self._old &= seen
        return self.files()

    def read(self, file: FollowedFile, budget_bytes: int = MAX_LINE_BYTES) -> Chunk | None:
        """Return the next whole lines, ``budget_bytes`` of them (or one long line); None when there are none.

        A chunk's ``data`` may be empty when only holes or overlong lines were skipped.
        """
        return self._reader.read(file, budget_bytes)

    def head(self, file: FollowedFile) -> bytes:
        """Return up to 4 KiB from the front of the file; empty when it cannot be read."""
        return self._reader.head(file)

    def close(self) -> None:
        """Close all descriptors; the follower is of no use after it."""
        for file in self._files.values():
            self._reader.close(file)

    # The directories.

    def _look(self, root: int, seen: set[tuple[int, int]]) -> None:
        prefix = str(self._root)
        directories = self._take(root, prefix, seen)
        for name in directories[: self._limits.directories]:
            try:
                directory = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=root)
            except OSError as error:
                self._skip(error)
                continue
            with closing(directory):
                self._take(directory, f"{prefix}/{name}", seen)
        self.skipped["directory_limit"] += max(0, len(directories) - self._limits.directories)

    def _take(self, directory: int, prefix: str, seen: set[tuple[int, int]]) -> list[str]:
        """Take up the files of one directory; return the names of its subdirectories."""
        directories = []
        try:
            device = os.fstat(directory).st_dev
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    if number >= self._limits.entries:
                        self.skipped["entry_limit"] += 1
                        break
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                    elif self._matches(entry.name) and not self._is_passed_over(entry, device, seen):
                        self._take_entry(entry, prefix, seen)
        except OSError as error:
            self._skip(error)
        return directories

    def _is_passed_over(self, entry: os.DirEntry[str], device: int, seen: set[tuple[int, int]]) -> bool:
        identity = (device, entry.inode())
        if identity in self._files or identity in self._resume or not self._foreign(entry.name, identity):
            return False
        self.passed_over += 1
        seen.add(identity)
        self._keep_old(identity)
        return True

    def _keep_old(self, identity: tuple[int, int]) -> None:
        if self._start_at_end and len(self._old) < MAX_FORGOTTEN:
            self._old.add(identity)

    def _take_entry(self, entry: os.DirEntry[str], prefix: str, seen: set[tuple[int, int]]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            self._skip(error)
            return
        if not stat.S_ISREG(status.st_mode):
            self.skipped["not_a_regular_file"] += 1
            return
        identity = (status.st_dev, status.st_ino)
        seen.add(identity)
        path = f"{prefix}/{entry.name}"
        file = self._files.get(identity)
        if file is None:
            self._take_up(identity, path, status)
            return
        file.path = path
        file.unlinked = False
        file.note(status.st_size, status.st_mtime_ns, self._clock())

    def _take_up(self, identity: tuple[int, int], path: str, status: os.stat_result) -> None:
        if len(self._files) >= self._limits.files and not self._displace(status.st_mtime_ns):
            self.skipped["file_limit"] += 1
            self._keep_old(identity)
            return
        file = FollowedFile(*identity, path, status.st_size, self._clock())
        file.modified_ns = status.st_mtime_ns
        file.generation = self._generations.pop(identity, 0)
        resumed = self._resume.pop(identity, None)
        position = resumed or self._left.pop(identity, None)
        if position is not None:
            file.generation = position.generation
            file.offset = position.offset
            file.fingerprint = position.fingerprint
            file.tail = position.tail
            file.from_start = False
            file.caught_up = resumed is None
        elif self._start_at_end or identity in self._old:
            file.start_at_end = True
            file.from_start = False
        self._old.discard(identity)
        self._files[identity] = file

    def _displace(self, modified_ns: int) -> bool:
        """Let go of the closed file that was not written to for longest, in favour of one written to later."""
        if self._idle is None:
            self._idle = [(file.modified_ns, one) for one, file in self._files.items() if _is_idle(file)]
            heapq.heapify(self._idle)
        if not self._idle or self._idle[0][0] >= modified_ns:
            return False
        file = self._files.pop(heapq.heappop(self._idle)[1])
        self.skipped["file_limit"] += 1
        if file.start_at_end:
            self._old.add(file.identity)
        else:
            self._retire(file.position())
        return True

    def _release(self, seen: set[tuple[int, int]]) -> None:
        """Let go of files that are gone, and of the descriptors of idle ones."""
        now = self._clock()
        for identity, file in list(self._files.items()):
            if identity not in seen and not self._still_there(file):
                file.unlinked = True  # or renamed to what is not followed: read on while open
            if file.descriptor is not None and file.drained and now - file.grown_at >= IDLE_SECONDS:
                self._reader.close(file)
            if file.unlinked and file.descriptor is None:
                self.skipped["gone_unread"] += self.lag_bytes(file) > 0
                self._retire(file.position())
                del self._files[identity]

    def _retire(self, position: Position) -> None:
        """Remember where a file was left, should it return, and its next generation, should the inode be used again."""
        identity = (position.device, position.inode)
        self._generations[identity] = position.generation + 1
        if len(self._generations) > MAX_FORGOTTEN:
            del self._generations[next(iter(self._generations))]
        if position.fingerprint:
            self._left[identity] = position
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def _still_there(self, file: FollowedFile) -> bool:
        """Whether the name still leads to the file; an error (a hung or stale mount) is no proof that it is gone."""
        try:
            status = os.stat(file.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._skip(error)
            return True
        return (status.st_dev, status.st_ino) == file.identity

    def _skip(self, error: OSError) -> None:
        self.skipped[error_name(error)] += 1
        self._whole = self._whole and error.errno in _NO_ENTRY


def _is_idle(file: FollowedFile) -> bool:
    """Whether nothing that was begun in ``file`` is left to read."""
    closed = file.descriptor is None and not file.unlinked and file.modified_ns >= 0
    return closed and (file.drained or not file.fingerprint)
