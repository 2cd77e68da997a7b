"""Who may create a series: a budget per rank and one for all, asked when an accumulator is born."""

from __future__ import annotations

import threading
from collections.abc import Hashable

SERIES_PER_RANK = 400
SERIES_IN_ALL = 50_000


class Admission:
    """Counts series by owner; what is refused must be gathered under `other` from its birth.

    Folding a series into `other` later would make `other` jump, and the series that vanished look like a reset.
    Exporters ask from threads of their own, hence the lock: it is taken only when a series is born or buried.
    """

    def __init__(self, per_rank: int = SERIES_PER_RANK, in_all: int = SERIES_IN_ALL) -> None:
        self._per_rank = per_rank
        self._in_all = in_all
        self._held: dict[Hashable, int] = {}
        self._total = 0
        self._lock = threading.Lock()
        self.refused = 0

    def admit(self, owner: Hashable, series: int, ranks: int = 1) -> bool:
        """Reserve ``series`` for ``owner``, which holds ``ranks`` ranks; False, and counted, when a budget is spent."""
        with self._lock:
            held = self._held.get(owner, 0)
            if held + series > self._per_rank * ranks or self._total + series > self._in_all:
                self.refused += 1
                return False
            self._held[owner] = held + series
            self._total += series
            return True

    def give_back(self, owner: Hashable, series: int) -> None:
        """Give back some of what ``owner`` holds."""
        with self._lock:
            given = min(series, self._held.get(owner, 0))
            if given:
                self._held[owner] -= given
                self._total -= given

    def release(self, owner: Hashable) -> None:
        """Give back all that ``owner`` holds."""
        with self._lock:
            self._total -= self._held.pop(owner, 0)
