"""A budget of what is never taken back once it is given, so shared out that a newcomer finds room. Pure."""

from __future__ import annotations

from collections.abc import Hashable

GREED = 2
"""How many times what it leaves free a group may hold."""

Group = tuple[Hashable, ...]
"""The owner of entries, the widest first: a user, then a directory of that user. An empty group is the total."""


class FairBudget:
    """Room for ``room`` entries, which groups hold; ``refused`` counts how often there was none.

    A group may grow while it then holds no more than GREED times what stays free. Groups above an equal share are
    refused early, so capacity remains for new ones and no entry is ever taken back. k groups that want everything
    get GREED / (GREED * k + 1) of it each. The groups within a group share in the same way what it
    may still take: one user's job with one directory gets 4/7 of all, and all jobs of one user 2/3.
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
