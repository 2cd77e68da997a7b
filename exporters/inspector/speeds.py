"""How fast each rank is, for the pages that the agent shows to people. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from agent.sdk.ranks import RankLabel, RankSpeed
from exporters.inspector.totals.accumulators import Place
from exporters.inspector.totals.aggregate import P2P_SERIES
from exporters.inspector.totals.frozen import WriterTotals


def speeds(writers: Iterable[WriterTotals], labels: Mapping[Place, RankLabel]) -> dict[RankLabel, RankSpeed]:
    """Of each rank: the time-weighted bus bandwidth of its collectives over the last windows, its bytes, its lateness.

    Sends and receives wait for a peer's whole turn: they count for bytes alone.
    """
    windows: defaultdict[RankLabel, list[int]] = defaultdict(lambda: [0, 0])
    moved: defaultdict[RankLabel, int] = defaultdict(int)
    late: defaultdict[RankLabel, int] = defaultdict(int)
    for writer in writers:
        for label, (_, _, name), (bus_bytes, microseconds) in writer.labelled(writer.windows, labels):
            if name not in P2P_SERIES:
                windows[label][0] += bus_bytes
                windows[label][1] += microseconds
        for label, _, sums in writer.labelled(writer.totals, labels):
            moved[label] += sums.bus_bytes
            if sums.arrivals is not None:
                late[label] += sums.arrivals.lateness_us
    return {
        label: RankSpeed(
            windows[label][0] * 1_000_000 / windows[label][1] if label in windows else None,
            moved[label],
            late[label] / 1_000_000 if label in late else None,
        )
        for label in windows.keys() | moved.keys()
    }
