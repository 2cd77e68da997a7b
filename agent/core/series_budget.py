"""Limit the number of series: per rank, and in all, with fair shares for groups of owners."""

import threading
from collections.abc import Hashable

from agent.core.leased import Leased

SERIES_PER_RANK = 400
SERIES_IN_ALL = 50_000
GREED = 2
"""A group holds at most this many times the number of free entries."""

Group = tuple[Hashable, ...]
"""Owner of entries as a tuple, the widest group first, such as (user, directory). The empty tuple is the total."""


class FairBudget:
    """A limit of ``room`` entries that groups share. ``refused``: number of refusals.

    An entry is admitted if its group then holds at most GREED times the number of free entries. So groups above an
    equal share are refused early, entries stay free for new groups, and no entry is ever evicted. If k groups each
    request all entries, each group gets GREED / (GREED * k + 1) of them. Subgroups share their group's limit in the
    same way: one user's job with one directory gets 4/7 of all entries, and all jobs of one user get 2/3.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._held: dict[Group, int] = {}
        self.taken = self.refused = 0

    def take(self, group: Group, amount: int = 1) -> bool:
        """Add ``amount`` entries; return False if the group, or a wider group, would hold too many."""
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
        """Add entries that were admitted earlier, even above the limit."""
        self.taken += amount
        for depth in range(1, len(group) + 1):
            held = self._held.pop(group[:depth], 0) + amount
            if held:
                self._held[group[:depth]] = held

    def give_back(self, group: Group, amount: int) -> None:
        """Remove ``amount`` entries."""
        self.keep(group, -amount)


class SeriesBudget:
    """Limits of the number of series: ``in_all`` for all exporters, ``per_rank`` for a rank. ``refused``: number of
    refusals."""

    def __init__(self, per_rank: int = SERIES_PER_RANK, in_all: int = SERIES_IN_ALL) -> None:
        self.per_rank = per_rank
        self.shares = FairBudget(in_all)
        self.lock = threading.Lock()
        self.refused = 0


class Admission(Leased[SeriesBudget]):
    """Counts an exporter's series by owner. The exporter adds refused series to `other` from their first sample.

    Adding a series to `other` later would make `other` jump, and the end of that series would look like a reset. So an
    admitted series is never evicted. Instead an owner's ``group`` (a user, and a job or directory of the user) has a
    fair share of the total, and later groups still get series (see FairBudget). ``close`` releases everything.
    Exporters call from their own threads, hence the lock; only creating or removing a series takes the lock.
    """

    def __init__(self, budget: SeriesBudget) -> None:
        super().__init__(budget)
        self._held: dict[Hashable, int] = {}
        self._group: dict[Hashable, Group] = {}

    def admit(self, owner: Hashable, series: int, ranks: int = 1, group: Group = ()) -> bool:
        """Reserve ``series`` series for ``owner``, which has ``ranks`` ranks; return False at a limit.

        The first admission sets the owner's ``group``. For an empty group only the total and the limit per rank apply.
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
        """Release ``series`` series of ``owner``."""
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
