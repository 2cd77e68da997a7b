"""Totals of expired writers that live on in series which another writer continues, so that no sum ever falls. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import RankLabel, WriterKey
from exporters.inspector.format.records import OTHER
from exporters.inspector.format.series import MAX_TOTAL, SeriesKey, Total
from exporters.inspector.totals.aggregate import P2P_SERIES
from exporters.inspector.totals.frozen import Sums, WriterTotals
from exporters.inspector.totals.losses import Tally

Place = tuple[WriterKey, str, int]
"""A writer, a communicator, and a rank in it."""


class SeriesLabels(msgspec.Struct, frozen=True, array_like=True, gc=False):
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


class Inheritance(msgspec.Struct):
    """What expired writers left, by the labels it is shown under. ``lost``: collective operations of a communicator."""

    sums: dict[SeriesLabels, Sums] = {}
    tallies: dict[RankTally, Total] = {}
    lost: dict[CommunicatorLabel, Total] = {}

    def take(self, writer: WriterTotals, labels: dict[Place, RankLabel]) -> None:
        """Add the totals of an expired writer."""
        for total in writer.totals:
            label = labels.get((writer.writer_key, total.key.comm, total.key.comm_rank))
            if label is not None:
                series = SeriesLabels.of(label, total.key)
                self.sums[series] = self.sums.get(series, Sums()).plus(total.sums)
        for comm, comm_rank, tally, count in writer.tallies:
            label = labels.get((writer.writer_key, comm, comm_rank))
            if label is not None:
                key = RankTally(*label, tally)
                self.tallies[key] = min(MAX_TOTAL, self.tallies.get(key, 0) + count)
        for comm, comm_rank, count in writer.lost:
            label = labels.get((writer.writer_key, comm, comm_rank))
            if label is not None:
                communicator = CommunicatorLabel(label.job_id, comm)
                self.lost[communicator] = min(MAX_TOTAL, self.lost.get(communicator, 0) + count)

    def prune(self, writers: list[WriterTotals], labels: dict[Place, RankLabel]) -> None:
        """Drop what none of the living ``writers`` continues.

        `other` and tallies are a rank's as a whole: they go on as long as the rank has a writer; losses are a
        communicator's: as long as one of its ranks has a collective series of it.
        """
        ranks: set[RankLabel] = set()
        series: set[SeriesLabels] = set()
        for writer in writers:
            own = (labels.get((writer.writer_key, comm, comm_rank)) for comm, comm_rank in writer.places)
            ranks.update(label for label in own if label is not None)
            for total in writer.totals:
                label = labels.get((writer.writer_key, total.key.comm, total.key.comm_rank))
                if label is not None:
                    series.add(SeriesLabels.of(label, total.key))
        self.tallies = {key: count for key, count in self.tallies.items() if RankLabel(key.job_id, key.rank) in ranks}
        self.sums = {
            key: sums
            for key, sums in self.sums.items()
            if key in series or (key.comm == OTHER and RankLabel(key.job_id, key.rank) in ranks)
        }
        shown = communicators((key.job_id, key.comm, key.collective) for key in series)
        self.lost = {key: count for key, count in self.lost.items() if key in shown}

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop what was left under job ids that are another owner's now, those of its groups among them."""
        gone = tuple(job_ids)
        begun = tuple(f"{job_id}-" for job_id in gone)
        self.sums = {key: sums for key, sums in self.sums.items() if not _is_of(key.job_id, gone, begun)}
        self.tallies = {key: count for key, count in self.tallies.items() if not _is_of(key.job_id, gone, begun)}
        self.lost = {key: count for key, count in self.lost.items() if not _is_of(key.job_id, gone, begun)}

    def copy(self) -> Inheritance:
        """A copy that later changes do not reach (its values are frozen)."""
        return Inheritance(dict(self.sums), dict(self.tallies), dict(self.lost))


def communicators(series: Iterable[tuple[str, str, str]]) -> set[CommunicatorLabel]:
    """The communicators with a collective series of their own, of (job id, communicator, collective) of all series."""
    return {
        CommunicatorLabel(job_id, comm)
        for job_id, comm, collective in series
        if comm != OTHER and collective not in P2P_SERIES
    }


def _is_of(job_id: str, gone: tuple[str, ...], begun: tuple[str, ...]) -> bool:
    return job_id in gone or job_id.startswith(begun)
