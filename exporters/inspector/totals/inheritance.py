"""Totals of expired writers that live on in series which another writer continues, so that no sum ever falls. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from agent.sdk.ranks import RankLabel
from exporters.inspector.format.records import MAX_TOTAL, OTHER, SeriesKey, Total
from exporters.inspector.totals.accumulators import Accumulator, Place
from exporters.inspector.totals.aggregate import P2P_SERIES
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.losses import Tally


class SeriesLabels(NamedTuple):
    """The labels of one collective series."""

    job_id: str
    rank: str
    comm: str
    collective: str
    size: str

    @classmethod
    def of(cls, label: RankLabel, key: SeriesKey) -> SeriesLabels:
        """What an accumulator is shown as: one that was not admitted is `other` in communicator and size."""
        comm = OTHER if key.size == OTHER else key.comm
        return cls(label.job_id, label.rank, comm, key.collective, key.size)


class RankTally(NamedTuple):
    """One count of a rank as a whole."""

    job_id: str
    rank: str
    tally: Tally


class CommunicatorLabel(NamedTuple):
    """One communicator of a job."""

    job_id: str
    comm: str


K = TypeVar("K", SeriesLabels, RankTally, CommunicatorLabel)
V = TypeVar("V")


class Inheritance(msgspec.Struct):
    """What expired writers left, by the labels it is shown under. ``lost``: collective operations of a communicator."""

    sums: dict[SeriesLabels, Accumulator] = {}
    tallies: dict[RankTally, Total] = {}
    lost: dict[CommunicatorLabel, Total] = {}

    def take(self, writer: WriterTotals, labels: Mapping[Place, RankLabel]) -> None:
        """Add the totals of an expired writer."""
        for label, key, own in writer.labelled(writer.totals, labels):
            series = SeriesLabels.of(label, key)
            self.sums[series] = own.plus(self.sums.get(series, Accumulator()))
        for label, (_, _, tally), count in writer.labelled(writer.tallies, labels):
            of_rank = RankTally(*label, tally)
            self.tallies[of_rank] = min(MAX_TOTAL, self.tallies.get(of_rank, 0) + count)
        for label, (comm, _), count in writer.labelled(writer.lost, labels):
            communicator = CommunicatorLabel(label.job_id, comm)
            self.lost[communicator] = min(MAX_TOTAL, self.lost.get(communicator, 0) + count)

    def prune(self, writers: Iterable[WriterTotals], labels: Mapping[Place, RankLabel]) -> None:
        """Drop what none of the living ``writers`` continues.

        `other` and tallies are a rank's as a whole: they go on as long as the rank has a writer; losses are a
        communicator's: as long as one of its ranks has a collective series of it.
        """
        ranks: set[tuple[str, str]] = set()
        series: set[SeriesLabels] = set()
        for writer in writers:
            ranks.update(label for label, *_ in writer.labelled(dict.fromkeys(writer.places), labels))
            series.update(SeriesLabels.of(label, key) for label, key, _ in writer.labelled(writer.totals, labels))
        self.tallies = {key: count for key, count in self.tallies.items() if key[:2] in ranks}
        self.sums = {
            key: sums for key, sums in self.sums.items() if key in series or (key.comm == OTHER and key[:2] in ranks)
        }
        shown = communicators(series)
        self.lost = {key: count for key, count in self.lost.items() if key in shown}

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop what was left under job ids that are another owner's now, those of its groups among them."""
        gone = frozenset(job_ids)
        begun = tuple(f"{job_id}-" for job_id in gone)

        def kept(own: dict[K, V]) -> dict[K, V]:
            return {k: v for k, v in own.items() if k.job_id not in gone and not k.job_id.startswith(begun)}

        self.sums, self.tallies, self.lost = kept(self.sums), kept(self.tallies), kept(self.lost)

    def copy(self) -> Inheritance:
        """A copy that later changes do not reach (its values are never changed)."""
        return Inheritance(dict(self.sums), dict(self.tallies), dict(self.lost))


def communicators(series: Iterable[tuple[str, ...]]) -> set[CommunicatorLabel]:
    """The communicators with a collective series of their own, of the labels of all series."""
    return {
        CommunicatorLabel(job_id, comm)
        for job_id, _, comm, collective, _ in series
        if comm != OTHER and collective not in P2P_SERIES
    }
