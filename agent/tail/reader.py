"""Read followed files with a limit of open files; follow no link and read only regular files."""

import contextlib
import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator

from agent.tail.file import (
    FINGERPRINT_BYTES,
    HEAD_BYTES,
    Chunk,
    FollowedFile,
    end_of_lines,
    is_front_overwritten,
    is_replaced,
    next_lines,
)
from agent.tail.hang_guard import HangGuard, device_source
from agent.tail.shares import FairTable, Share

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class LineReader:
    """Reads the files below ``roots`` with at most ``open_files`` open at once.

    At the limit a file of the share that ``losing_share`` names is closed, if possible a file without unread lines. A
    new file of this share closes only a file without unread lines. ``skipped`` counts, by reason, files that could not
    be opened or read. No OSError leaves this class.
    """

    def __init__(
        self,
        roots: frozenset[str],
        clock: Callable[[], float],
        open_files: int,
        skipped: Counter[str],
        hangs: HangGuard,
    ) -> None:
        self._roots = roots
        self._hangs = hangs
        self._clock = clock
        self._open_files = open_files
        self._skipped = skipped
        self._open: FairTable[tuple[int, int], FollowedFile] = FairTable()

    def read(self, file: FollowedFile, budget_bytes: int) -> Chunk | None:
        """Return the next whole lines, at most ``budget_bytes`` (or one long line); None if there are none.

        A chunk's ``data`` may be empty when only holes or overlong lines were skipped.
        """
        if file.drained and file.descriptor is None:
            return None
        device = device_source(file.device)
        try:
            with self._hangs.using(file.path, device):
                descriptor = self._opened(file)
            if descriptor is None:
                self._put_off(file)
                return None
            with self._hangs.using(file.path, source=device):
                return self._read(descriptor, file, budget_bytes)
        except OSError as error:
            self._skipped[error_name(error)] += 1
            self.close(file)
            self._put_off(file)
            return None

    def head(self, file: FollowedFile) -> bytes:
        """Return up to 4 KiB from the front of the file; empty if it cannot be read."""
        was_open = file.descriptor is not None
        try:
            descriptor = self._opened(file)
            return b"" if descriptor is None else os.pread(descriptor, HEAD_BYTES, 0)
        except OSError as error:
            self._skipped[error_name(error)] += 1
            return b""
        finally:
            if not was_open:
                self.close(file)

    def close(self, file: FollowedFile) -> None:
        """Close the file's descriptor, if it has one, even if the file system hangs or fails."""
        descriptor, file.descriptor = file.descriptor, None
        if descriptor is not None:
            self._open.pop(file.identity)
            with contextlib.suppress(OSError), self._hangs.noting(file.path, device_source(file.device)):
                os.close(descriptor)

    def _opened(self, file: FollowedFile) -> int | None:
        """Return a file's descriptor; count and return None at the limit, or if the path leads to another file."""
        if file.descriptor is not None:
            return file.descriptor
        if len(self._open) >= self._open_files and not self._make_room(file.share):
            self._skipped["open_limit"] += 1
            return None
        # Open the file through its directory, so that no link below the root is followed.
        directory, name = os.path.split(file.path)
        parent = os.open(directory, DIRECTORY_FLAGS | (0 if directory in self._roots else os.O_NOFOLLOW))
        with closing(parent):
            named = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        with closing(named):  # opens no device, and no file that a user puts in place of this file
            status = os.fstat(named)
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != file.identity:
                self._skipped["replaced"] += 1
                return None
            file.descriptor = os.open(f"/proc/self/fd/{named}", _FILE_FLAGS)
        self._open.put(file.identity, file, file.share)
        return file.descriptor

    def _make_room(self, share: Share) -> bool:
        loser = self._open.losing_share(share)
        candidates = [self._open[identity] for identity in self._open.of(loser)]
        if loser == share:
            candidates = [file for file in candidates if file.drained]
        if not candidates:
            return False
        # Unlinked files are closed last, as they cannot be opened again; but they must not block other users.
        self.close(min(candidates, key=lambda file: (file.unlinked, not file.drained, file.grown_at)))
        return True

    def _put_off(self, file: FollowedFile) -> None:
        """Postpone an unreadable file to the next search, even if the file changes before."""
        file.drained = True
        file.modified_ns = -1

    def _read(self, descriptor: int, file: FollowedFile, budget_bytes: int) -> Chunk | None:
        status = os.fstat(descriptor)
        file.note(status.st_size, status.st_mtime_ns, self._clock())
        if file.drained:
            return None
        head = os.pread(descriptor, FINGERPRINT_BYTES, 0)
        if is_replaced(file.fingerprint, file.offset, file.size_bytes, head):
            if is_front_overwritten(descriptor, file):
                self._skipped["overwritten"] += 1
            else:
                file.restart()
        if file.start_at_end:
            size_bytes = min(file.size_at_start, file.size_bytes)
            file.offset = max(end_of_lines(descriptor, file, size_bytes), file.offset)
            file.start_at_end = False
            file.from_start = file.offset == 0
        start, tail, unchanged = file.offset, file.tail, False
        try:
            chunk = next_lines(descriptor, file, budget_bytes)
            unchanged = os.pread(descriptor, FINGERPRINT_BYTES, 0).startswith(head)
        finally:
            # If the head has changed, the file was replaced meanwhile: the lines may be of either generation.
            # Then, and after an error, drop the lines and read again.
            if not unchanged:
                file.offset, file.tail = start, tail
                file.scanned = 0
        if not unchanged:
            return None
        file.fingerprint = head[: min(FINGERPRINT_BYTES, file.offset)]
        file.drained = chunk is None
        if chunk is None or file.offset >= file.size_at_start:
            file.caught_up = True
        return chunk


def error_name(error: OSError) -> str:
    """Return the symbol of the error, such as ENOENT."""
    return errno.errorcode.get(error.errno or 0, "EUNKNOWN")


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
