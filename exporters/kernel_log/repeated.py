"""What the agent's log repeats of the kernel's: each kind of event once for a look, with a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agent.sdk.exporter import Logger
from exporters.kernel_log.classify import KernelEvent, categories, judged

MAX_LOGGED = 10
"""Lines that the agent's log gets from one look."""


class RepeatedEvents:
    """The events of one look, counted by what a line says of them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def add(self, event: KernelEvent, rank: Mapping[str, str], count: int) -> None:
        """Count so many of an event; ``rank``: the fields that name the rank whose process it names, empty for none."""
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
        self._counts[text, tuple((fields | dict(rank)).items())] += count

    def write(self, log: Logger) -> None:
        """Write a line for each kind of event, MAX_LOGGED at most, recoveries as INFO and the rest as WARNING."""
        for (text, found), count in list(self._counts.items())[:MAX_LOGGED]:
            fields = {name: value for name, value in found if value}
            write = log.info if categories()[fields["category"]].heals else log.warning
            write(text, **fields, count=count)
