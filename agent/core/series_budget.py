"""Budgets shared out fairly, and who may create a series: a budget per rank and one for all."""

import threading
from collections.abc import Hashable

from agent.core.leased import Leased

SERIES_PER_RANK = 400
SERIES_IN_ALL = 50_000
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


class SeriesBudget:
    """The series of all exporters: ``in_all``, and ``per_rank`` of one owner's rank; ``refused`` counts requests."""

    def __init__(self, per_rank: int = SERIES_PER_RANK, in_all: int = SERIES_IN_ALL) -> None:
        self.per_rank = per_rank
        self.shares = FairBudget(in_all)
        self.lock = threading.Lock()
        self.refused = 0


class Admission(Leased[SeriesBudget]):
    """Counts an exporter's series by owner. The exporter adds refused series to `other` from their first sample.

    Folding a series into `other` later would make `other` jump, and the series that vanished look like a reset. So none
    is ever taken back: an owner's ``group`` (its user, and a part of that user's) has a fair share of the budget for
    all instead, as FairBudget has it, which leaves room for groups to come. ``close`` gives everything back.
    Exporters ask from threads of their own, hence the lock: it is taken only when a series is born or buried.
    """

    def __init__(self, budget: SeriesBudget) -> None:
        super().__init__(budget)
        self._held: dict[Hashable, int] = {}
        self._group: dict[Hashable, Group] = {}

    def admit(self, owner: Hashable, series: int, ranks: int = 1, group: Group = ()) -> bool:
        """Reserve ``series`` for ``owner``, which holds ``ranks`` ranks; False, and counted, when a budget is spent.

        The first admission fixes an owner's ``group``. Without one only the total and the budget per rank apply.
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
        """Give back some of what ``owner`` holds."""
        with self._table.lock:
            shares, given = self._lent.shares, min(series, self._held.get(owner, 0))
            if given:
                self._held[owner] -= given
                shares.give_back(self._group[owner], given)

    def release(self, owner: Hashable) -> None:
        """Give back all that ``owner`` holds."""
        with self._table.lock:
            self._lent.shares.give_back(self._group.pop(owner, ()), self._held.pop(owner, 0))

    def close(self) -> None:
        """Give back all that any owner holds."""
        with self._table.lock:
            super().close()
            while self._held:
                owner, series = self._held.popitem()
                self._table.shares.give_back(self._group.pop(owner), series)
