"""What a reader publishes: frozen copies of its totals, made in its thread and rendered in another."""

from __future__ import annotations

import msgspec

from agent.sdk.ranks import WriterKey
from exporters.inspector.format.records import OTHER
from exporters.inspector.format.series import MAX_TOTAL, SeriesKey, Total
from exporters.inspector.lateness.arrivals import Arrivals
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.budget import SERIES_PER_GAUGE, series_of
from exporters.inspector.totals.durations import Durations
from exporters.inspector.totals.losses import Tally
from exporters.inspector.transfers.pairs import PairBandwidth

WINDOW_SECONDS = 5.0
"""Length of the bus bandwidth gauge's window."""


class Sums(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Integer totals of a series."""

    operations: Total = 0
    message_bytes: Total = 0
    microseconds: Total = 0
    bus_bytes: Total = 0
    arrivals: Arrivals | None = None

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        arrivals = self.arrivals or other.arrivals
        if self.arrivals is not None and other.arrivals is not None:
            arrivals = self.arrivals.plus(other.arrivals)
        return Sums(
            min(MAX_TOTAL, self.operations + other.operations),
            min(MAX_TOTAL, self.message_bytes + other.message_bytes),
            min(MAX_TOTAL, self.microseconds + other.microseconds),
            min(MAX_TOTAL, self.bus_bytes + other.bus_bytes),
            arrivals,
        )


class Totals(msgspec.Struct, frozen=True, gc=False):
    """One accumulator at the time of publication."""

    key: SeriesKey
    sums: Sums


class WriterTotals(msgspec.Struct, frozen=True):
    """One writer's totals; ``caught_up`` is False while they may be less than before the agent's restart.

    ``places`` are all (communicator, rank in it) that need a label, ``windows`` bus bytes and microseconds by
    (communicator, rank in it, collective), ``tallies`` by (communicator, rank in it, what is counted), ``lost``
    collective operations that the plugin's ring or slot lost by (communicator, rank in it), ``transfers`` the
    microseconds of operations without waiting, where they are not known from all members; ``gauges``: how many
    series of windows were admitted. ``pairs``: those that are worth a series. ``durations`` by series, where they are
    counted.
    """

    writer_key: WriterKey
    caught_up: bool
    last_progress_us: int
    places: frozenset[tuple[str, int]]
    totals: tuple[Totals, ...]
    windows: tuple[tuple[str, int, str, int, int], ...]
    tallies: tuple[tuple[str, int, Tally, int], ...]
    lost: tuple[tuple[str, int, int], ...] = ()
    transfers: tuple[tuple[SeriesKey, int], ...] = ()
    gauges: int = 0
    pairs: tuple[PairBandwidth, ...] = ()
    durations: tuple[tuple[SeriesKey, Durations], ...] = ()

    @classmethod
    def of(cls, aggregate: Aggregate, *, caught_up: bool) -> WriterTotals:
        """Copy what is to be shown of ``aggregate``."""
        tallies = tuple((*key, count) for key, count in aggregate.losses.tallies().items())
        return cls(
            aggregate.writer_key,
            caught_up,
            aggregate.last_progress_us,
            aggregate.places(),
            tuple(
                Totals(key, Sums(own.operations, own.message_bytes, own.microseconds, own.bus_bytes, own.arrivals))
                for key, own in aggregate.accumulators.items()
            ),
            tuple(
                (*place, *latest)
                for place, window in aggregate.windows.items()
                if (latest := window.latest()) is not None
            ),
            tallies,
            tuple((*place, count) for place, count in aggregate.losses.lost().items()),
            tuple(
                (key, transfer.last_us)
                for key, transfer in aggregate.transfers.items()
                if transfer.last_us is not None and aggregate.accumulators[key].arrivals is None
            ),
            len(aggregate.windows) + len(aggregate.transfers),
            aggregate.pairs.shown(),
            tuple((key, own.copy()) for key, own in aggregate.durations.items()),
        )

    def series(self) -> int:
        """Return how many series its accumulators and gauges took of the budget."""
        admitted = sum(series_of(one.key, one.sums.arrivals) for one in self.totals if one.key.size != OTHER)
        return admitted + self.gauges * SERIES_PER_GAUGE
