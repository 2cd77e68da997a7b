"""One followed file: its state, the test of its identity, and its next whole lines.

``agent.tail.follower`` finds files and ``agent.tail.reader`` opens them.
"""

import os
import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from agent.tail.shares import NO_OWNER, Share

CHUNK_BYTES = 128 * 1024
"""Size of a first read: smaller reads cost more per line, and larger reads do not fit the CPU cache."""
MAX_LINE_BYTES = 1024 * 1024
FINGERPRINT_BYTES = 512
HEAD_BYTES = 4096
MAX_OFFSET = (1 << 63) - 1
MAX_UID = (1 << 32) - 1
MAX_GENERATION = (1 << 62) - 1
"""Limit of the number of truncations of one file."""
SCAN_BYTES = 16 * 1024 * 1024
"""Limit of bytes that one read searches for the end of an overlong line or of a hole."""

_NUL_RUN = re.compile(rb"\0+")


class Position(msgspec.Struct, frozen=True, gc=False):
    """Read position in one file, for a checkpoint. ``uid``: the file's owner.

    ``fingerprint``: the file's first bytes. ``tail``: the end of the line before ``offset``. At most 512 bytes each.
    """

    device: int
    inode: int
    generation: Annotated[int, msgspec.Meta(ge=0, le=MAX_GENERATION)]
    path: str
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
    fingerprint: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES)]
    tail: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES)] = b""
    uid: Annotated[int, msgspec.Meta(ge=NO_OWNER, le=MAX_UID)] = NO_OWNER

    @property
    def key(self) -> tuple[int, int, int]:
        """Return device, inode and generation."""
        return self.device, self.inode, self.generation

    @property
    def share(self) -> Share:
        """Return the file's user and directory: tables divide their limits among users and directories."""
        return Share(self.uid, os.path.dirname(self.path))


class Chunk(NamedTuple):
    """Result of one read: whole lines, and the numbers of skipped overlong lines and of skipped NUL bytes in holes."""

    data: bytes
    overlong: int = 0
    hole_bytes: int = 0


@dataclass(slots=True, eq=False)
class FollowedFile:
    """A followed file. ``generation``: number of truncations.

    ``size_bytes``: size last seen. ``from_start``: reading began at the first byte. ``caught_up``: False only while a
    resumed file has unread lines from before the restarted agent found the file. ``share``: the file's user and
    directory when first seen. ``shared``: other users may write or replace the file. ``written_by``: the modification
    time. ``written_ns``: the modification time, at most the time of the search that saw it. ``returns_end_lines``: a
    carriage return ends a line too, and is read as a newline. ``drained``: no whole line is unread at this size and
    modification time. ``scanned``: number of bytes after ``offset`` that were searched for the end of an overlong line.
    """

    device: int
    inode: int
    path: str
    size_bytes: int
    grown_at: float
    share: Share
    size_at_start: int
    shared: bool = False
    generation: int = 0
    offset: int = 0
    fingerprint: bytes = b""
    tail: bytes = b""
    modified_ns: int = -1
    written_ns: int = -1
    written_by: int = -1
    from_start: bool = True
    start_at_end: bool = False
    returns_end_lines: bool = False
    caught_up: bool = True
    drained: bool = False
    scanned: int = 0
    unlinked: bool = False
    descriptor: int | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """Return (device, inode)."""
        return self.device, self.inode

    def position(self) -> Position:
        """Return the read position."""
        path = os.fsencode(self.path).decode(errors="replace")  # the checkpoint needs UTF-8
        return Position(*self.identity, self.generation, path, self.offset, self.fingerprint, self.tail, self.share.uid)

    def note(self, size_bytes: int, modified_ns: int, now: float) -> None:
        """Note the current size and modification time; the next read checks whether the content was replaced."""
        if size_bytes == self.size_bytes and modified_ns == self.modified_ns:
            return
        never_read = not self.fingerprint
        if size_bytes < self.offset or (never_read and size_bytes < self.size_bytes):
            self.restart()
        if size_bytes != self.size_bytes:
            self.grown_at = now
        self.size_bytes = size_bytes
        self.modified_ns = modified_ns
        self.drained = False

    def note_written(self, modified_ns: int, now_ns: int) -> None:
        """Note the file's modification time; a future time counts as now."""
        if modified_ns != self.written_by:
            self.written_by = modified_ns
            self.written_ns = min(modified_ns, now_ns)

    def restart(self) -> None:
        """Start a new generation at the first byte: the content was replaced."""
        self.generation += 1
        self.offset = self.scanned = 0
        self.fingerprint = self.tail = b""
        self.drained = False
        self.start_at_end = False
        self.from_start = self.caught_up = True


def is_replaced(fingerprint: bytes, offset: int, size_bytes: int, head: bytes) -> bool:
    """Return True if a file was truncated since the last read; ``head``: the file's first FINGERPRINT_BYTES.

    A head of NULs is a hole at the front of the same generation (copytruncate under a writer without O_APPEND, or a
    punched hole): the content after the offset is still unread.
    """
    first_bytes = head[: len(fingerprint)]
    is_hole = len(first_bytes) == len(fingerprint) and not first_bytes.strip(b"\0")
    return size_bytes < offset or (first_bytes != fingerprint and not is_hole)


