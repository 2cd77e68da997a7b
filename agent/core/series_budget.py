"""Who may create a series: a budget per rank and one for all, asked when an accumulator is born."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from agent.core.fair_budget import FairBudget, Group

SERIES_PER_RANK = 400
SERIES_IN_ALL = 50_000


class Admission:
    """Counts series by owner; what is refused must be gathered under `other` from its birth.

    Folding a series into `other` later would make `other` jump, and the series that vanished look like a reset. So none
    is ever taken back: an owner's ``group`` (its user, and a part of that user's) has a fair share of the budget for
    all instead, as FairBudget has it, which leaves room for groups to come.
    Exporters ask from threads of their own, hence the lock: it is taken only when a series is born or buried.
    """

    def __init__(self, per_rank: int = SERIES_PER_RANK, in_all: int = SERIES_IN_ALL) -> None:
        self._per_rank = per_rank
        self._held: dict[Hashable, int] = {}
        self._group: dict[Hashable, Group] = {}
        self._budget = FairBudget(in_all)
        self._lock = threading.Lock()
        self.refused = 0

    @property
    def taken(self) -> int:
        """Return how many series there are."""
        return self._budget.taken

    def admit(self, owner: Hashable, series: int, ranks: int = 1, group: Group = ()) -> bool:
        """Reserve ``series`` for ``owner``, which holds ``ranks`` ranks; False, and counted, when a budget is spent.

        An owner is of the ``group`` it was in when it was first admitted; one of none is bound by the sum alone.
        """
        with self._lock:
            held = self._held.get(owner, 0)
            group = self._group.get(owner, group)
            if held + series > self._per_rank * ranks or not self._budget.take(group, series):
                self.refused += 1
                return False
            self._held[owner] = held + series
            self._group[owner] = group
            return True

    def give_back(self, owner: Hashable, series: int) -> None:
        """Give back some of what ``owner`` holds."""
        with self._lock:
            given = min(series, self._held.get(owner, 0))
            if given:
                self._held[owner] -= given
                self._budget.give_back(self._group[owner], given)

    def release(self, owner: Hashable) -> None:
        """Give back all that ``owner`` holds."""
        with self._lock:
            self._budget.give_back(self._group.pop(owner, ()), self._held.pop(owner, 0))
