"""A budget of what is never taken back once it is given, so shared out that a newcomer finds room. Pure."""

from __future__ import annotations

from collections.abc import Hashable

GREED = 2
"""How many times what it leaves free a group may hold."""

Group = tuple[Hashable, ...]
"""Who asks, from the widest on: a user, and a directory of that user. An empty one is asked for the sum alone."""


class FairBudget:
    """Room for ``room`` entries, which groups hold; ``refused`` counts how often there was none.

    A group may grow while it then holds no more than GREED times what stays free. Nothing has to be taken back from who
    came first: whoever is above an equal share is refused long before the room is spent, and the free part, which
    shrinks by shares and never to nothing, is for those below theirs. k groups that want all there is get
    GREED / (GREED * k + 1) of it each. The groups within a group share out in the same way what it may still take, so
    that one user's job with one directory gets 4/7 of all, and all the jobs of one user 2/3.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: dict[Group, int] = {}
        self.taken = self.refused = 0

    def take(self, group: Group, amount: int = 1) -> bool:
        """Take room; False when the group, or a wider one, would hold too much."""
        free = self._room - self.taken - amount
        for depth in range(1, len(group) + 1):
            if free >= 0:
                free = GREED * free - self._held.get(group[:depth], 0) - amount
        if free < 0:
            self.refused += 1
            return False
        self.keep(group, amount)
        return True

    def keep(self, group: Group, amount: int) -> None:
        """Take room that was granted earlier, however little there is now."""
        self._change(group, amount)

    def give_back(self, group: Group, amount: int) -> None:
        """Give room back."""
        self._change(group, -amount)

    def _change(self, group: Group, by: int) -> None:
        self.taken += by
        for depth in range(1, len(group) + 1):
            held = self._held.pop(group[:depth], 0) + by
            if held:
                self._held[group[:depth]] = held
