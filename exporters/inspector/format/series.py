"""What records are added up under: one writer's series, and the size classes. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated, NamedTuple

import msgspec

MAX_TOTAL = 1 << 62
"""Where every total stays: a hostile job must not make integers that no checkpoint can hold."""
Total = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOTAL)]

SIZE_BOUNDS = tuple(8192 * 4**step for step in range(12))
"""Upper bounds of the size classes in bytes, inclusive: powers of four from 8 KiB to 32 GiB."""
SIZE_LABELS = (*(str(bound) for bound in SIZE_BOUNDS), "+Inf")


class SeriesKey(NamedTuple):
    """One accumulator of a writer; ``size`` is a label of SIZE_LABELS, or `other` when the series was not admitted.

    ``comm`` is `other` only beyond MAX_COMMUNICATORS: what was refused keeps its communicator here, so that its rank
    is known, and is shown under `other`.
    """

    comm: str
    comm_rank: int
    collective: str  # or a P2P name of records.P2P_NAMES
    size: str


def size_label(size_bytes: int) -> str:
    """Return the size class of a message: its upper bound in bytes, inclusive, or "+Inf"."""
    return SIZE_LABELS[bisect_left(SIZE_BOUNDS, size_bytes)]
