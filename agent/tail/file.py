"""One followed file: what is known of it, whether it is still the same, and its next whole lines.

The functions here know no directories and decide nothing about other files: ``agent.tail.follower`` finds files and
``agent.tail.reader`` opens them.
"""

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, NamedTuple

import msgspec

from agent.tail.shares import NO_OWNER, Share

CHUNK_BYTES = 128 * 1024
"""What one read asks for at first: smaller costs more per line, larger falls out of the cache."""
MAX_LINE_BYTES = 1024 * 1024
FINGERPRINT_BYTES = 512
HEAD_BYTES = 4096
MAX_OFFSET = (1 << 63) - 1
MAX_UID = (1 << 32) - 1
MAX_GENERATION = (1 << 62) - 1
"""No file is truncated more often."""
SCAN_BYTES = 16 * 1024 * 1024
"""How far one read looks for the end of an overlong line or of a hole."""

_NUL_RUN = re.compile(rb"\0+")


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where reading stands in one file, for a checkpoint. ``uid``: whose it is.

    ``fingerprint``: the file's first bytes, ``tail``: the end of the line before ``offset``; each up to 512.
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
    def share(self) -> Share:
        """Whose share of a table it takes."""
        return Share(self.uid, os.path.dirname(self.path))


class Chunk(NamedTuple):
    """What one read gave: whole lines, the overlong lines skipped, and the NUL bytes of holes skipped."""

    data: bytes
    overlong: int = 0
    hole_bytes: int = 0


class FileChange(Enum):
    """How a file stands to what was known of it."""

    FITS = "fits"
    HOLLOWED = "hollowed"
    TRUNCATED = "truncated"


@dataclass(slots=True, eq=False)
class FollowedFile:
    """One file under its identity; ``generation`` counts how often it was truncated.

    ``size_bytes`` is the size last seen, ``from_start`` whether reading began at the first byte; ``caught_up`` is
    False only while a resumed file has lines that were there when it was found again. ``share`` says whose it is, as it
    was first found; ``shared`` whether others than its user may write to it or replace it. ``written_ns`` is its
    modification time, or when it was seen if that time is still to come; ``written_by`` the modification time that it
    is of. ``returns_end_lines``: a carriage return ends a line too, and is read as a newline. ``drained``: nothing
    whole is left at this size and modification time. ``scanned``: bytes after ``offset`` known to hold no end of the
    overlong line there.
    """

    device: int
    inode: int
    path: str
    size_bytes: int
    grown_at: float
    share: Share = field(init=False)
    size_at_start: int = field(init=False)
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

    def __post_init__(self) -> None:
        """Take what is seen first for what was there at the start."""
        self.share = Share(NO_OWNER, os.path.dirname(self.path))
        self.size_at_start = self.size_bytes

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self.device, self.inode

    def position(self) -> Position:
        """Where reading stands."""
        path = os.fsencode(self.path).decode(errors="replace")  # a name need not be text; a checkpoint's has to be
        return Position(*self.identity, self.generation, path, self.offset, self.fingerprint, self.tail, self.share.uid)

    def note(self, size_bytes: int, modified_ns: int, now: float) -> None:
        """Take in a fresh look at size and time; the content is judged when it is read."""
        if size_bytes == self.size_bytes and modified_ns == self.modified_ns:
            return
        never_read = not self.fingerprint
        if size_bytes < self.offset or (never_read and size_bytes < self.size_bytes):
            self.begin_anew()
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

    def begin_anew(self) -> None:
        """The content was replaced: another generation, read from its first byte."""
        self.generation += 1
        self.offset = self.scanned = 0
        self.fingerprint = self.tail = b""
        self.drained = False
        self.start_at_end = False
        self.from_start = self.caught_up = True


def judge(fingerprint: bytes, offset: int, size_bytes: int, head: bytes) -> FileChange:
    """Say whether a file is still what was read up to ``offset``; ``head`` is at least as long as ``fingerprint``.

    A head of NULs is the same generation with a hole at its front (copytruncate under a writer without O_APPEND, or a
    punched hole): what follows the offset is still ours to read.
    """
    if size_bytes < offset:
        return FileChange.TRUNCATED
    seen = head[: len(fingerprint)]
    if seen == fingerprint:
        return FileChange.FITS
    if len(seen) == len(fingerprint) and not seen.strip(b"\0"):
        return FileChange.HOLLOWED
    return FileChange.TRUNCATED


