"""Room for several users' bundles: whoever has most makes room. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def gives_way(users: Sequence[str]) -> int:
    """Return which makes room of what there is, the oldest first, by its users: the oldest of the user with most.

    The last one is the newcomer, which never does: of its user there is an older one, or others have as many.
    """
    counts = Counter(users)
    most = max(counts.values())
    return next(number for number, user in enumerate(users) if counts[user] == most)
