"""Which ranks hold a job up, from its successive reports. Pure.

A communicator whose launch counts stay as they are while its ranks differ, or while some do not answer, is stalled: a
job that runs changes them between two reports. The ranks that have launched less are suspects, unless they wait
themselves, in another stalled communicator, for somebody else. Counts that are equal and stay so may be a hang on the
GPUs as well as a pause: since when is told, and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from exporters.ras.report.marks import Marks, differ, taken_together
from exporters.ras.report.model import Communicator, NamedRank

STALLED_REPORTS = 2
"""Reports in a row with the same counts."""
MAX_SUSPECTS = 32
"""Named in one communicator."""

SuspectReason = Literal["behind", "missing"]


class Watch(msgspec.Struct, frozen=True):
    """A communicator's launch counts: since when (epoch seconds) and in how many reports they are what they are.

    ``marks`` are the last of each rank that answered in any of these reports.
    """

    marks: Marks
    since_seconds: float
    reports: int = 1

    @property
    def frozen(self) -> bool:
        """True when nothing was launched between the last two reports."""
        return self.reports >= STALLED_REPORTS


class Suspect(msgspec.Struct, frozen=True):
    """A rank that others wait for: it has launched less, or does not answer."""

    rank: NamedRank
    reason: SuspectReason


def watch(before: Mapping[str, Watch], found: Iterable[Communicator], now_seconds: float) -> dict[str, Watch]:
    """Compare a report with what was known; communicators that have launched nothing yet are not watched."""
    after = {}
    for each in found:
        if each.launches is None:
            continue
        known = before.get(each.hash)
        if known is None or differ(known.marks, each.launches.marks):
            after[each.hash] = Watch(each.launches.marks, now_seconds)
        else:
            marks = taken_together(known.marks, each.launches.marks)
            after[each.hash] = msgspec.structs.replace(known, marks=marks, reports=known.reports + 1)
    return after


def stalled(each: Communicator, watches: Mapping[str, Watch]) -> bool:
    """True when nothing was launched since the report before, though some ranks are to launch more or do not answer."""
    if each.launches is None or not watches[each.hash].frozen:
        return False
    return each.launches.differ or bool(_silent(each))


def suspects(each: Communicator, watches: Mapping[str, Watch]) -> tuple[Suspect, ...]:
    """Whom a stalled communicator waits for; empty when that cannot be told."""
    if each.launches is None or not stalled(each, watches):
        return ()
    if silent := _silent(each):
        return tuple(Suspect(rank, "missing") for rank in silent[:MAX_SUSPECTS])
    still = {name for name, known in watches.items() if known.frozen}
    behind = [rank for rank in each.launches.behind if not still.intersection(rank.waits_in)]
    return tuple(Suspect(rank, "behind") for rank in behind[:MAX_SUSPECTS])


def _silent(each: Communicator) -> list[NamedRank]:
    return [rank for rank in each.named if rank.reason in ("unresponsive", "dead")]
