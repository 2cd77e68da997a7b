"""Renders the published totals of Inspector's records as metrics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TypeAlias

import msgspec

from agent.sdk.files import in_turns
from agent.sdk.metrics import COUNT, SUM, Family, Metric
from agent.sdk.ranks import RankLabel
from exporters.inspector import families as shown
from exporters.inspector.format.records import P2P_SEND, Result, choice
from exporters.inspector.reading.record_files import FileState
from exporters.inspector.reading.silence import SilenceCause
from exporters.inspector.reading.turn import Published
from exporters.inspector.totals.accumulators import Accumulator, Member
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import (
    CommunicatorLabel,
    Inheritance,
    Kind,
    RankTally,
    SeriesId,
    SeriesLabels,
    add_since_start,
    communicators,
)  # fmt: skip
from exporters.inspector.totals.losses import Tally
from exporters.inspector.totals.matching import Arrivals
from exporters.inspector.totals.since_start import BOUND_LABELS, MAX_CHOICES, MAX_HISTOGRAMS, PHASES, Counted, JobCount

Series: TypeAlias = dict[tuple[str, ...], Accumulator]
"""By the labels of a series: job_id, rank, comm, collective, size."""


class InspectorSnapshot(msgspec.Struct, frozen=True):
    """The input of a rendering: each reader's published state, and the label of each member (writer, communicator,
    rank).

    A member without a label is not shown yet. ``unpublished``: a reader has not published yet, so no sum over readers
    is complete. ``derived_series``: render also series that PromQL can compute. ``young``: new series, which show 0.
    ``ended``: ranks without a bandwidth.
    """

    readers: tuple[Published, ...]
    labels: dict[Member, RankLabel]
    inherited: Inheritance
    unpublished: bool = False
    silent: Mapping[SilenceCause, int] = {}
    reclaim_errors: tuple[Mapping[str, int], ...] = ()
    derived_series: bool = False
    young: frozenset[SeriesId] = frozenset()
    ended: frozenset[RankLabel] = frozenset()


def render(snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Return the families of a snapshot."""
    writers = [writer for reader in snapshot.readers for writer in reader.writers]
    writers.sort(key=lambda writer: writer.last_progress_us)  # a newer writer's gauges replace an older writer's
    series, withheld = _series(writers, snapshot)
    yield from _operations(series, withheld, snapshot)
    yield from _arrivals(series, withheld, snapshot)
    yield _lost(writers, series, withheld, snapshot)
    yield from _gauges(writers, snapshot)
    yield from _since_start(writers, snapshot)
    yield from _tallies(writers, snapshot)
    yield from _reading(snapshot)


