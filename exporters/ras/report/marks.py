"""A mark for what each rank of a communicator has launched, by which two reports are compared rank by rank. Pure.

Not who answers, but what those launched that answer in both, tells whether a communicator goes on.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Sequence

Marks = bytes
"""Of each rank in turn its number and its mark, four bytes each; compact, as a report may hold 75,000."""
MARK_BYTES = 8
"""Of one rank."""


def marks_of(counts: Iterable[tuple[int, Sequence[int]]]) -> Marks:
    """Return the marks of ranks, each with its launches by collective."""
    found = array("I")
    for rank, launched in counts:
        found.extend((rank, zlib.crc32(array("Q", launched).tobytes())))
    return found.tobytes()


def differ(before: Marks, after: Marks) -> bool:
    """Return True when a rank that is in both has another mark."""
    if before == after:
        return False
    known = _by_rank(before)
    return any(known.get(rank, mark) != mark for rank, mark in _by_rank(after).items())


def taken_together(before: Marks, after: Marks) -> Marks:
    """Return the marks of ``after``, and of the ranks that only ``before`` has."""
    if before == after:
        return after
    found = array("I")
    for item in (_by_rank(before) | _by_rank(after)).items():
        found.extend(item)
    return found.tobytes()


def _by_rank(marks: Marks) -> dict[int, int]:
    numbers = array("I", marks)
    return dict(zip(numbers[::2], numbers[1::2], strict=True))
