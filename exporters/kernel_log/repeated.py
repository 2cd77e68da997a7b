"""Writes the kernel's events to the agent's log: each kind once per look, with a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agent.sdk.exporter import Logger
from exporters.kernel_log.classify import KernelEvent, categories, judged

MAX_LOGGED = 10
"""Log lines of one look."""


def write(log: Logger, events: Iterable[tuple[KernelEvent, Mapping[str, str], int]]) -> None:
    """Log each kind of event of a look once, at most MAX_LOGGED kinds: recoveries as INFO, all others as WARNING.

    ``events``: each event, the log fields of its process's rank (empty without a rank), and its number of lines.
    """
    counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for event, rank, count in events:
        if categories()[event.category].heals:
            text = "the kernel's log reports a recovery: {category}"
        elif rank:
            text = "the kernel's log reports {category} for rank {rank} of job {job_id}, pid {pid}"
        else:
            text = "the kernel's log reports {category}"
        pid = str(event.pid) if rank else ""
        fields = {"category": event.category, "code": event.code, "pci": event.pci, "part": event.part, "pid": pid}
        if (error := judged(event)) is not None:
            fields |= {"meaning": error.fault.meaning, "action": error.fault.action}
        counts[text, tuple((fields | dict(rank)).items())] += count
    for (text, named), count in list(counts.items())[:MAX_LOGGED]:
        fields = {name: value for name, value in named if value}
        (log.info if categories()[fields["category"]].heals else log.warning)(text, **fields, count=count)
