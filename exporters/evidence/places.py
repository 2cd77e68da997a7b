"""Which bundle goes when another comes: places by user, then by age. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agent.api import evidence_folder as place

MOST_TIMES = 4
"""How many times ``keep_bundles`` there may be at most, where users' only bundles and those of open pages stay."""


class Held(NamedTuple):
    """One bundle: its job's user, and whether a page may be open on that job."""

    user: str
    is_open: bool


def most_kept(keep: int) -> int:
    """Return how many bundles a node has at most; ``keep``: see the configuration."""
    return min(MOST_TIMES * keep, place.MAX_LISTED)


def evicted(held: Sequence[Held], keep: int) -> int | None:
    """Return which bundle goes, the oldest first and the newcomer last; None where all may stay.

    Up to ``keep`` all stay. Beyond it the oldest of the user with most bundles goes, but no user's only one, and none
    of an open page. At the limit of the node bundles of open pages go too, of users with several; then users' only ones
    of no open page, the oldest first; then the newcomer.
    """
    if len(held) <= keep:
        return None
    counts = Counter(each.user for each in held)
    older = range(len(held) - 1)
    surplus = [number for number in older if counts[held[number].user] > 1]
    candidates = [number for number in surplus if not held[number].is_open]
    if not candidates:
        if len(held) <= most_kept(keep):
            return None
        candidates = surplus or [number for number in older if not held[number].is_open]
    return max(candidates, key=lambda number: (counts[held[number].user], -number), default=len(held) - 1)
