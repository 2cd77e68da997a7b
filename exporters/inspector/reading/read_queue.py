"""The files of one directory in the order in which they are read: each has its turn, whatever another one does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from agent.api import Clock
from exporters.inspector.reading.failures import FileFailures
from exporters.inspector.reading.record_files import RecordFile, RecordFiles


class ReadQueue:
    """Reads files a piece at a time; one that fails waits for its time, and keeps its place.

    ``read_some`` reads the next piece of a file and returns whether there was one.
    """

    def __init__(
        self, files: RecordFiles, read_some: Callable[[RecordFile], bool], failures: FileFailures, clock: Clock
    ) -> None:
        self._files = files
        self._read_some = read_some
        self._failures = failures
        self._clock = clock
        self._queue: deque[RecordFile] = deque()

    def __iter__(self) -> Iterator[RecordFile]:
        """All files, those included that have nothing to read."""
        return iter(self._queue)

    def take_up(self, files: Iterable[RecordFile]) -> None:
        """Take up those of the files that are not in the queue yet: none is ever left out of it."""
        queued = set(map(id, self._queue))
        self._queue.extend(record_file for record_file in files if id(record_file) not in queued)

    def read(self, now: float, deadline: float) -> bool:
        """Read in turns until nothing is left or the time is up (monotonic seconds); True when something waits."""
        idle: list[RecordFile] = []
        queue = self._queue
        while queue:
            record_file = queue.popleft()
            if self._files.get(record_file.file.identity) is not record_file:
                continue
            (queue if self._read_one(record_file, now) else idle).append(record_file)
            if self._clock.monotonic() >= deadline:
                break
        waiting = bool(queue)
        queue.extend(idle)
        return waiting

    def _read_one(self, record_file: RecordFile, now: float) -> bool:
        more = False
        if record_file.trouble.is_over(now):
            with self._failures.of(record_file.file, record_file.trouble, now):
                more = self._read_some(record_file)
        return more
