"""Divides room among users: decides which entry is dropped, and which bundle a new one evicts. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agent.sdk.evidence import folder as bundle_files

MOST_TIMES = 4
"""The node's limit in multiples of ``keep_bundles``: users' only bundles and those of open pages stay up to it."""


def oldest_of_largest(users: Sequence[str]) -> int:
    """Return the index of the entry to drop, the oldest of the user with the most; ``users``: oldest entry first.

    The last entry is new and is never dropped: its user has an older one, or another user has as many.
    """
    counts = Counter(users)
    most = max(counts.values())
    return next(number for number, user in enumerate(users) if counts[user] == most)


class Held(NamedTuple):
    """One bundle: its job's user, and whether a page may be open on that job."""

    user: str
    is_open: bool


def most_kept(keep: int) -> int:
    """Return the node's limit of bundles; ``keep``: ``keep_bundles``."""
    return min(MOST_TIMES * keep, bundle_files.MAX_LISTED)


def evicted(held: Sequence[Held], keep: int) -> int | None:
    """Return the index of the bundle to evict, or None; ``held``: the oldest first, the new one last.

    Up to ``keep`` all stay. Beyond it the oldest of the user with the most is evicted, but no user's only one, and none
    of an open page. Beyond the node's limit bundles of open pages are evicted too. If each user has one bundle, the
    oldest without an open page is evicted; if there is none, the new one is.
    """
    if len(held) <= keep:
        return None
    counts = Counter(bundle.user for bundle in held)
    older = range(len(held) - 1)
    not_only = [number for number in older if counts[held[number].user] > 1]
    candidates = [number for number in not_only if not held[number].is_open]
    if not candidates:
        if len(held) <= most_kept(keep):
            return None
        candidates = not_only or [number for number in older if not held[number].is_open]
    return max(candidates, key=lambda number: (counts[held[number].user], -number), default=len(held) - 1)
