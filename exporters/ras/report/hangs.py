"""Which ranks hold a job up, from its successive reports. Pure.

A communicator whose launch counts stay as they are while its ranks differ, or while some do not answer, is stalled: a
job that runs changes them between two reports. So is one that a few ranks have left, when nothing is launched for
minutes. The ranks that have launched less are suspects, unless they wait themselves, in another stalled communicator,
for somebody else. Counts that are equal and stay so may be a hang on the GPUs as well as a pause: since when is told,
and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from exporters.ras.report.marks import Marks, differ, taken_together
from exporters.ras.report.model import Communicator, MissingReason, NamedRank

STALLED_REPORTS = 2
"""Reports in a row with the same counts."""
LEFT_SECONDS = 300.0
"""For so long nothing is launched before ranks that left the communicator are what it waits for. In a job that runs,
and at its end, the ranks leave a communicator within seconds of each other."""
MAX_SUSPECTS = 32
"""Named in one communicator."""
WATCH_BYTES = 512
"""What a watch takes beside its marks."""
MAX_ABSENT_BYTES = 1024 * 1024
"""Of the watches of communicators that the last report does not hold: 2,000 small ones. The last seen are kept."""

SuspectReason = Literal["behind", "missing", "left"]


class Watch(msgspec.Struct, frozen=True):
    """A communicator's launch counts: since when (epoch seconds) and in how many reports they are what they are.

    ``marks`` are the last of each rank that answered in any of these reports, ``seen_seconds`` is the time of the last.
    """

    marks: Marks
    since_seconds: float
    reports: int = 1
    seen_seconds: float = 0.0

    @property
    def frozen(self) -> bool:
        """True when nothing was launched between the last two reports."""
        return self.reports >= STALLED_REPORTS

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return WATCH_BYTES + len(self.marks)

    @property
    def still_seconds(self) -> float:
        """For how long nothing had been launched when it was last seen."""
        return self.seen_seconds - self.since_seconds


class Suspect(msgspec.Struct, frozen=True):
    """A rank that others wait for: it has launched less, does not answer, or has left the communicator."""

    rank: NamedRank
    reason: SuspectReason


def watch(before: Mapping[str, Watch], found: Iterable[Communicator], now_seconds: float) -> dict[str, Watch]:
    """Compare a report with what was known; communicators that have launched nothing yet are not watched.

    One that the report lacks, or of which nobody answers, is watched on: it stands still all the same. After the clock
    was set back it stands still since this report at the latest.
    """
    after = {}
    for each in found:
        known = before.get(each.hash)
        if each.launches is None:
            if known is not None:
                after[each.hash] = known
        elif known is None or differ(known.marks, each.launches.marks):
            after[each.hash] = Watch(each.launches.marks, now_seconds, seen_seconds=now_seconds)
        else:
            marks = taken_together(known.marks, each.launches.marks)
            after[each.hash] = Watch(marks, min(known.since_seconds, now_seconds), known.reports + 1, now_seconds)
    absent = {name: known for name, known in before.items() if name not in after}
    return after | within(absent, MAX_ABSENT_BYTES)


def within(watches: Mapping[str, Watch], max_bytes: int) -> dict[str, Watch]:
    """The watches that were seen last, as many as take so many bytes."""
    kept, left = {}, max_bytes
    for name, known in sorted(watches.items(), key=lambda item: -item[1].seen_seconds):
        left -= known.size_bytes
        if left < 0:
            break
        kept[name] = known
    return kept


def stalled(each: Communicator, watches: Mapping[str, Watch]) -> bool:
    """True when nothing was launched since the report before, though some ranks are to launch more or do not answer."""
    if each.launches is None or not watches[each.hash].frozen:
        return False
    return each.launches.differ or bool(_silent(each)) or bool(_left(each, watches[each.hash]))


def suspects(each: Communicator, watches: Mapping[str, Watch]) -> tuple[Suspect, ...]:
    """The ranks that a stalled communicator waits for; empty when that cannot be told."""
    if each.launches is None or not stalled(each, watches):
        return ()
    if silent := _silent(each):
        return tuple(Suspect(rank, "missing") for rank in silent[:MAX_SUSPECTS])
    if left := _left(each, watches[each.hash]):
        return tuple(Suspect(rank, "left") for rank in left[:MAX_SUSPECTS])
    still = {name for name, known in watches.items() if known.frozen}
    behind = [rank for rank in each.launches.behind if not still.intersection(rank.waits_in)]
    return tuple(Suspect(rank, "behind") for rank in behind[:MAX_SUSPECTS])


def _silent(each: Communicator) -> list[NamedRank]:
    return _missing(each, "unresponsive", "dead")


def _left(each: Communicator, known: Watch) -> list[NamedRank]:
    """The ranks that left, if they are not the majority: then it is the others that have not left yet."""
    left = _missing(each, "no_communicator")
    return left if known.still_seconds >= LEFT_SECONDS and 2 * len(left) <= each.size else []


def _missing(each: Communicator, *reasons: MissingReason) -> list[NamedRank]:
    return [rank for rank in each.named if rank.reason in reasons]
