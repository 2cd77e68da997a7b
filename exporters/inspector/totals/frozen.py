"""The totals that a reader publishes: copies that its thread makes and another thread renders. They never change."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.sdk.ranks import RankLabel, RankSpeed, WriterKey
from exporters.inspector.format.records import OTHER, SeriesKey
from exporters.inspector.totals.accumulators import Accumulator, Member
from exporters.inspector.totals.aggregate import Aggregate
from exporters.inspector.totals.losses import Tally
from exporters.inspector.totals.shared import SERIES_PER_GAUGE, series_of
from exporters.inspector.totals.since_start import Counted, WriterCount

WINDOW_SECONDS = 5.0  # Length of a window of the bus bandwidth gauge

K = TypeVar("K", bound=tuple[object, ...])
V = TypeVar("V")


class WriterTotals(msgspec.Struct, frozen=True):
    """One writer's totals; ``caught_up`` is False while they may be less than before the agent's restart.

    ``places``: all (communicator, rank in it) that need a label; all keys below begin with such a pair. ``windows``:
    bus bytes and microseconds by collective. ``lost``: collective operations that the plugin's ring or slot lost.
    ``transfers``: transfer times without waits (microseconds), in communicators whose operations are not matched.
    ``gauges``: the number of admitted series of windows and of transfer times. ``pairs``: bytes per second of the pairs
    that get a series. ``algorithms``: NCCL's latest algorithm and protocol.
    """

    writer_key: WriterKey
    caught_up: bool
    last_progress_us: int
    places: frozenset[tuple[str, int]]
    totals: dict[SeriesKey, Accumulator]
    windows: dict[tuple[str, int, str], tuple[int, int]] = {}
    tallies: dict[tuple[str, int, Tally], int] = {}
    lost: dict[tuple[str, int], int] = {}
    transfers: dict[SeriesKey, int] = {}
    gauges: int = 0
    pairs: dict[tuple[str, int, int, str, int, str], float] = {}
    algorithms: dict[SeriesKey, tuple[str, str]] = {}
    since_start: dict[WriterCount, tuple[int, ...]] = {}

    @classmethod
    def of(cls, aggregate: Aggregate, *, caught_up: bool) -> WriterTotals:
        """Copy the totals of ``aggregate``."""
        tallies = aggregate.losses.tallies()
        return cls(
            aggregate.writer_key,
            caught_up,
            aggregate.last_progress_us,
            frozenset({key[:2] for key in aggregate.accumulators} | {key[:2] for key in tallies}),
            {key: copy.copy(accumulator) for key, accumulator in aggregate.accumulators.items()},
            {key: last for key, window in aggregate.series.windows.items() if (last := window.latest()) is not None},
            tallies,
            aggregate.losses.lost(),
            {
                key: transfer.last_us
                for key, transfer in aggregate.series.transfers.items()
                if transfer.last_us is not None and aggregate.accumulators[key].arrivals is None
            },
            len(aggregate.series.windows) + len(aggregate.series.transfers),
            aggregate.pairs.shown(),
            dict(aggregate.algorithms),
            dict(aggregate.since_start),
        )

    def labelled(self, items: Mapping[K, V], labels: Mapping[Member, RankLabel]) -> Iterator[tuple[RankLabel, K, V]]:
        """Yield (label, key, value) for each of the ``items`` whose place (communicator, rank in it) has a label; a key
        begins with its place."""
        ranks = {place: label for place in self.places if (label := labels.get((self.writer_key, *place))) is not None}
        for key, value in items.items():
            if (label := ranks.get(key[:2])) is not None:  # type: ignore[arg-type]  # keys begin with a place
                yield label, key, value

    def series(self) -> int:
        """Return how many series of the budget the writer's accumulators, gauges and proxy connections take."""
        admitted = sum(
            series_of(key, accumulator.arrivals) for key, accumulator in self.totals.items() if key.size != OTHER
        )
        counts = self.since_start.items()
        connections = sum(len(n) for (_, _, of, labels), n in counts if of is Counted.PROXY and labels[-1] != OTHER)
        return admitted + self.gauges * SERIES_PER_GAUGE + connections


def speeds(writers: Iterable[WriterTotals], labels: Mapping[Member, RankLabel]) -> dict[RankLabel, RankSpeed]:
    """Return by rank the time-weighted bus bandwidth of its collectives over the last windows, and its lateness.

    Sends and receives have no windows: their times include long waits for the peer.
    """
    windows: defaultdict[RankLabel, list[int]] = defaultdict(lambda: [0, 0])
    lateness_us: defaultdict[RankLabel, int] = defaultdict(int)
    for writer in writers:
        for label, _, (bus_bytes, microseconds) in writer.labelled(writer.windows, labels):
            windows[label][0] += bus_bytes
            windows[label][1] += microseconds
        for label, _, sums in writer.labelled(writer.totals, labels):
            if sums.arrivals is not None:
                lateness_us[label] += sums.arrivals.lateness_us
    return {
        label: RankSpeed(
            windows[label][0] * 1_000_000 / windows[label][1] if label in windows else None,
            lateness_us[label] / 1_000_000 if label in lateness_us else None,
        )
        for label in windows.keys() | lateness_us.keys()
    }
