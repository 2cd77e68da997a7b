"""Tables with limits that users share fairly: followed files, and saved positions of lost files. Pure."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from agent.tail.file import FollowedFile, Position
from agent.tail.shares import FairTable, Share

Identity = tuple[int, int]
_Entry = tuple[bool, int, Identity]
"""Whether a file is busy, the time of its last write, and its identity: the smallest entry is evicted first."""
MAX_LOST = 1024
"""Limit of lost files with a saved position: a renamed file or an unmounted directory may return."""
MAX_FORGOTTEN = 65_536


class FollowedFiles(FairTable[Identity, FollowedFile]):
    """Followed files by identity, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._heaps: dict[Share, list[_Entry]] = {}

    def is_full(self) -> bool:
        """Return True if the limit is reached."""
        return len(self) >= self._limit

    def begin_look(self) -> None:
        """Start a new search for files: compute the order of eviction again."""
        self._heaps.clear()

    def add(self, file: FollowedFile) -> None:
        """Add a file."""
        self.put(file.identity, file, file.share)
        if file.share in self._heaps:
            heapq.heappush(self._heaps[file.share], _entry(file))

    def displaced_by(self, share: Share, written_ns: int) -> FollowedFile | None:
        """Remove and return the file to evict for a new file; None if the new file is refused.

        The evicted file is of the share that ``losing_share`` names: the idle file with the oldest last write, or
        without an idle file the busy file with the oldest last write. A new file of this share evicts only an idle file
        that was written earlier.
        """
        loser = self.losing_share(share)
        if loser not in self._heaps:
            self._heaps[loser] = [_entry(self[identity]) for identity in self.of(loser)]
            heapq.heapify(self._heaps[loser])
        heap = self._heaps[loser]
        while heap and heap[0][2] not in self:
            heapq.heappop(heap)
        if not heap or (loser == share and (heap[0][0] or heap[0][1] >= written_ns)):
            return None
        return self.pop(heapq.heappop(heap)[2])


def _entry(file: FollowedFile) -> _Entry:
    return not _is_idle(file), file.written_ns, file.identity


def _is_idle(file: FollowedFile) -> bool:
    """Return True if ``file`` is closed, and is read to its end or was never read."""
    closed = file.descriptor is None and not file.unlinked and file.modified_ns >= 0
    return closed and (file.drained or not file.fingerprint)


class LostPositions(FairTable[Identity, Position]):
    """Saved positions by identity, at most MAX_LOST; evictions and refusals are counted as ``left_limit``.

    ``generations``: the first unused generation for each identity.
    """

    def __init__(
        self, positions: Iterable[Position], generations: Mapping[Identity, int], skipped: Counter[str]
    ) -> None:
        super().__init__()
        self.generations = dict(generations)
        self._skipped = skipped
        for position in positions:
            self.save(position)

    def retire(self, position: Position) -> None:
        """Save the position in case the file returns, and the next generation in case another file gets the inode."""
        self.generations[position.device, position.inode] = position.generation + 1
        if len(self.generations) > MAX_FORGOTTEN:
            del self.generations[next(iter(self.generations))]
        if position.fingerprint:
            self.save(position)

    def save(self, position: Position) -> None:
        """Save a position; at the limit the share with the most positions loses its oldest position."""
        identity = (position.device, position.inode)
        self.pop(identity)
        if len(self) >= MAX_LOST:
            self._skipped["left_limit"] += 1
            oldest = next(iter(self.of(self.losing_share(position.share))), None)
            if oldest is None:
                return
            self.pop(oldest)
        self.put(identity, position, position.share)
