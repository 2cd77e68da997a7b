"""Seconds that connections of the network proxy waited, by peer and phase. Pure.

The plugin traces the proxy with NCCL_INSPECTOR_ENABLE_PROXY=1 (format v4.3 and later). The times are those of the
proxy's CPU thread. They are not in the checkpoint, so they count since the agent's start.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from exporters.inspector.format.records import MAX_EXEC_TIME_US, MAX_TOTAL, OTHER, ProxyTrace

MAX_PEERS = 16
"""Of one rank in a communicator and direction; a ring has one, a tree three. Further peers count as `other`."""
PHASES = {
    "send": ("gpu_produce", "peer_credit", "wire"),
    "recv": ("wire", "flush", "gpu_consume"),
}
"""The phases of a step in their order, by direction."""
_TIMES = {direction: attrgetter(*(f"{phase}_us" for phase in phases)) for direction, phases in PHASES.items()}


class ProxyConnection(NamedTuple):
    """A rank's connection to ``peer``, a rank in the communicator or `other`; ``direction``: send or recv."""

    comm: str
    comm_rank: int
    direction: str
    peer: str


class ProxyTimes:
    """The connections of one writer. ``admit`` requests a number of additional series."""

    def __init__(self, admit: Callable[[int], bool]) -> None:
        self.microseconds: dict[ProxyConnection, tuple[int, ...]] = {}
        self._admit = admit

    def note(self, comm: str, comm_rank: int, n_ranks: int, trace: ProxyTrace) -> bool:
        """Add the steps of one line, in microseconds by phase; return False when the line is implausible."""
        if trace.direction not in PHASES or not 0 <= trace.peer < n_ranks:
            return False
        steps = [_TIMES[trace.direction](step) for step in (trace, *trace.steps)]
        if min(map(min, steps)) < 0 or max(map(max, steps)) > MAX_EXEC_TIME_US:
            return False
        if any(map(any, steps)):
            connection = self._admitted(
                ProxyConnection(comm, comm_rank, trace.direction, str(trace.peer)), len(steps[0])
            )
            before = self.microseconds.get(connection, (0,) * len(steps[0]))
            self.microseconds[connection] = tuple(
                min(MAX_TOTAL, sum(times)) for times in zip(before, *steps, strict=True)
            )
        return True

    def _admitted(self, connection: ProxyConnection, series: int) -> ProxyConnection:
        if connection in self.microseconds:
            return connection
        other = connection._replace(peer=OTHER)
        if other in self.microseconds:
            return other
        peers = sum(known[:3] == connection[:3] for known in self.microseconds)
        return connection if peers < MAX_PEERS and self._admit(series) else other
