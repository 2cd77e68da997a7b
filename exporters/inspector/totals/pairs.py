"""The bandwidth of each pair of ranks that send to each other, and the choice of pairs that get a series. Pure.

An operation's time includes the wait for the peer, so a mean time shows the program's schedule, not the link. At one or
both ends, the fastest tenth of the operations did not wait, whichever rank is late: docs/decisions/0026-slow-pairs.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from heapq import nlargest, nsmallest
from typing import NamedTuple

from agent.sdk.metrics import FairBudget, Group
from exporters.inspector.format.records import CollectivePerf, P2PPerf, size_label

MAX_PAIRS = 8
"""Exported pairs per rank of a writer: half are the slowest, half fell furthest below their own best."""
MAX_PEERS = 64  # Peers measured at a time for each communicator, rank and direction; further peers take turns
MAX_MEASURED_IN_ALL = 8192  # Limit of the pairs of all writers of one reader: about 8 MB
MAX_SAMPLES = 64  # Operations kept per window; above it, only every second operation is kept, then every fourth
MIN_OPERATIONS = 20  # Minimum per window: with fewer, chance decides the fastest tenth
WINDOW_ROLLS = 2  # Minimum length of a window in rolls of the gauges' windows: ten seconds
IDLE_ROLLS = 60  # A pair without an operation for this long (five minutes) loses its series
TURN_ROLLS = 24  # How long (two minutes) a turn of MAX_PEERS peers lasts
LEAST_BYTES = 512 * 1024
"""The time of smaller messages is mostly latency: it depends little on the link's bandwidth."""
KEEP_FACTOR = 1.25
"""Only a pair that is worse by this factor replaces a shown pair: series must not come and go by chance."""
FADE = 0.9995  # A pair's best bandwidth is multiplied by this after each window: half in four hours


class End(NamedTuple):
    """One end of a pair's messages: a rank in a communicator of ``n_ranks``, and P2P_SEND or P2P_RECV."""

    comm: str
    comm_rank: int
    n_ranks: int
    direction: str


class PairKey(NamedTuple):
    """One end of a pair in one size class: ``peer`` is the peer's rank in the communicator."""

    end: End
    peer: int
    size: str


