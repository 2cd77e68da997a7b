"""Room for several users: the user with the most entries loses one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def gives_way(users: Sequence[str]) -> int:
    """Return which makes room of what there is, the oldest first, by its users: the oldest of the user with most.

    The last one is the newcomer, which never does: of its user there is an older one, or others have as many.
    """
    counts = Counter(users)
    most = max(counts.values())
    return next(number for number, user in enumerate(users) if counts[user] == most)


def fairly(items: Sequence[T], owners: Sequence[Hashable], most: int) -> list[T]:
    """Return at most ``most`` items, one of each owner after the other: one who has many costs no other a place."""
    counts: Counter[Hashable] = Counter()
    places = []
    for owner in owners:
        counts[owner] += 1
        places.append(counts[owner])
    chosen = sorted(range(len(items)), key=places.__getitem__)[:most]
    return [items[number] for number in sorted(chosen)]
