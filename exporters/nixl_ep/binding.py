"""Which process of this node has which rank of a NIXL-EP run. Pure.

Every worker's environment names its task's rank, so the rank table counts the workers of a node in the order of their
starts. The run's own ranks are handed out in another order; what its log says of a launch tells which is whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from exporters.nixl_ep.run import Launch

SLACK_SECONDS = 1.0
"""The log's line comes after the start; clocks of processes are rough by so much."""

K = TypeVar("K")


class StartedGroup(NamedTuple, Generic[K]):
    """Ranks that one parent started, in the order of their starts; ``started``: the first of them, epoch seconds."""

    started: float
    members: tuple[K, ...]


def bind(launches: Sequence[Launch], groups: Sequence[StartedGroup[K]]) -> dict[K, int]:
    """The rank of each member of the groups whose launch is known: the last of its size that was seen after its start.

    ``launches``: of this node alone, in order.
    """
    found: dict[K, int] = {}
    free = list(launches)
    for group in sorted(groups, key=lambda one: one.started, reverse=True):
        size = len(group.members)
        fitting = [
            launch
            for launch in free
            if launch.seconds >= group.started - SLACK_SECONDS and sorted(launch.ranks) == list(range(size))
        ]
        if fitting:
            launch = fitting[-1]
            free = free[: free.index(launch)]
            found.update((member, launch.ranks[number]) for number, member in enumerate(group.members))
    return found
