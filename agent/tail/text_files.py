"""Read lines of jobs' text files, found by patterns. All calls block: make them in the exporter's own thread."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from agent.tail.file import CHUNK_BYTES, SCAN_BYTES, FollowedFile, Position
from agent.tail.follower import Follower
from agent.tail.hang_guard import HangGuard
from agent.tail.listing import FollowLimits
from agent.tail.patterns import PatternListing, compiled_path_pattern
from agent.tail.shares import in_turns

BACKLOG_BYTES = 16 * 1024 * 1024
"""Limit of bytes read from the existing content of a newly found file."""
MAX_TEXT_BYTES = 8 * 1024
"""Longer lines are cut to this length."""
MAX_NAMED = 4096
TEXT_LIMITS = FollowLimits(directories=1024)
PIECE_BYTES = CHUNK_BYTES


class TextLines(NamedTuple):
    """The result of one read. ``data``: whole lines, each with a final newline, also in place of a carriage return.

    ``generation`` changes when the file is read from its beginning again.
    """

    file: FollowedFile
    generation: int
    data: bytes

    def lines(self) -> list[bytes]:
        """Return the non-empty lines without newlines, each cut to MAX_TEXT_BYTES."""
        return [line[:MAX_TEXT_BYTES] for line in self.data.split(b"\n") if line]


class TextFiles:
    """Files that match ``patterns``, and files that the caller of ``discover`` names.

    Patterns are absolute; ``*`` matches within one name; ``%j`` is the job id. An invalid pattern raises ValueError.
    ``resume``: saved positions. Reading of a new file begins BACKLOG_BYTES before the file's end, or at its beginning
    if ``from_beginning`` is set. ``keeps_open``: see Follower. ``hangs``: leaves out what
    hangs. No method raises OSError.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        clock: Callable[[], float],
        *,
        resume: Sequence[Position] = (),
        from_beginning: bool = False,
        limits: FollowLimits = TEXT_LIMITS,
        wall_clock: Callable[[], float] = time.time,
        keeps_open: Callable[[str], bool] = lambda _path: False,
        hangs: HangGuard | None = None,
    ) -> None:
        self._patterns = [compiled_path_pattern(pattern) for pattern in patterns]
        self._listing = PatternListing(self._patterns, limits, hangs)
        self._follower = Follower(
            self._listing,
            clock,
            resume=resume,
            wall_clock=wall_clock,
            returns_end_lines=True,
            backlog_bytes=None if from_beginning else BACKLOG_BYTES,
            keeps_open=keeps_open,
        )
        self._queue: deque[FollowedFile] = deque()

    @property
    def available(self) -> bool:
        """Return True if a directory of the patterns existed at the last ``discover``."""
        return self._follower.available

    @property
    def waiting(self) -> bool:
        """Return True if a file still has unread bytes."""
        return bool(self._queue)

    def discover(self, named: Iterable[str] = ()) -> list[FollowedFile]:
        """Search for files, including the first MAX_NAMED paths of ``named``. Return all followed files."""
        self._listing.named = list(named)[:MAX_NAMED]
        return self._follower.discover()

    def read(
        self, budget_bytes: int, is_ours: Callable[[FollowedFile], bool] = lambda _file: True
    ) -> Iterator[TextLines]:
        """Yield about ``budget_bytes`` of new lines, from where the last call ended.

        Users take turns, and the files of a user take turns, with a chunk in each turn. ``is_ours``: returns True for a
        file to read.
        """
        queued = {file.identity for file in self._queue}  # a file that grows faster than it is read stays queued
        others = [file for file in self._follower.files() if file.identity not in queued and is_ours(file)]
        self._queue = deque(in_turns([*self._queue, *newest(others)], lambda file: file.share.uid))
        while self._queue and budget_bytes > 0:
            file = self._queue.popleft()
            for _ in range(2):  # the reader may close only a file that is read to its end, as after a short piece
                lines = self._read(file) if is_ours(file) else None
                if lines is not None:
                    budget_bytes -= len(lines.data) or SCAN_BYTES  # to skip a hole or a line can take this much
                    yield lines
                if lines is None or len(lines.data) >= PIECE_BYTES // 2:
                    break
            if lines is not None:
                self._queue.append(file)

    def job_id(self, file: FollowedFile) -> str | None:
        """Return the job id in the file's name, by the first matching pattern with ``%j``; else None."""
        for pattern in self._patterns:
            if (job_id := pattern.job_id(file.path)) is not None:
                return job_id
        return None

    def positions(self) -> list[Position]:
        """Return the read position in each file, for ``resume``."""
        return self._follower.positions()

    def close(self) -> None:
        """Close all files. Call nothing afterwards."""
        self._follower.close()

    def _read(self, file: FollowedFile) -> TextLines | None:
        chunk = self._follower.read(file, PIECE_BYTES)
        return None if chunk is None else TextLines(file, file.generation, chunk.data)


def newest(files: Iterable[FollowedFile], most: int | None = None) -> list[FollowedFile]:
    """Return the files, up to ``most``, with the users in turn, each user's most recently written files first."""
    return in_turns(sorted(files, key=lambda file: (-file.written_ns, file.path)), lambda file: file.share.uid, most)
