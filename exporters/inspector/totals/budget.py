"""How many series what is added up takes of the budget, with derived_series, whether they are shown or not. Pure."""

from __future__ import annotations

from exporters.inspector.format.series import SeriesKey
from exporters.inspector.lateness.arrivals import Arrivals

SERIES_PER_ACCUMULATOR = 4
SERIES_PER_GAUGE = 1
SERIES_PER_RANKS_ARRIVALS = 2
SERIES_PER_COMMUNICATORS_ARRIVALS = 4


def series_of_arrivals(comm_rank: int) -> int:
    """Return how many series matched operations of one kind give a rank."""
    return SERIES_PER_RANKS_ARRIVALS + (SERIES_PER_COMMUNICATORS_ARRIVALS if comm_rank == 0 else 0)


def series_of(key: SeriesKey, arrivals: Arrivals | None) -> int:
    """Return how many series an accumulator takes that was admitted."""
    return SERIES_PER_ACCUMULATOR + (0 if arrivals is None else series_of_arrivals(key.comm_rank))