def is_front_overwritten(descriptor: int, file: FollowedFile) -> bool:
    """Return True if the last line read still precedes the offset in a file whose front changed.

    In this case a second process writes to the file at another offset, and the file was not truncated. (Two processes
    get one file name if their containers have equal host names and pids.) The second process' lines before ``offset``
    are lost.
    """
    start = file.offset - len(file.tail)
    return file.tail != b"" and _read_at(descriptor, len(file.tail), start, file) == file.tail


def next_lines(descriptor: int, file: FollowedFile, budget_bytes: int) -> Chunk | None:
    """Read whole lines from the file's offset and move the offset; None without a whole line."""
    want = min(CHUNK_BYTES, budget_bytes)
    raw = _read_at(descriptor, want, file.offset, file)
    hole_bytes = 0
    if raw.startswith(b"\0"):
        hole_bytes = _skip_hole(descriptor, file)
        raw = _read_at(descriptor, want, file.offset, file)
        if raw.startswith(b"\0"):
            return Chunk(b"", 0, hole_bytes) if hole_bytes else None
    if b"\n" not in raw and len(raw) == want and not file.scanned:
        want = MAX_LINE_BYTES + 1
        raw = _read_at(descriptor, want, file.offset, file)
        raw = raw[: raw.find(b"\n") + 1] or raw  # a single long line, so that a chunk stays small
    end = 0 if file.scanned else raw.rfind(b"\n") + 1
    if end:
        file.offset += end
        file.tail = _last_line(raw, end)
        return _cleaned(raw[:end], hole_bytes)
    if len(raw) == want:
        return _skip_overlong(descriptor, file, raw, hole_bytes)
    return Chunk(b"", 0, hole_bytes) if hole_bytes else None


def _read_at(descriptor: int, want: int, offset: int, file: FollowedFile) -> bytes:
    """Read bytes; a carriage return becomes a newline if it ends lines in this file."""
    raw = os.pread(descriptor, want, offset)
    return raw.replace(b"\r", b"\n") if file.returns_end_lines else raw


def _last_line(raw: bytes, end: int) -> bytes:
    """Return the line that ends before ``end``, at most its last 512 bytes.

    Time stamps make most lines unique, so that the line proves that the offset is still right.
    """
    low = max(0, end - FINGERPRINT_BYTES)
    return raw[max(low, raw.rfind(b"\n", low, end - 1) + 1) : end]


def _cleaned(data: bytes, hole_bytes: int) -> Chunk:
    """Replace each hole inside ``data`` by a newline: the hole cut the line before it."""
    if b"\0" not in data:  # the fastest check: counting takes a fifth of the reading time
        return Chunk(data, 0, hole_bytes)
    return Chunk(_NUL_RUN.sub(b"\n", data), 0, hole_bytes + data.count(b"\0"))


def _skip_hole(descriptor: int, file: FollowedFile) -> int:
    """Move the offset past a run of NULs, and return its length. NULs at the file's end stay: data may replace them."""
    start = position = file.offset
    for _ in range(SCAN_BYTES // CHUNK_BYTES):
        piece = os.pread(descriptor, CHUNK_BYTES, position)
        if not piece:
            return 0
        data = piece.lstrip(b"\0")
        position += len(piece) - len(data)
        if data:
            break
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # no data after this (ENXIO)
            return 0
    file.offset = position
    file.tail = b""
    file.scanned = 0
    return position - start


def _skip_overlong(descriptor: int, file: FollowedFile, raw: bytes, hole_bytes: int) -> Chunk | None:
    """Skip a line longer than MAX_LINE_BYTES; the offset stays at the line's start until the newline is found."""
    nul = raw.find(b"\0")
    if nul > 0 and not file.scanned:  # cut by a hole: the line will never be whole
        file.offset += nul
        file.tail = b""
        return Chunk(raw[:nul] + b"\n", 0, hole_bytes)
    position = file.offset + max(file.scanned, len(raw))
    for _ in range(SCAN_BYTES // MAX_LINE_BYTES):
        piece = _read_at(descriptor, MAX_LINE_BYTES, position, file)
        end = piece.find(b"\n") + 1
        if end:
            file.offset = position + end
            file.tail = b""
            file.scanned = 0
            return Chunk(b"", 1, hole_bytes)
        position += len(piece)
        file.scanned = position - file.offset
        if not piece:
            return Chunk(b"", 0, hole_bytes) if hole_bytes else None
    return Chunk(b"", 0, hole_bytes)


def end_of_lines(descriptor: int, file: FollowedFile, size_bytes: int) -> int:
    """Return the offset after the last newline before ``size_bytes``; inside an overlong line return ``size_bytes``."""
    low = max(0, size_bytes - MAX_LINE_BYTES)
    end = _read_at(descriptor, size_bytes - low, low, file).rfind(b"\n") + 1
    return low + end if end or not low else size_bytes
