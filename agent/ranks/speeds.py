"""How fast ranks are, and were in the last five minutes: what pages for people show beside the metrics.

Counters come as they grow; what is kept are rates over steps of STEP_SECONDS, a fixed number for each rank.
"""

from array import array
from collections.abc import Mapping

import msgspec

from agent.core.clock import Clock
from agent.core.identity import RankLabel

STEP_SECONDS = 5.0
STEPS = 60
LATE_STEPS = 12
"""Steps over which lateness is shown: a minute."""
MAX_TRACKS = 4096
"""Ranks whose past is kept; of others only the present is known."""


class RankSpeed(msgspec.Struct, frozen=True):
    """What an exporter knows of a rank now.

    ``bus_bandwidth_bytes_per_second``: over the last seconds with data, None without. Of all time: ``bus_bytes`` of its
    collectives, and ``lateness_seconds`` that all others waited for it alone, None where no communicator tells.
    """

    bus_bandwidth_bytes_per_second: float | None = None
    bus_bytes: int = 0
    lateness_seconds: float | None = None


class SpeedView(msgspec.Struct, frozen=True):
    """What is shown of a rank. ``late_share``: of the last minute, 0 to 1; None where unknown.

    ``traffic``: bus bytes per second of each step up to now, the oldest first; empty where nothing was counted.
    """

    bus_bandwidth_bytes_per_second: float | None = None
    late_share: float | None = None
    traffic: tuple[float, ...] = ()


class _Track:
    """The steps of one rank, in two rings."""

    __slots__ = ("at", "began", "bus_bytes", "late", "lateness_seconds", "step", "traffic")

    def __init__(self, now: float, speed: RankSpeed) -> None:
        self.at = now
        self.began = self.step = int(now / STEP_SECONDS)
        self.bus_bytes = speed.bus_bytes
        self.lateness_seconds = speed.lateness_seconds
        self.traffic = array("f", bytes(4 * STEPS))
        self.late = array("f", bytes(4 * LATE_STEPS))

    def advance(self, step: int) -> None:
        """Let the steps since the last one be empty."""
        for each in range(max(self.step + 1, step - STEPS + 1), step + 1):
            self.traffic[each % STEPS] = self.late[each % LATE_STEPS] = 0.0
        self.step = max(self.step, step)

    def add(self, now: float, speed: RankSpeed) -> None:
        """Spread what grew since the last time over the steps since then; a counter that fell restarted at 0."""
        moved = max(0, speed.bus_bytes - self.bus_bytes)
        late = 0.0
        if speed.lateness_seconds is not None and self.lateness_seconds is not None:
            late = max(0.0, speed.lateness_seconds - self.lateness_seconds)
        step, elapsed = int(now / STEP_SECONDS), now - self.at
        self.advance(step)
        for each in range(max(int(self.at / STEP_SECONDS), step - STEPS + 1), step + 1) if elapsed > 0 else ():
            share = (min(now, (each + 1) * STEP_SECONDS) - max(self.at, each * STEP_SECONDS)) / elapsed
            self.traffic[each % STEPS] += moved * share / STEP_SECONDS
            if each > step - LATE_STEPS:
                self.late[each % LATE_STEPS] += late * share
        self.at = now
        self.bus_bytes = speed.bus_bytes
        self.lateness_seconds = speed.lateness_seconds


class SpeedBook:
    """The speeds of the node's ranks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._speeds: Mapping[RankLabel, RankSpeed] = {}
        self._tracks: dict[RankLabel, _Track] = {}

    def observe(self, speeds: Mapping[RankLabel, RankSpeed]) -> None:
        """Note the speeds of all ranks that have any."""
        now = self._clock.monotonic()
        step = int(now / STEP_SECONDS)
        self._speeds = speeds
        for label, track in list(self._tracks.items()):
            if label not in speeds and step - track.step >= STEPS:
                del self._tracks[label]
        for label, speed in speeds.items():
            if (known := self._tracks.get(label)) is not None:
                known.add(now, speed)
            elif len(self._tracks) < MAX_TRACKS:
                self._tracks[label] = _Track(now, speed)

    def view(self, label: RankLabel) -> SpeedView:
        """What is known of a rank; only steps that were seen whole are shown."""
        speed = self._speeds.get(label, RankSpeed())
        track = self._tracks.get(label)
        if track is None:
            return SpeedView(speed.bus_bandwidth_bytes_per_second)
        step = track.step
        shown = range(max(track.began + 1, step - STEPS + 1), step)
        late = None
        if track.lateness_seconds is not None and len(shown) >= LATE_STEPS - 1:
            ended = sum(track.late[each % LATE_STEPS] for each in range(step - LATE_STEPS + 1, step))
            late = min(1.0, ended / ((LATE_STEPS - 1) * STEP_SECONDS))
        return SpeedView(
            speed.bus_bandwidth_bytes_per_second, late, tuple(track.traffic[each % STEPS] for each in shown)
        )