class Pair:
    """Bandwidths of one pair's operations, in bytes per microsecond.

    ``bandwidth``: the 90th percentile of the last window that ended; None before the first window ends.
    """

    __slots__ = ("_idle", "_rolls", "_seen", "_stride", "bandwidth", "best", "sample", "shown")

    def __init__(self) -> None:
        self.bandwidth: float | None = None
        self.best = 0.0
        self.shown = False
        self._idle = 0
        self._reset()

    def _reset(self) -> None:
        self.sample = array("d")
        self._rolls = self._seen = 0
        self._stride = 1

    def add(self, bandwidth: float) -> None:
        """Add the bandwidth of an operation."""
        self._idle = 0
        if self._seen % self._stride == 0:
            self.sample.append(bandwidth)
            if len(self.sample) > MAX_SAMPLES:
                del self.sample[1::2]
                self._stride *= 2
        self._seen += 1

    def roll(self) -> bool:
        """End the window if it is long enough; return False when no operation came for IDLE_ROLLS."""
        self._idle += 1
        self._rolls += 1
        if self._rolls >= WINDOW_ROLLS and self._seen >= MIN_OPERATIONS:
            ordered = sorted(self.sample)
            self.bandwidth = ordered[len(ordered) * 9 // 10]
            self.best = max(self.best * FADE, self.bandwidth)
            self._reset()
        return self._idle <= IDLE_ROLLS


class Pairs:
    """The pairs of one writer. ``room``: the limit for all writers; ``group``: the writer's user and directory.

    ``admit`` requests a number of additional series.
    """

    def __init__(self, room: FairBudget, group: Group, admit: Callable[[int], bool]) -> None:
        self._room = room
        self._group = group
        self._admit = admit
        self._pairs: dict[tuple[End, str], dict[int, Pair]] = {}
        self._reserved = 0
        self._refused = False
        self._rolls = 0

    def note(self, end: End, size_bytes: int, perfs: Iterable[CollectivePerf]) -> None:
        """Add operations of one size that one end completed."""
        if size_bytes <= LEAST_BYTES:
            return
        end_key = end, size_label(size_bytes)
        by_peer = self._pairs.get(end_key, {})
        for perf in perfs:
            if isinstance(perf, P2PPerf):
                pair = by_peer.get(perf.peer) or self._new(end, perf.peer, by_peer)
                if pair is not None:
                    pair.add(size_bytes / perf.coll_exec_time_us)
        if by_peer:  # a broken writer may make up any number of ends
            self._pairs[end_key] = by_peer

    def _new(self, end: End, peer: int, by_peer: dict[int, Pair]) -> Pair | None:
        """Begin to measure a pair, if it is valid and it is the peer's turn."""
        is_pair = 0 <= peer < end.n_ranks and peer != end.comm_rank
        if is_pair and self._is_its_turn(end, peer) and self._room.take(self._group):
            by_peer[peer] = Pair()
        return by_peer.get(peer)

    def _is_its_turn(self, end: End, peer: int) -> bool:
        """Return True in the peer's turn: peers take turns by number when there are more than MAX_PEERS."""
        return (peer - self._rolls // TURN_ROLLS * MAX_PEERS) % end.n_ranks < MAX_PEERS

    def measured(self) -> dict[PairKey, Pair]:
        """Return all pairs."""
        return {
            PairKey(end, peer, size): pair
            for (end, size), by_peer in self._pairs.items()
            for peer, pair in by_peer.items()
        }

    def roll(self, ranks: int) -> None:
        """End the windows that are due, and choose the shown pairs; ``ranks``: number of the writer's ranks."""
        self._rolls += 1
        self._drop([key for key, pair in self.measured().items() if not pair.roll()])
        self._choose(MAX_PAIRS * ranks)
        if self._rolls % TURN_ROLLS == 0:
            hidden = [key for key, pair in self.measured().items() if not pair.shown]
            self._drop([key for key in hidden if not self._is_its_turn(key.end, key.peer)])

    def _choose(self, limit: int) -> None:
        measured = [pair for pair in self.measured().values() if pair.bandwidth is not None]
        needed = min(limit, len(measured))
        while self._reserved < needed and not self._refused:
            self._refused = not self._admit(1)
            self._reserved += not self._refused
        shown_pairs = min(needed, self._reserved)
        slowest = nsmallest(shown_pairs // 2, measured, key=_speed)
        chosen = {id(pair) for pair in slowest}
        others = [pair for pair in measured if id(pair) not in chosen]
        chosen.update(id(pair) for pair in nlargest(shown_pairs - len(slowest), others, key=_fall))
        for pair in measured:
            pair.shown = id(pair) in chosen

    def _drop(self, keys: list[PairKey]) -> None:
        for key in keys:
            del self._pairs[key.end, key.size][key.peer]
        self._pairs = {end_key: by_peer for end_key, by_peer in self._pairs.items() if by_peer}
        self._room.give_back(self._group, len(keys))

    def leave(self, comms: frozenset[str] | None = None) -> None:
        """Remove the pairs of some communicators, or all. Refused series may be requested again."""
        self._refused = False
        self._drop([key for key in self.measured() if comms is None or key.end.comm in comms])

    def shown(self) -> dict[tuple[str, int, int, str, int, str], float]:
        """Return the chosen pairs' bandwidth in bytes per second, by the fields of End, peer and size."""
        measured = ((key, pair) for key, pair in self.measured().items() if pair.shown and pair.bandwidth is not None)
        return {(*key.end, key.peer, key.size): (pair.bandwidth or 0.0) * 1_000_000 for key, pair in measured}


def _speed(pair: Pair) -> float:
    """Return the bandwidth for comparison; a pair already shown counts as slower."""
    return (pair.bandwidth or 0.0) / (KEEP_FACTOR if pair.shown else 1.0)


def _fall(pair: Pair) -> float:
    """Return the factor by which the bandwidth fell below its best; a pair already shown gets a greater factor."""
    return pair.best / (pair.bandwidth or 1.0) * (KEEP_FACTOR if pair.shown else 1.0)
