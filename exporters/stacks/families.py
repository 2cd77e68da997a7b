"""What the exporter shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import RankLabel

# fmt: off
STACK = Family("rankwatch_rank_stack_info", "gauge",
    "Where the rank's Python code is while its job completes nothing: the five innermost calls of its main thread and "
    "a hash of them; always 1. The names are those of the user's program.",
    ("job_id", "rank", "stack"), "while its job completes nothing 1 per rank, at most 32 per job", "max")
DUMPS = Family("rankwatch_rank_stack_dumps_total", "counter",
    "Looks at ranks' Python stacks, by result: read, gone, uninterruptible (a thread waits in the kernel: not looked "
    "at), not_permitted, no_python, too_large, failed, unanswered.",
    ("result",), "1 per result", "sum")
# fmt: on
FAMILIES = (STACK, DUMPS)


class StacksSnapshot(NamedTuple):
    """What is shown."""

    stacks: Mapping[RankLabel, str]
    counts: Mapping[str, int]


def render(found: StacksSnapshot) -> Iterable[Metric]:
    """Return the series."""
    stacks, dumps = STACK.rows(), DUMPS.rows()
    for label, stack in found.stacks.items():
        stacks.add((label.job_id, label.rank, stack), 1)
    for result, count in found.counts.items():
        dumps.add((result,), count)
    yield from (stacks.metric, dumps.metric)
