"""Counts since the agent's start: durations of collectives, their algorithms, and waits of the network proxy. Pure.

The counts are in no checkpoint and begin at 0 after a restart. A count is an immutable tuple: to add to a count,
``add`` replaces its tuple by a new one. The plugin traces the proxy if NCCL_INSPECTOR_ENABLE_PROXY=1 (format v4.3 and
later). A CPU thread takes the times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import TypeVar

from agent.sdk.ranks import RankLabel
from exporters.inspector.format.records import MAX_EXEC_TIME_US, MAX_TOTAL, OTHER, ProxyTrace

BOUNDS_US = tuple(digit * 10**power for power in range(1, 7) for digit in (1, 2, 5))
"""Upper bounds of the buckets of durations in microseconds, inclusive: 10 us to 5 s in steps of 1, 2, 5."""
BOUND_LABELS = (*(repr(bound / 1_000_000) for bound in BOUNDS_US), "+Inf")  # In seconds, for the label `le`
MAX_CHOICES = 1024  # Limit of a node's series by algorithm and protocol
MAX_HISTOGRAMS = 256  # Limit for one node; a job with all collectives in all size classes has 126
MAX_PEERS = 16
"""Peers per rank, communicator and direction; a ring has one peer, a tree three. Further peers count as `other`."""
PHASES = {"send": ("gpu_produce", "peer_credit", "wire"), "recv": ("wire", "flush", "gpu_consume")}
"""The phases of a step of the proxy in their order, by direction."""
_TIMES = {direction: attrgetter(*(f"{phase}_us" for phase in phases)) for direction, phases in PHASES.items()}


class Counted(StrEnum):
    """Kinds of counts: operations by bucket and their microseconds; operations by algorithm; microseconds by phase."""

    DURATIONS = "durations"
    ALGORITHMS = "algorithms"
    PROXY = "proxy"


WriterCount = tuple[str, int, Counted, tuple[str, ...]]
"""Key of a writer's count: communicator, rank in it, kind, and labels. The labels are collective and size, then perhaps
algorithm and protocol; for the proxy they are direction and peer."""
JobCount = tuple[str, Counted, tuple[str, ...]]
"""Key of a job's count. The proxy's labels begin with the rank and the communicator."""
K = TypeVar("K", WriterCount, JobCount)


def job_count(label: RankLabel, key: WriterCount) -> JobCount:
    """Return the key of the job's count to which a writer's count is added."""
    comm, _, counted, labels = key
    return label.job_id, counted, (label.rank, comm, *labels) if counted is Counted.PROXY else labels


def add(counts: dict[K, tuple[int, ...]], key: K, more: Sequence[int]) -> None:
    """Add to a count; each number stops at MAX_TOTAL."""
    before = counts.get(key, (0,) * len(more))
    counts[key] = tuple(min(MAX_TOTAL, sum(both)) for both in zip(before, more, strict=True))


def durations(times: Iterable[int]) -> list[int]:
    """Return how many ``times`` (microseconds) each bucket has (not cumulative), and last the sum of the times."""
    counts = [0] * (len(BOUND_LABELS) + 1)
    for time in times:
        counts[bisect_left(BOUNDS_US, time)] += 1
        counts[-1] += time
    return counts


def add_proxy(
    counts: dict[WriterCount, tuple[int, ...]],
    place: tuple[str, int],
    n_ranks: int,
    trace: ProxyTrace,
    admit: Callable[[int], bool],
) -> bool:
    """Add the steps of one line of the proxy; return False when it is implausible. ``admit``: requests series."""
    if trace.direction not in PHASES or not 0 <= trace.peer < n_ranks:
        return False
    steps = [_TIMES[trace.direction](step) for step in (trace, *trace.steps)]
    if min(map(min, steps)) < 0 or max(map(max, steps)) > MAX_EXEC_TIME_US:
        return False
    if any(map(any, steps)):
        of_place = [labels for *at, counted, labels in counts if tuple(at) == place and counted is Counted.PROXY]
        peers = [peer for direction, peer in of_place if direction == trace.direction]
        peer = str(trace.peer)
        if peer not in peers and (OTHER in peers or len(peers) >= MAX_PEERS or not admit(len(steps[0]))):
            peer = OTHER
        times = [sum(of_phase) for of_phase in zip(*steps, strict=True)]
        add(counts, (*place, Counted.PROXY, (trace.direction, peer)), times)
    return True
