"""Text that jobs write, line by line, from files named by patterns. It blocks: for a thread of the exporter's own."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.tail.file import CHUNK_BYTES, FollowedFile, Position
from agent.tail.follower import Follower
from agent.tail.listing import FollowLimits, Skip, Take
from agent.tail.patterns import PatternListing, compiled_path_pattern

BACKLOG_BYTES = 16 * 1024 * 1024
"""Of what a file holds when it is found, so much at most is read."""
MAX_TEXT_BYTES = 8 * 1024
"""A line's end beyond this is cut."""
MAX_NAMED = 4096
TEXT_LIMITS = FollowLimits(directories=1024)
PIECE_BYTES = CHUNK_BYTES


class TextLines(NamedTuple):
    """What one read gave: whole lines, each with a newline at its end, also where it ended in a carriage return.

    ``job_id`` is the one in the file's name, None without; ``uid`` is the file's owner. ``generation`` changes when the
    file was begun anew.
    """

    file: FollowedFile
    generation: int
    job_id: str | None
    uid: int
    data: bytes

    def lines(self) -> list[bytes]:
        """The lines without their ends, each cut to MAX_TEXT_BYTES; empty ones are left out."""
        return [line[:MAX_TEXT_BYTES] for line in self.data.split(b"\n") if line]


class TextFiles:
    """The files that fit ``patterns`` (absolute; ``*`` within one name, ``%j``: the job id) and those named in a look.

    ``resume``: positions of an earlier life. What a file holds when it is found is read from its last BACKLOG_BYTES on;
    ``from_beginning``: all of it. ``keeps_open``: see Follower. ValueError for a pattern that is none. No OSError
    leaves this class.
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
    ) -> None:
        self._patterns = [compiled_path_pattern(pattern) for pattern in patterns]
        self._follower = Follower(
            Path("/"),
            lambda _name: True,
            clock,
            resume=resume,
            limits=limits,
            wall_clock=wall_clock,
            listing=self._make_listing,
            returns_end_lines=True,
            backlog_bytes=None if from_beginning else BACKLOG_BYTES,
            keeps_open=keeps_open,
        )
        self._queue: deque[FollowedFile] = deque()

    @property
    def available(self) -> bool:
        """Whether a directory of the patterns was there at the last look."""
        return self._follower.available

    @property
    def waiting(self) -> bool:
        """Whether the last ``read`` left files whose end it did not reach."""
        return bool(self._queue)

    def discover(self, named: Iterable[str] = ()) -> list[FollowedFile]:
        """Look for files, also those of the paths ``named``, MAX_NAMED at most; return those followed now."""
        self._listing.named = list(named)[:MAX_NAMED]
        return self._follower.discover()

    def read(
        self, budget_bytes: int, is_ours: Callable[[FollowedFile], bool] = lambda _file: True
    ) -> Iterator[TextLines]:
        """Read about so many bytes, a piece of each file in turn, the files of each user in turn, from where the last
        call ended; ``is_ours`` says which files to read at all.
        """
        if not self._queue:
            self._queue.extend(_in_turns([file for file in self._follower.files() if is_ours(file)]))
        while self._queue and budget_bytes > 0:
            file = self._queue.popleft()
            found = self._read(file) if is_ours(file) else None
            if found is not None and len(found.data) < PIECE_BYTES // 2:
                # Its end, most likely: who is read to the end gives way where many want to be open.
                budget_bytes -= len(found.data)
                yield found
                found = self._read(file)
            if found is not None:
                self._queue.append(file)
                budget_bytes -= max(1, len(found.data))
                yield found

    def head(self, file: FollowedFile) -> bytes:
        """Up to 4 KiB from the front of a file; empty when it cannot be read."""
        return self._follower.head(file)

    def job_id(self, file: FollowedFile) -> str | None:
        """The job id in the file's name, by the first pattern that has one."""
        for pattern in self._patterns:
            if (found := pattern.job_id(file.path)) is not None:
                return found
        return None

    def positions(self) -> list[Position]:
        """Where reading stands in each file, for ``resume``."""
        return self._follower.positions()

    def close(self) -> None:
        """Close all files; this is of no use after it."""
        self._follower.close()

    def _make_listing(self, limits: FollowLimits, skipped: Counter[str], take: Take, skip: Skip) -> PatternListing:
        self._listing = PatternListing(self._patterns, limits, skipped, take, skip)
        return self._listing

    def _read(self, file: FollowedFile) -> TextLines | None:
        chunk = self._follower.read(file, PIECE_BYTES)
        if chunk is None:
            return None
        return TextLines(file, file.generation, self.job_id(file), file.share.uid, chunk.data)


def _in_turns(files: Iterable[FollowedFile]) -> list[FollowedFile]:
    """One file of each user after another, of a user those written to last first."""
    rank: Counter[int] = Counter()
    ranked = []
    for file in sorted(files, key=lambda file: -file.written_ns):
        ranked.append((rank[file.share.uid], file))
        rank[file.share.uid] += 1
    return [file for _, file in sorted(ranked, key=lambda each: each[0])]