def is_front_overwritten(descriptor: int, file: FollowedFile) -> bool:
    """Return whether the last line read still stands before the offset of a file whose front is another.

    Then it was not truncated: a second live writer of the same name (a host name and a pid are not unique over
    containers) writes at an offset of its own. What it puts before ours is lost, but nothing is read again.
    """
    start = file.offset - len(file.tail)
    return file.tail != b"" and _read_at(descriptor, len(file.tail), start, file) == file.tail


def next_lines(descriptor: int, file: FollowedFile, budget_bytes: int) -> Chunk | None:
    """Read from the file's offset on and move it; None when no whole line is there."""
    want = min(CHUNK_BYTES, budget_bytes)
    raw = _read_at(descriptor, want, file.offset, file)
    hole_bytes = 0
    if raw.startswith(b"\0"):
        hole_bytes = _skip_hole(descriptor, file)
        raw = _read_at(descriptor, want, file.offset, file)
    if b"\n" not in raw and len(raw) == want and not file.scanned:
        want = MAX_LINE_BYTES + 1
        raw = _read_at(descriptor, want, file.offset, file)
        raw = raw[: raw.find(b"\n") + 1] or raw  # one long line and no more: a chunk's cost stays bounded
    end = 0 if file.scanned else raw.rfind(b"\n") + 1
    if end:
        file.offset += end
        file.tail = _last_line(raw, end)
        return _cleaned(raw[:end], hole_bytes)
    if len(raw) == want:
        return _skip_overlong(descriptor, file, raw, hole_bytes)
    return Chunk(b"", 0, hole_bytes) if hole_bytes else None


def _read_at(descriptor: int, want: int, offset: int, file: FollowedFile) -> bytes:
    """Read, with a newline for each carriage return where that ends a line."""
    raw = os.pread(descriptor, want, offset)
    return raw.replace(b"\r", b"\n") if file.returns_end_lines else raw


def _last_line(raw: bytes, end: int) -> bytes:
    """The line that ends before ``end``, its last 512 bytes at most; in it is the time at which it was written."""
    low = max(0, end - FINGERPRINT_BYTES)
    return raw[max(low, raw.rfind(b"\n", low, end - 1) + 1) : end]


def _cleaned(data: bytes, hole_bytes: int) -> Chunk:
    """Make each hole inside ``data`` an end of line: what stood before it was cut and goes no further."""
    if b"\0" not in data:  # by far the fastest look: counting takes a fifth of the whole reading
        return Chunk(data, 0, hole_bytes)
    return Chunk(_NUL_RUN.sub(b"\n", data), 0, hole_bytes + data.count(b"\0"))


def _skip_hole(descriptor: int, file: FollowedFile) -> int:
    """Move the offset over NULs up to the first other byte; at a file's end they stay, they may be data on its way."""
    start = position = file.offset
    for _ in range(SCAN_BYTES // CHUNK_BYTES):
        piece = os.pread(descriptor, CHUNK_BYTES, position)
        if not piece:
            return 0
        rest = piece.lstrip(b"\0")
        position += len(piece) - len(rest)
        if rest:
            break
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # no data after this (ENXIO)
            return 0
    file.offset = position
    file.tail = b""
    return position - start


def _skip_overlong(descriptor: int, file: FollowedFile, raw: bytes, hole_bytes: int) -> Chunk | None:
    """Skip a line longer than MAX_LINE_BYTES to its newline; the offset stays at its start until that is found."""
    nul = raw.find(b"\0")
    if nul > 0 and not file.scanned:  # cut by a hole: never to be whole
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


def end_of_lines(descriptor: int, size_bytes: int, *, returns_end_lines: bool = False) -> int:
    """Offset after the last newline below ``size_bytes``; ``size_bytes`` itself when a line is overlong there."""
    low = max(0, size_bytes - MAX_LINE_BYTES)
    raw = os.pread(descriptor, size_bytes - low, low)
    end = max(raw.rfind(b"\n"), raw.rfind(b"\r") if returns_end_lines else -1) + 1
    return low + end if end or not low else size_bytes
