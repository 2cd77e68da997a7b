"""Keeps sums from falling when a writer ends, and lets new series begin at 0. Pure.

Prometheus counts no increase at a series' first value: the operations before the first scrape would be lost. So a new
series is 0 for BIRTH_SECONDS, for every scraper. See docs/decisions/0017-series-begin-at-zero.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from agent.sdk.ranks import RankLabel
from exporters.inspector.format.records import MAX_TOTAL, OTHER, SeriesKey, Total
from exporters.inspector.totals.accumulators import Accumulator, Member
from exporters.inspector.totals.bindings import P2P_SERIES
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.losses import Tally
from exporters.inspector.totals.since_start import Counted, JobCount, add, job_count

_GROUP_HASH = re.compile(r"-[0-9a-f]{8}\Z")  # The end of the job id of a process group, if several groups share an id


class SeriesLabels(NamedTuple):
    """The labels of one collective series."""

    job_id: str
    rank: str
    comm: str
    collective: str
    size: str

    @classmethod
    def of(cls, label: RankLabel, key: SeriesKey) -> SeriesLabels:
        """Return the labels of an accumulator. If the series limit refused it, communicator and size are `other`."""
        comm = OTHER if key.size == OTHER else key.comm
        return cls(label.job_id, label.rank, comm, key.collective, key.size)


class RankTally(NamedTuple):
    """A count for one rank over all its communicators."""

    job_id: str
    rank: str
    tally: Tally


class CommunicatorLabel(NamedTuple):
    """One communicator of a job."""

    job_id: str
    comm: str


K = TypeVar("K", SeriesLabels, RankTally, CommunicatorLabel, JobCount)
V = TypeVar("V")


class Inheritance(msgspec.Struct):
    """The totals of ended writers by label set, so that no exported sum falls. ``lost``: lost collective operations.

    ``since_start`` is in no checkpoint.
    """

    sums: dict[SeriesLabels, Accumulator] = {}
    tallies: dict[RankTally, Total] = {}
    lost: dict[CommunicatorLabel, Total] = {}
    since_start: dict[JobCount, tuple[int, ...]] = {}

    def take(self, writer: WriterTotals, labels: Mapping[Member, RankLabel]) -> None:
        """Add the totals of an ended writer."""
        for label, key, accumulator in writer.labelled(writer.totals, labels):
            series = SeriesLabels.of(label, key)
            self.sums[series] = accumulator.plus(self.sums.get(series, Accumulator()))
        for label, (_, _, tally), count in writer.labelled(writer.tallies, labels):
            of_rank = RankTally(*label, tally)
            self.tallies[of_rank] = min(MAX_TOTAL, self.tallies.get(of_rank, 0) + count)
        for label, (comm, _), count in writer.labelled(writer.lost, labels):
            communicator = CommunicatorLabel(label.job_id, comm)
            self.lost[communicator] = min(MAX_TOTAL, self.lost.get(communicator, 0) + count)
        add_since_start(self.since_start, writer, labels)

    def prune(self, writers: Iterable[WriterTotals], labels: Mapping[Member, RankLabel]) -> None:
        """Drop the totals that no living writer of ``writers`` continues.

        Series under `other` and tallies stay while their rank has a writer. A communicator's losses stay while it has a
        collective series of a rank. Counts since the agent's start stay while their job has a rank; the
        proxy's counts stay while a living writer has the same connection.
        """
        ranks: set[tuple[str, str]] = set()
        series: set[SeriesLabels] = set()
        living: dict[JobCount, tuple[int, ...]] = {}
        for writer in writers:
            add_since_start(living, writer, labels)
            ranks.update(label for label, *_ in writer.labelled(dict.fromkeys(writer.places), labels))
            series.update(SeriesLabels.of(label, key) for label, key, _ in writer.labelled(writer.totals, labels))
        self.tallies = {key: count for key, count in self.tallies.items() if key[:2] in ranks}
        self.sums = {
            key: sums for key, sums in self.sums.items() if key in series or (key.comm == OTHER and key[:2] in ranks)
        }
        shown = communicators(series)
        self.lost = {key: count for key, count in self.lost.items() if key in shown}
        jobs = {job_id for job_id, _ in ranks}
        self.since_start = {
            key: counts
            for key, counts in self.since_start.items()
            if (key in living if key[1] is Counted.PROXY else key[0] in jobs)
        }

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop the totals of job ids that now belong to another owner, and of their groups' ids (``group_job_id``)."""
        moved = frozenset(job_ids)

        def remaining(counts: dict[K, V]) -> dict[K, V]:
            return {k: v for k, v in counts.items() if moved.isdisjoint((k[0], _GROUP_HASH.sub("", k[0])))}

        self.sums, self.tallies, self.lost = remaining(self.sums), remaining(self.tallies), remaining(self.lost)
        self.since_start = remaining(self.since_start)

    def copy(self) -> Inheritance:
        """Return a copy that shares the values: they are replaced, never changed."""
        return Inheritance(dict(self.sums), dict(self.tallies), dict(self.lost), dict(self.since_start))


