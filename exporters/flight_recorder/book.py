"""The dumps of this node's ranks as they were read, for how long they are shown, and what became of files. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.sdk.ranks import ProcessKey, RankLabel, RankView
from exporters.flight_recorder.dump import DumpSummary
from exporters.flight_recorder.reading import SETTLED, DumpAnswer, FilePlace

KEEP_SECONDS = 3600.0
"""A dump is shown for so long after it was read."""
GOES_ON_SECONDS = 60.0
"""An operation completed so long after the dump was written: the job goes on, and the dump explains nothing."""
UNANSWERED = "unanswered"
"""A file system that hangs."""


class ShownDump(msgspec.Struct, frozen=True):
    """A rank's dump. ``written``: when, or when it was read where that was earlier; seconds since the epoch."""

    label: RankLabel
    written: float
    summary: DumpSummary

    @property
    def series(self) -> int:
        """How many series it makes."""
        groups = self.summary.groups
        return 1 + sum((group.enqueued is not None) + (group.waits is not None) for group in groups)


class _Entry(msgspec.Struct):
    """What is known of one rank's file. ``process`` None: of recorded data, whose processes nobody knows."""

    process: ProcessKey | None
    place: FilePlace
    result: str
    read_at: float
    shown: ShownDump | None = None


class DumpBook:
    """Entries by rank. ``admit`` is asked for room for so many series of a rank, ``release`` takes all of them back."""

    def __init__(self, admit: Callable[[RankLabel, int], bool], release: Callable[[RankLabel], None]) -> None:
        self._entries: dict[RankLabel, _Entry] = {}
        self._admit, self._release = admit, release
        self.counts: Counter[str] = Counter()

    def known(self, label: RankLabel, process: ProcessKey | None) -> FilePlace | None:
        """The file that was looked at before for this process of the rank."""
        entry = self._entries.get(label)
        return None if entry is None or entry.process != process else entry.place

    def take(self, label: RankLabel, process: ProcessKey | None, answer: DumpAnswer | None, now: float) -> None:
        """Take in what the helper says of a rank's file, at ``now`` seconds since the epoch."""
        if answer is None:
            self.counts[UNANSWERED] += 1
            return
        if answer.result not in SETTLED or answer.place is None:
            return
        entry = self._entries.get(label)
        if entry is not None and (entry.process, entry.place, entry.result) == (process, answer.place, answer.result):
            return
        if entry is not None and (entry.process != process or answer.result != "incomplete"):
            self._hide(entry)  # one that is being written anew is shown as it was
        shown = entry.shown if entry is not None else None
        result: str = answer.result
        if answer.summary is not None:
            shown = ShownDump(label, min(now, answer.place[3] / 1e9), answer.summary)
            if not self._admit(label, shown.series):
                shown, result = None, "no_room"
        self.counts[result] += 1
        self._entries[label] = _Entry(process, answer.place, answer.result, now, shown)

    def tidy(self, views: Mapping[RankLabel, RankView], now: float) -> None:
        """Hide what is old, of ranks and jobs started anew, or of a rank that went on; forget ranks that are gone."""
        started = newest_starts(views.values())
        for label, entry in list(self._entries.items()):
            view = views.get(label)
            facts = None if view is None else view.process.facts
            progress = None if view is None else view.process.progress_seconds
            is_other = facts is not None and facts.key != entry.process
            went_on = progress is not None and progress > entry.place[3] / 1e9 + GOES_ON_SECONDS
            begun_anew = entry.shown is not None and entry.shown.written < started.get(label.job_id, 0.0)
            if now - entry.read_at > KEEP_SECONDS or is_other or went_on or begun_anew:
                self._hide(entry)
            if entry.shown is None and (view is None or is_other):
                del self._entries[label]

    def shown(self) -> tuple[ShownDump, ...]:
        """All dumps that are shown, by job and rank."""
        found = [entry.shown for entry in self._entries.values() if entry.shown is not None]
        return tuple(sorted(found, key=lambda each: (each.label.job_id, len(each.label.rank), each.label.rank)))

    def close(self) -> None:
        """Give back the room of all."""
        for entry in self._entries.values():
            self._hide(entry)

    def _hide(self, entry: _Entry) -> None:
        if entry.shown is not None:
            self._release(entry.shown.label)
            entry.shown = None


def newest_starts(views: Iterable[RankView]) -> dict[str, float]:
    """By job, when the last of its processes here was started, in seconds since the epoch."""
    found: dict[str, float] = {}
    for view in views:
        if (facts := view.process.facts) is not None:
            found[view.label.job_id] = max(found.get(view.label.job_id, 0.0), facts.start_seconds)
    return found
