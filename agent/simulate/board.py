"""The arrival board: a small shared file on which every rank of the job shows how far it is."""

import mmap
import os
from collections.abc import Iterable

WORD_BYTES = 8
END_REQUESTED, END_OPERATION, FAILED, HEADER_WORDS = 0, 1, 2, 3
"""Words before the slots: a launcher requests an orderly end; the last operation (0: none); a rank failed."""


class ProgressBoard:
    """One word per rank: 0 not initialised, n+1 when it has arrived at n operations. Each slot has one writer.

    Words are native and aligned and written through a cast view, which is one store: readers never see half a word.
    """

    def __init__(self, path: str, ranks: int) -> None:
        """Open the board, making it when this is the first to come; all openers agree on ``ranks``."""
        size_bytes = (HEADER_WORDS + ranks) * WORD_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(fd, size_bytes)
            self._words = memoryview(mmap.mmap(fd, size_bytes)).cast("Q")
            self.header = self._words[:HEADER_WORDS]
        finally:
            os.close(fd)

    def show(self, rank: int, arrivals: int) -> None:
        """Show that ``rank`` is initialised and has arrived at ``arrivals`` operations."""
        self._words[HEADER_WORDS + rank] = arrivals + 1

    def initialised(self) -> bool:
        """Return whether every rank of the job is."""
        return all(self._words[HEADER_WORDS:])

    def all_arrived(self, ranks: Iterable[int], arrivals: int) -> bool:
        """Return whether every one of ``ranks`` has arrived at ``arrivals`` operations or more."""
        words = self._words
        return all(words[HEADER_WORDS + rank] > arrivals for rank in ranks)