def add_since_start(
    sums: dict[JobCount, tuple[int, ...]], writer: WriterTotals, labels: Mapping[Member, RankLabel]
) -> None:
    """Add a writer's counts since the agent's start to the counts of its jobs."""
    for label, key, counts in writer.labelled(writer.since_start, labels):
        add(sums, job_count(label, key), counts)


def communicators(series: Iterable[tuple[str, ...]]) -> set[CommunicatorLabel]:
    """Return the communicators with at least one series of a collective; ``series``: the labels of each series."""
    return {
        CommunicatorLabel(job_id, comm)
        for job_id, _, comm, collective, _ in series
        if comm != OTHER and collective not in P2P_SERIES
    }


BIRTH_SECONDS = 20.0  # Longer than the shipped scrape interval of 15 s: each Prometheus scrapes the 0 at least once
NOT_SHOWN = float("inf")


class Kind(StrEnum):
    """Counters with the same label sets, which begin together."""

    TOTALS = "totals"
    ARRIVALS = "arrivals"
    LOST = "lost"
    TALLY = "tally"


SeriesId = tuple[Kind, tuple[str, ...]]
"""A kind and a label set. A series of arrivals sums several label sets, each of them counted from its birth on."""
Labels = Mapping[Member, RankLabel]


class Births:
    """The time when each current series was first exported; a series that disappears is forgotten, and is new if it
    returns.

    ``restored`` and ``inherited`` are from before the agent's restart: their series are not new.
    """

    def __init__(self, restored: Iterable[WriterTotals] = (), inherited: Inheritance | None = None) -> None:
        self._restored = list(restored)
        self._inherited = inherited
        self._grown: set[SeriesId] = set()
        self._shown_at: dict[SeriesId, float] = {}
        self._looked_at: object = None

    def look(
        self, writers: list[WriterTotals], labels: Labels, inherited: Inheritance, now: float, *, whole: bool
    ) -> None:
        """Note which series of ``writers`` are new at monotonic time ``now``. ``whole``: every reader has published.

        A withheld new series is still new when it is first shown. Once all restored writers have labels, ``inherited``
        is pruned.
        """
        looked_at = (_shape(writers), dict(labels), list(inherited.sums), list(inherited.tallies), whole)
        if looked_at == self._looked_at:
            return
        self._looked_at = looked_at
        series = series_of(writers, labels, inherited)
        hidden = series_of([writer for writer in writers if not writer.caught_up], labels, Inheritance())
        if not whole:
            hidden.update(series_id for series_id in series if series_id[0] is Kind.LOST)
        self._grown.update(series_id for series_id, since in self._shown_at.items() if now - since >= BIRTH_SECONDS)
        self._grown = (self._grown & series) | series_of(self._restored, labels, self._inherited or Inheritance())
        self._shown_at = {
            series_id: NOT_SHOWN if series_id in hidden else min(now, self._shown_at.get(series_id, NOT_SHOWN))
            for series_id in series - self._grown
        }
        if whole:
            self._restored = [writer for writer in self._restored if _waits(writer, writers, labels)]
        if whole and not self._restored and self._inherited is not None:
            inherited.prune(writers, labels)  # the agent was down when the writers of these totals ended
            self._inherited = None

    def young(self, now: float) -> frozenset[SeriesId]:
        """Return the series that are still 0 at monotonic time ``now``."""
        return frozenset(series_id for series_id, since in self._shown_at.items() if now - since < BIRTH_SECONDS)


def series_of(writers: Iterable[WriterTotals], labels: Labels, inherited: Inheritance) -> set[SeriesId]:
    """Return the series to which these writers (with labels) or ``inherited`` contribute."""
    totals = [(key, sums.arrivals) for key, sums in inherited.sums.items()]
    series: set[SeriesId] = {(Kind.TALLY, tally) for tally in inherited.tallies}
    for writer in writers:
        totals += (
            (SeriesLabels.of(label, key), accumulator.arrivals)
            for label, key, accumulator in writer.labelled(writer.totals, labels)
        )
        series.update((Kind.TALLY, (*label, key[2])) for label, key, _ in writer.labelled(writer.tallies, labels))
    series.update((Kind.TOTALS, labels) for labels, _ in totals)
    series.update((Kind.ARRIVALS, labels) for labels, arrivals in totals if arrivals is not None)
    series.update((Kind.LOST, communicator) for communicator in communicators(labels for labels, _ in totals))
    return series


def _waits(restored: WriterTotals, writers: list[WriterTotals], labels: Labels) -> bool:
    """Return True while the writer of the totals lives but lacks some labels."""
    named = all((restored.writer_key, *place) in labels for place in restored.places)
    return not named and any(writer.writer_key == restored.writer_key for writer in writers)


def _shape(writers: list[WriterTotals]) -> list[object]:
    """Return a value that changes when a series appears, ends, becomes withheld or is shown again."""
    return [
        (
            writer.writer_key,
            writer.caught_up,
            writer.places,
            len(writer.tallies),
            [(k, v.arrivals is None) for k, v in writer.totals.items()],
        )
        for writer in writers
    ]
