"""Speeds of ranks, and their lateness in the last minute, for the status page and `/api/v1/ranks`."""

from collections import deque
from collections.abc import Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import RankLabel

STEP_SECONDS = 5.0
LATE_SECONDS = 60.0
MAX_TRACKS = 4096
"""Limit of ranks whose lateness in the last minute is known; other ranks show only their bandwidth."""


class RankSpeed(msgspec.Struct, frozen=True):
    """Speed of a rank, from an exporter.

    ``bus_bandwidth_bytes_per_second``: over the last seconds with data, None without data. ``lateness_seconds``: total
    time that all other ranks waited for this rank alone; None if no communicator measures it.
    """

    bus_bandwidth_bytes_per_second: float | None = None
    lateness_seconds: float | None = None


class RankSpeeds:
    """Current speeds of the node's ranks, and their lateness over the last LATE_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._speeds: Mapping[RankLabel, RankSpeed] = {}
        self._lateness: dict[RankLabel, deque[tuple[float, float]]] = {}

    def observe(self, speeds: Mapping[RankLabel, RankSpeed]) -> None:
        """Replace the speeds of all ranks. If a lateness decreased, its counter restarted at 0."""
        now = self._clock.monotonic()
        self._speeds = speeds
        known = {label: track for label, track in self._lateness.items() if label in speeds}
        for label, speed in speeds.items():
            late = speed.lateness_seconds
            if late is None:
                known.pop(label, None)
            if late is None or (label not in known and len(known) >= MAX_TRACKS):
                continue
            track = known.setdefault(label, deque())
            if track and late < track[-1][1]:
                track.clear()
            if not track or now - track[-1][0] >= STEP_SECONDS:
                track.append((now, late))
            while len(track) > 1 and now - track[1][0] >= LATE_SECONDS:
                track.popleft()
        self._lateness = known

    def bandwidth(self, label: RankLabel) -> float | None:
        """Return a rank's current bus bandwidth in bytes per second; None without data."""
        return self._speeds.get(label, RankSpeed()).bus_bandwidth_bytes_per_second

    def late_share(self, label: RankLabel) -> float | None:
        """Return the share of the last minute that a rank was late, 0 to 1; None if unknown."""
        track = self._lateness.get(label)
        if not track or track[-1][0] - track[0][0] < LATE_SECONDS:
            return None
        return min(1.0, (track[-1][1] - track[0][1]) / (track[-1][0] - track[0][0]))
