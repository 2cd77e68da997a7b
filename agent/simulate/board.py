"""The progress board: a small shared file on which every rank of the job shows its progress."""

import mmap
import os
from collections.abc import Iterable

WORD_BYTES = 8
END_REQUESTED, END_OPERATION, FAILED, HEADER_WORDS = 0, 1, 2, 3
"""Words before the ranks' slots: a launcher requests an orderly end; the last operation (0: none); a rank failed."""


class ProgressBoard:
    """One word per rank: 0 before initialisation, n+1 after arrival at n operations. Each slot has one writer.

    Words are native, aligned and written through a cast view in one store: a reader never sees half a word.
    """

    def __init__(self, path: str, ranks: int) -> None:
        """Open the board, or create it; all openers have the same ``ranks``."""
        size_bytes = (HEADER_WORDS + ranks) * WORD_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(fd, size_bytes)
            self._words = memoryview(mmap.mmap(fd, size_bytes)).cast("Q")
            self.header = self._words[:HEADER_WORDS]
        finally:
            os.close(fd)

    def show(self, rank: int, arrivals: int) -> None:
        """Show that ``rank`` is initialised and arrived at ``arrivals`` operations."""
        self._words[HEADER_WORDS + rank] = arrivals + 1

    def initialised(self) -> bool:
        """Return True if every rank of the job is initialised."""
        return all(self._words[HEADER_WORDS:])

    def all_arrived(self, ranks: Iterable[int], arrivals: int) -> bool:
        """Return True if all of ``ranks`` arrived at ``arrivals`` operations or more."""
        words = self._words
        return all(words[HEADER_WORDS + rank] > arrivals for rank in ranks)
