"""The order in which one directory's files are read. Large files and files with errors block no other file."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from agent.sdk.exporter import Clock
from agent.sdk.files import Share
from exporters.inspector.reading.record_files import FileFailures, RecordFile, RecordFiles

M = TypeVar("M", bound=Hashable)


class _FairQueue(Generic[M]):
    """A fair queue: the member with the least time in this turn is next, among equals the one that waits longest."""

    def __init__(self, members: Iterable[M], served: dict[Hashable, int]) -> None:
        self._served = served
        self._heap = [(0.0, served.get(member, 0), index, member) for index, member in enumerate(members)]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def next(self) -> M:
        """Return the member to serve next."""
        return self._heap[0][3]

    def served(self, seconds: float, number: int, *, stays: bool) -> None:
        """Add ``seconds`` to the next member's time; drop this member unless it ``stays``. ``number``: of the piece."""
        before, _, index, member = self._heap[0]
        self._served[member] = number
        if stays:
            heapq.heapreplace(self._heap, (before + seconds, number, index, member))
        else:
            heapq.heappop(self._heap)


class ReadQueue:
    """Reads files a piece at a time.

    Users share a turn's time equally, a user's directories share the user's time, and a directory's files take turns.
    Unused time is shared in the same way. A file that fails is read again later from the same position.

    ``read_some`` reads the next piece of a file, and returns whether there was a piece.
    """

    def __init__(
        self, files: RecordFiles, read_some: Callable[[RecordFile], bool], failures: FileFailures, clock: Clock
    ) -> None:
        self._files = files
        self._read_some = read_some
        self._failures = failures
        self._clock = clock
        self._queues: dict[Share, deque[RecordFile]] = {}
        self._served: dict[Hashable, int] = {}
        self._pieces = 0

    def __iter__(self) -> Iterator[RecordFile]:
        """Iterate over all files, even those with nothing to read."""
        return chain.from_iterable(self._queues.values())

    def add(self, files: Iterable[RecordFile]) -> None:
        """Add the files that are not queued yet."""
        queued = set(map(id, self))
        for record_file in files:
            if id(record_file) not in queued:
                self._queues.setdefault(record_file.file.share, deque()).append(record_file)

    def read(self, now: float, deadline: float) -> bool:
        """Read files until none has more data or ``deadline`` (monotonic) is over; return True if files still wait."""
        self._forget()
        idle: list[RecordFile] = []
        directories: dict[int, list[Share]] = {}
        for share in self._queues:
            directories.setdefault(share.uid, []).append(share)
        fair_queues = {uid: _FairQueue(shares, self._served) for uid, shares in directories.items()}
        users = _FairQueue(fair_queues, self._served)
        began = self._clock.monotonic()
        while users:
            directories_of_user = fair_queues[users.next()]
            share = directories_of_user.next()
            queue = self._queues[share]
            record_file = queue.popleft()
            more = False
            if now >= record_file.retry_at:
                with self._failures.of(record_file, now):
                    more = self._read_some(record_file)
            (queue if more else idle).append(record_file)
            ended = self._clock.monotonic()
            self._pieces += 1
            directories_of_user.served(ended - began, self._pieces, stays=bool(queue))
            users.served(ended - began, self._pieces, stays=bool(directories_of_user))
            began = ended
            if ended >= deadline:
                break
        for record_file in idle:
            self._queues[record_file.file.share].append(record_file)
        return bool(users)

    def _forget(self) -> None:
        queues = {
            share: deque(
                record_file for record_file in queue if self._files.files.get(record_file.file.identity) is record_file
            )
            for share, queue in self._queues.items()
        }
        self._queues = {share: queue for share, queue in queues.items() if queue}
        members = {*self._queues, *(share.uid for share in self._queues)}
        self._served = {member: number for member, number in self._served.items() if member in members}