def _series(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> tuple[Series, set[tuple[str, ...]]]:
    """Return each series' sum over all writers, and the withheld series, which have a writer that is not caught up."""
    series: Series = {labels: sums for labels, sums in snapshot.inherited.sums.items()}  # noqa: C416  # wider keys
    withheld: set[tuple[str, ...]] = set(series) if snapshot.unpublished else set()
    for writer in writers:
        for label, key, sums in writer.labelled(writer.totals, snapshot.labels):
            labels = SeriesLabels.of(label, key)
            known = series.get(labels)
            series[labels] = sums if known is None else sums.plus(known)
            if not writer.caught_up:
                withheld.add(labels)
    return series, withheld


def _operations(series: Series, withheld: set[tuple[str, ...]], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    collectives: Series = {}
    p2p: Series = {}
    for labels, total in series.items():
        if labels in withheld:
            continue
        sums = Accumulator() if (Kind.TOTALS, labels) in snapshot.young else total
        job_id, rank, comm, collective, size = labels
        if (direction := shown.DIRECTIONS.get(collective)) is None:
            collectives[labels] = sums
        else:
            p2p[job_id, rank, comm, direction, size] = sums
    yield from _totals(collectives, shown.OPERATIONS, shown.SECONDS, shown.BUS_BYTES)
    if snapshot.derived_series:
        yield Metric(shown.BYTES, list(collectives), [total.message_bytes for total in collectives.values()])
    yield from _totals(p2p, shown.P2P_OPERATIONS, shown.P2P_SECONDS, shown.P2P_BYTES)


def _totals(series: Series, operations: Family, seconds: Family, bus_bytes: Family) -> Iterable[Metric]:
    labels, sums = list(series), series.values()
    yield Metric(operations, labels, [total.operations for total in sums])
    yield Metric(seconds, labels, [total.microseconds / 1_000_000 for total in sums])
    yield Metric(bus_bytes, labels, [total.bus_bytes for total in sums])


def _arrivals(series: Series, withheld: set[tuple[str, ...]], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Return the families of matched operations: by rank over all sizes, and by communicator."""
    by_rank: dict[tuple[str, ...], Arrivals] = {}
    by_communicator: dict[tuple[str, ...], Arrivals] = {}
    for labels, sums in series.items():
        if (arrivals := sums.arrivals) is not None:
            job_id, rank, comm, collective, size = labels
            of_rank, of_communicator = (job_id, rank, comm, collective), (job_id, comm, collective, size)
            shown_arrivals = Arrivals() if (Kind.ARRIVALS, labels) in snapshot.young else arrivals
            by_rank[of_rank] = shown_arrivals.plus(by_rank.get(of_rank, Arrivals()))
            if arrivals.matched or arrivals.unmatched:
                by_communicator[of_communicator] = shown_arrivals.plus(by_communicator.get(of_communicator, Arrivals()))
    for job_id, rank, comm, collective, size in withheld:
        by_rank.pop((job_id, rank, comm, collective), None)
        by_communicator.pop((job_id, comm, collective, size), None)
    ranks, of_ranks = list(by_rank), by_rank.values()
    yield Metric(shown.LATENESS, ranks, [arrivals.lateness_us / 1_000_000 for arrivals in of_ranks])
    yield Metric(shown.LAST_ARRIVALS, ranks, [arrivals.last for arrivals in of_ranks])
    places, of_places = list(by_communicator), by_communicator.values()
    yield Metric(shown.MATCHED, places, [arrivals.matched for arrivals in of_places])
    yield Metric(shown.FLOOR, places, [arrivals.floor_us / 1_000_000 for arrivals in of_places])
    if snapshot.derived_series:
        yield Metric(shown.UNMATCHED, places, [arrivals.unmatched for arrivals in of_places])


def _lost(
    writers: list[WriterTotals], series: Series, withheld: set[tuple[str, ...]], snapshot: InspectorSnapshot
) -> Metric:
    """Return the lost operations of each communicator with a collective series, if all its writers are caught up."""
    sums: Counter[CommunicatorLabel] = Counter(snapshot.inherited.lost)
    withheld_communicators = {CommunicatorLabel(job_id, comm) for job_id, _, comm, _, _ in withheld}
    for writer in writers:
        for label, (comm, _), count in writer.labelled(writer.lost, snapshot.labels):
            communicator = CommunicatorLabel(label.job_id, comm)
            sums[communicator] += count
            if not writer.caught_up:
                withheld_communicators.add(communicator)
    rows = shown.LOST.rows()
    if not snapshot.unpublished:  # the files of a communicator's ranks may be in any directory
        for communicator in communicators(series) - withheld_communicators:
            rows.add(communicator, 0 if (Kind.LOST, communicator) in snapshot.young else sums[communicator])
    return rows.metric


def _gauges(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Return the gauges. If several writers have the same labels (a restarted rank), the newest writer's value is used.

    The algorithm is NCCL's latest choice; the transfer time (s) is the shortest of this node's ranks.
    """
    labels = snapshot.labels
    bandwidths: dict[tuple[str, ...], float] = {}
    algorithms: dict[tuple[str, ...], tuple[str, str]] = {}
    transfers: dict[tuple[str, ...], int] = {}
    speeds: dict[tuple[str, ...], float] = {}
    for writer in writers:
        for label, (comm, _, name), (bus_bytes, microseconds) in writer.labelled(writer.windows, labels):
            if label not in snapshot.ended:
                bandwidths[*label, comm, name] = bus_bytes * 1_000_000 / microseconds
        for label, key, chosen in writer.labelled(writer.algorithms, labels):
            algorithms[label.job_id, key.comm, key.collective, key.size] = choice(*chosen)
        for label, key, transfer_us in writer.labelled(writer.transfers, labels):
            of_node = (label.job_id, key.comm, key.collective, key.size)
            transfers[of_node] = min(transfer_us, transfers.get(of_node, transfer_us))
        for label, (comm, rank, _, direction, peer, size), speed in writer.labelled(writer.pairs, labels):
            sender, receiver = (rank, peer) if direction == P2P_SEND else (peer, rank)
            speeds[*label, comm, shown.DIRECTIONS[direction], str(sender), str(receiver), size] = speed
    yield Metric(shown.BUS_BANDWIDTH, list(bandwidths), list(bandwidths.values()))
    yield Metric(shown.ALGORITHM, [(*place, *names) for place, names in algorithms.items()], [1] * len(algorithms))
    yield Metric(shown.TRANSFER, list(transfers), [shortest_us / 1_000_000 for shortest_us in transfers.values()])
    yield Metric(shown.SLOW_PAIRS, list(speeds), list(speeds.values()))


def _since_start(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Return the counts since the agent's start. Jobs with a writer that is behind get no durations and algorithms."""
    sums, withheld = dict(snapshot.inherited.since_start), _withheld_jobs(writers, snapshot)
    for writer in writers:
        add_since_start(sums, writer, snapshot.labels)
    durations, chosen, proxy = shown.DURATIONS.rows(), shown.BY_ALGORITHM.rows(), shown.PROXY_SECONDS.rows()
    for (job_id, _, labels), (*buckets, microseconds) in _in_turns(sums, Counted.DURATIONS, MAX_HISTOGRAMS):
        if job_id not in withheld:
            for bound, count in zip(BOUND_LABELS, accumulate(buckets), strict=True):
                durations.add((job_id, *labels, bound), count)
            durations.add((job_id, *labels, COUNT), sum(buckets))
            durations.add((job_id, *labels, SUM), microseconds / 1_000_000)
    for (job_id, _, labels), (operations,) in _in_turns(sums, Counted.ALGORITHMS, MAX_CHOICES):
        if job_id not in withheld:
            chosen.add((job_id, *labels), operations)
    for (job_id, counted, labels), times in sums.items():
        for phase, waited in zip(PHASES[labels[2]], times, strict=True) if counted is Counted.PROXY else ():
            proxy.add((job_id, *labels, phase), waited / 1_000_000)
    return [durations.metric, chosen.metric, proxy.metric]


def _in_turns(
    sums: dict[JobCount, tuple[int, ...]], counted: Counted, most: int
) -> list[tuple[JobCount, tuple[int, ...]]]:
    """Return the sums of the kind ``counted``, not more than ``most``: the first sum of each job, then each job's
    second sum, and so on."""
    return in_turns(sorted(item for item in sums.items() if item[0][1] is counted), lambda item: item[0][0], most)


def _withheld_jobs(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> set[str]:
    return {
        label.job_id
        for writer in writers
        if not writer.caught_up
        for label, *_ in writer.labelled(dict.fromkeys(writer.places), snapshot.labels)
    }


def _tallies(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Return the counts of each rank; a rank is missing until all its writers are caught up."""
    sums: Counter[RankTally] = Counter(snapshot.inherited.tallies)
    withheld: set[tuple[str, str]] = {key[:2] for key in sums} if snapshot.unpublished else set()
    for writer in writers:
        for label, (_, _, tally), count in writer.labelled(writer.tallies, snapshot.labels):
            sums[RankTally(*label, tally)] += count
            if not writer.caught_up:
                withheld.add(label)
    missing, seen, untimed = shown.MISSING_RECORDS.rows(), shown.SEEN_RECORDS.rows(), shown.UNTIMED_OPERATIONS.rows()
    for key, total in sums.items():
        if key[:2] in withheld:
            continue
        count = 0 if (Kind.TALLY, key) in snapshot.young else total
        if key.tally is Tally.SEEN:
            seen.add(key[:2], count)
        elif (cause := shown.CAUSES.get(key.tally)) is not None:
            missing.add((*key[:2], cause), count)
        else:
            untimed.add((*key[:2], shown.TIMINGS[key.tally]), count)
    return [missing.metric, seen.metric, untimed.metric]


def _reading(snapshot: InspectorSnapshot) -> Iterable[Metric]:
    results: Counter[str] = Counter(dict.fromkeys(Result, 0))
    files: Counter[str] = Counter(dict.fromkeys(FileState, 0))
    skipped: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for reader in snapshot.readers:
        results.update(reader.results)
        files.update(reader.files)
        skipped.update(reader.skipped)
    for reclaim_error in snapshot.reclaim_errors:
        errors.update(reclaim_error)
    if not snapshot.unpublished and all(reader.caught_up for reader in snapshot.readers):
        # otherwise the counters may be lower than at the last scrape
        yield shown.RECORDS.by_label(results)
        yield shown.IMPLAUSIBLE_RECORDS.single(sum(reader.implausible for reader in snapshot.readers))
    yield shown.FILES.by_label(files)
    yield shown.SKIPPED.by_label(+skipped)
    yield shown.LAG.single(sum(reader.lag_bytes for reader in snapshot.readers))
    yield shown.SILENT_RANKS.by_label({cause: ranks for cause, ranks in snapshot.silent.items() if ranks})
    yield shown.RECLAIM_ERRORS.by_label(errors)
