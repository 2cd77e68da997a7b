"""Which descendants of ranks are looked at, and their CPU time; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import Stat

MAX_PER_RANK = 128
"""Descendants of one rank that are looked at, the oldest: data loaders are some 4 to 32."""
MAX_IN_ALL = 2048
"""Descendants of all ranks that are looked at, in equal shares."""


def shares(children: Mapping[ProcessKey, Iterable[ProcessKey]]) -> dict[ProcessKey, list[ProcessKey]]:
    """Return the oldest descendants of each rank: no rank's many take the place of another's."""
    each = max(1, min(MAX_PER_RANK, MAX_IN_ALL // max(len(children), 1)))
    return {rank: nsmallest(each, keys, key=_age) for rank, keys in list(children.items())[:MAX_IN_ALL]}


def _age(key: ProcessKey) -> tuple[int, int]:
    return key.start_ticks, key.pid


class ChildrenCpu:
    """The CPU time of one rank's descendants since it was first looked at; ``ticks`` None while it has had none.

    What its live descendants used and what was added for those that it waited for is one sum, which no child's end
    changes. Only a child without a wait() (or an adopted one) takes its time out of the sum: that is no increase.
    """

    def __init__(self) -> None:
        self._before: int | None = None
        self.ticks: int | None = None

    def note(self, rank: Stat, children: Sequence[Stat]) -> None:
        """Take a look at the rank and its descendants."""
        now = rank.waited_cpu_ticks + sum(child.cpu_ticks + child.waited_cpu_ticks for child in children)
        if children and self.ticks is None:
            self.ticks = 0
        if self.ticks is not None and self._before is not None:
            self.ticks += max(now - self._before, 0)
        self._before = now
