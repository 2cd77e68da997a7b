"""Limit series fairly: a limit per rank, and one for all ranks that groups of owners share."""

import threading
from collections.abc import Hashable

from agent.core.leased import Leased

SERIES_PER_RANK = 400
SERIES_IN_ALL = 50_000
GREED = 2
"""A group may hold at most this many times the free room."""

Group = tuple[Hashable, ...]
"""Owner of entries, the widest group first: a user, then a directory of that user. An empty group is the total."""


class FairBudget:
    """Room for ``room`` entries that groups share. ``refused``: number of refusals.

    A group may grow while it then holds at most GREED times the free room. Groups above an equal share are refused
    early, so capacity remains for new ones and no entry is ever taken back. If k groups want everything, each gets
    GREED / (GREED * k + 1) of it. Subgroups share their group's room in the same way: one user's job with one directory
    gets 4/7 of all, and all jobs of one user 2/3.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: dict[Group, int] = {}
        self.taken = self.refused = 0

    def take(self, group: Group, amount: int = 1) -> bool:
        """Take room; return False if the group, or a wider group, would hold too much."""
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
        """Take room that was granted earlier, even if it exceeds the limit now."""
        self.taken += amount
        for depth in range(1, len(group) + 1):
            held = self._held.pop(group[:depth], 0) + amount
            if held:
                self._held[group[:depth]] = held

    def give_back(self, group: Group, amount: int) -> None:
        """Release room."""
        self.keep(group, -amount)


class SeriesBudget:
    """Limits of all exporters' series: ``in_all``, and ``per_rank`` of one rank. ``refused``: refused requests."""

    def __init__(self, per_rank: int = SERIES_PER_RANK, in_all: int = SERIES_IN_ALL) -> None:
        self.per_rank = per_rank
        self.shares = FairBudget(in_all)
        self.lock = threading.Lock()
        self.refused = 0


class Admission(Leased[SeriesBudget]):
    """Counts an exporter's series by owner. The exporter adds refused series to `other` from their first sample.

    Folding a series into `other` later would make `other` jump, and the end of that series would look like a reset. So
    none is ever taken back. Instead an owner's ``group`` (its user, and a part of that user's jobs) has a fair share of
    the total, which leaves room for later groups (see FairBudget). ``close`` releases everything. Exporters call from
    their own threads, hence the lock; only creating or removing a series takes it.
    """

    def __init__(self, budget: SeriesBudget) -> None:
        super().__init__(budget)
        self._held: dict[Hashable, int] = {}
        self._group: dict[Hashable, Group] = {}

    def admit(self, owner: Hashable, series: int, ranks: int = 1, group: Group = ()) -> bool:
        """Reserve ``series`` for ``owner``, which has ``ranks`` ranks; count and return False if a limit is reached.

        The first admission fixes the owner's ``group``. Without a group only the total and the limit per rank apply.
        """
        with self._table.lock:
            budget, held, group = self._lent, self._held.get(owner, 0), self._group.get(owner, group)
            if held + series > budget.per_rank * ranks or not budget.shares.take(group, series):
                budget.refused += 1
                return False
            self._held[owner] = held + series
            self._group[owner] = group
            return True

    def give_back(self, owner: Hashable, series: int) -> None:
        """Release some series of ``owner``."""
        with self._table.lock:
            shares, given = self._lent.shares, min(series, self._held.get(owner, 0))
            if given:
                self._held[owner] -= given
                shares.give_back(self._group[owner], given)

    def release(self, owner: Hashable) -> None:
        """Release all series of ``owner``."""
        with self._table.lock:
            self._lent.shares.give_back(self._group.pop(owner, ()), self._held.pop(owner, 0))

    def close(self) -> None:
        """End the lease and release the series of all owners."""
        with self._table.lock:
            super().close()
            while self._held:
                owner, series = self._held.popitem()
                self._table.shares.give_back(self._group.pop(owner), series)
