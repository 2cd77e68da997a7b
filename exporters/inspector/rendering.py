"""How published totals of Inspector's records become metrics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from agent.sdk.metrics import Family, Metric
from agent.sdk.ranks import RankLabel
from exporters.inspector.distributions import durations, slow_pairs
from exporters.inspector.families import (
    BUS_BANDWIDTH,
    BUS_BYTES,
    BYTES,
    CAUSES,
    DIRECTIONS,
    FILES,
    FLOOR,
    HOLE_BYTES,
    IMPLAUSIBLE_RECORDS,
    LAG,
    LAST_ARRIVALS,
    LATENESS,
    LOST,
    MATCHED,
    MISSING_RECORDS,
    OPERATIONS,
    P2P_BUS_BANDWIDTH,
    P2P_BYTES,
    P2P_OPERATIONS,
    P2P_SECONDS,
    RECLAIM_ERRORS,
    RECLAIMED_BYTES,
    RECORDS,
    SECONDS,
    SEEN_RECORDS,
    SILENT_RANKS,
    SKIPPED,
    SPREAD,
    TIMINGS,
    TRANSFER,
    UNMATCHED,
    UNTIMED_OPERATIONS,
)
from exporters.inspector.format.records import OTHER, Result
from exporters.inspector.lateness.arrivals import Arrivals
from exporters.inspector.reading.ownership import FileState
from exporters.inspector.reading.published import Published
from exporters.inspector.reading.reclaim import How, Reclaimed
from exporters.inspector.reading.silence import SilenceCause
from exporters.inspector.totals.births import Kind, SeriesId
from exporters.inspector.totals.durations import JobDurations
from exporters.inspector.totals.frozen import Sums, WriterTotals
from exporters.inspector.totals.inheritance import CommunicatorLabel, Inheritance, Place, RankTally, communicators
from exporters.inspector.totals.losses import Tally

Labels: TypeAlias = tuple[str, ...]
"""Of one series: job_id, rank, comm, collective, size."""
Series: TypeAlias = dict[Labels, Sums]


class InspectorSnapshot(msgspec.Struct, frozen=True):
    """All that is rendered: what each reader published, and the label of each (writer, communicator, rank in it).

    Places without a label are not shown yet. ``unpublished``: a reader has not told yet what it holds, so that no sum
    over readers is whole. ``derived_series``: also what PromQL makes of the others. ``young``: series that begin at 0.
    """

    readers: tuple[Published, ...]
    labels: dict[Place, RankLabel]
    inherited: Inheritance
    unpublished: bool = False
    silent: Mapping[SilenceCause, int] = {}
    reclaimed: tuple[Reclaimed, ...] = ()
    derived_series: bool = False
    young: frozenset[SeriesId] = frozenset()
    left_durations: JobDurations = JobDurations()  # never changed


def render(snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Turn a snapshot into families."""
    writers = [writer for reader in snapshot.readers for writer in reader.writers]
    series, withheld = _series(writers, snapshot)
    yield from _operations(series, withheld, snapshot)
    yield from _arrivals(series, withheld, snapshot)
    yield _lost(writers, series, withheld, snapshot)
    yield from _bandwidth(writers, snapshot.labels)
    yield _transfers(writers, snapshot.labels)
    yield slow_pairs(writers, snapshot.labels)
    yield durations(writers, snapshot.labels, snapshot.left_durations)
    yield from _tallies(writers, snapshot)
    yield from _reading(snapshot)
    yield from _reclaimed(snapshot.reclaimed)


def _series(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> tuple[Series, set[Labels]]:
    """Sum the writers of each series; one that may be below its past withholds the whole of it."""
    series: Series = {msgspec.structs.astuple(labels): sums for labels, sums in snapshot.inherited.sums.items()}
    withheld: set[Labels] = set(series) if snapshot.unpublished else set()
    for writer in writers:
        ranks = {place: snapshot.labels.get((writer.writer_key, *place)) for place in writer.places}
        for total in writer.totals:
            comm, comm_rank, collective, size = total.key
            if (label := ranks.get((comm, comm_rank))) is None:
                continue
            job_id, rank = label
            labels = (job_id, rank, OTHER if size == OTHER else comm, collective, size)
            known = series.get(labels)
            series[labels] = total.sums if known is None else total.sums.plus(known)
            if not writer.caught_up:
                withheld.add(labels)
    return series, withheld


def _operations(series: Series, withheld: set[Labels], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    collectives: Series = {}
    p2p: Series = {}
    for labels, whole in series.items():
        if labels in withheld:
            continue
        sums = Sums() if (Kind.TOTALS, labels) in snapshot.young else whole
        job_id, rank, comm, collective, size = labels
        if (direction := DIRECTIONS.get(collective)) is None:
            collectives[labels] = sums
        else:
            p2p[job_id, rank, comm, direction, size] = sums
    yield from _totals(collectives, OPERATIONS, SECONDS, BUS_BYTES)
    if snapshot.derived_series:
        yield Metric(BYTES, list(collectives), [one.message_bytes for one in collectives.values()])
    yield from _totals(p2p, P2P_OPERATIONS, P2P_SECONDS, P2P_BYTES)


def _totals(series: Series, operations: Family, seconds: Family, bus_bytes: Family) -> Iterable[Metric]:
    labels, sums = list(series), series.values()
    yield Metric(operations, labels, [one.operations for one in sums])
    yield Metric(seconds, labels, [one.microseconds / 1_000_000 for one in sums])
    yield Metric(bus_bytes, labels, [one.bus_bytes for one in sums])


def _arrivals(series: Series, withheld: set[Labels], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """What matched operations say of each rank, over all sizes, and of each communicator, over its ranks."""
    by_rank: dict[tuple[str, ...], Arrivals] = {}
    by_communicator: dict[tuple[str, ...], Arrivals] = {}
    hidden: set[tuple[str, ...]] = set()
    for labels, sums in series.items():
        if (arrivals := sums.arrivals) is None and labels not in withheld:
            continue
        job_id, rank, comm, collective, size = labels
        of_rank, of_communicator = (job_id, rank, comm, collective), (job_id, comm, collective, size)
        if labels in withheld:
            hidden.update((of_rank, of_communicator))
        if arrivals is None:
            continue
        shown = Arrivals() if (Kind.ARRIVALS, labels) in snapshot.young else arrivals
        by_rank[of_rank] = shown.plus(by_rank.get(of_rank, Arrivals()))
        if arrivals.matched or arrivals.unmatched:
            by_communicator[of_communicator] = shown.plus(by_communicator.get(of_communicator, Arrivals()))
    lateness, last = LATENESS.rows(), LAST_ARRIVALS.rows()
    for place, arrivals in by_rank.items():
        if place not in hidden:
            lateness.add(place, arrivals.lateness_us / 1_000_000)
            last.add(place, arrivals.last)
    matched, unmatched, floor, spread = MATCHED.rows(), UNMATCHED.rows(), FLOOR.rows(), SPREAD.rows()
    for place, arrivals in by_communicator.items():
        if place not in hidden:
            matched.add(place, arrivals.matched)
            unmatched.add(place, arrivals.unmatched)
            floor.add(place, arrivals.floor_us / 1_000_000)
            spread.add(place, arrivals.spread_us / 1_000_000)
    families = (lateness, last, matched, floor, spread)
    return [rows.metric for rows in ((*families, unmatched) if snapshot.derived_series else families)]


def _lost(writers: list[WriterTotals], series: Series, withheld: set[Labels], snapshot: InspectorSnapshot) -> Metric:
    """What was lost of each communicator that has a collective series; any part of it that is behind withholds it."""
    sums: Counter[CommunicatorLabel] = Counter(snapshot.inherited.lost)
    hidden = {CommunicatorLabel(job_id, comm) for job_id, _, comm, _, _ in withheld}
    for writer in writers:
        for comm, comm_rank, count in writer.lost:
            if (label := snapshot.labels.get((writer.writer_key, comm, comm_rank))) is not None:
                communicator = CommunicatorLabel(label.job_id, comm)
                sums[communicator] += count
                if not writer.caught_up:
                    hidden.add(communicator)
    rows = LOST.rows()
    if not snapshot.unpublished:  # its ranks may be in any directory
        for communicator in communicators((job_id, comm, name) for job_id, _, comm, name, _ in series) - hidden:
            rows.add(communicator, 0 if (Kind.LOST, communicator) in snapshot.young else sums[communicator])
    return rows.metric


def _bandwidth(writers: list[WriterTotals], labels: dict[Place, RankLabel]) -> Iterable[Metric]:
    """Of several writers with the same labels (a restarted rank) the newest is shown."""
    collectives, p2p = BUS_BANDWIDTH.rows(), P2P_BUS_BANDWIDTH.rows()
    newest: dict[tuple[str, str, str, str], float] = {}
    for writer in sorted(writers, key=lambda one: one.last_progress_us):
        for comm, comm_rank, collective, bus_bytes, microseconds in writer.windows:
            if (label := labels.get((writer.writer_key, comm, comm_rank))) is not None:
                newest[label.job_id, label.rank, comm, collective] = bus_bytes * 1_000_000 / microseconds
    for (job_id, rank, comm, name), value in newest.items():
        direction = DIRECTIONS.get(name)
        (collectives if direction is None else p2p).add((job_id, rank, comm, direction or name), value)
    return [collectives.metric, p2p.metric]


def _transfers(writers: list[WriterTotals], labels: dict[Place, RankLabel]) -> Metric:
    """Return the shortest of this node's ranks, in seconds, by job, communicator, collective and size class."""
    shortest: dict[tuple[str, str, str, str], int] = {}
    for writer in writers:
        for key, microseconds in writer.transfers:
            if (label := labels.get((writer.writer_key, key.comm, key.comm_rank))) is not None:
                place = (label.job_id, key.comm, key.collective, key.size)
                shortest[place] = min(microseconds, shortest.get(place, microseconds))
    return Metric(TRANSFER, list(shortest), [one / 1_000_000 for one in shortest.values()])


def _tallies(writers: list[WriterTotals], snapshot: InspectorSnapshot) -> Iterable[Metric]:
    """Counts of a rank as a whole; as with the series, one writer behind withholds the sum."""
    sums: Counter[RankTally] = Counter(snapshot.inherited.tallies)
    withheld: set[RankLabel] = set()
    if snapshot.unpublished:
        withheld.update(RankLabel(key.job_id, key.rank) for key in sums)
    for writer in writers:
        for comm, comm_rank, tally, count in writer.tallies:
            if (label := snapshot.labels.get((writer.writer_key, comm, comm_rank))) is None:
                continue
            sums[RankTally(*label, tally)] += count
            if not writer.caught_up:
                withheld.add(label)
    missing, seen, untimed = MISSING_RECORDS.rows(), SEEN_RECORDS.rows(), UNTIMED_OPERATIONS.rows()
    for key, whole in sums.items():
        if RankLabel(key.job_id, key.rank) in withheld:
            continue
        count = 0 if (Kind.TALLY, key) in snapshot.young else whole
        if key.tally is Tally.SEEN:
            seen.add((key.job_id, key.rank), count)
        elif (cause := CAUSES.get(key.tally)) is not None:
            missing.add((key.job_id, key.rank, cause), count)
        else:
            untimed.add((key.job_id, key.rank, TIMINGS[key.tally]), count)
    return [missing.metric, seen.metric, untimed.metric]


def _reading(snapshot: InspectorSnapshot) -> Iterable[Metric]:
    results: Counter[Result] = Counter(dict.fromkeys(Result, 0))
    files: Counter[FileState] = Counter(dict.fromkeys(FileState, 0))
    skipped: Counter[str] = Counter()
    for reader in snapshot.readers:
        results.update(reader.results)
        files.update(reader.files)
        skipped.update(reader.skipped)
    whole = not snapshot.unpublished and all(reader.caught_up for reader in snapshot.readers)
    if whole:  # else these may be below what was served already
        rows = RECORDS.rows()
        for result, count in results.items():
            rows.add((result.value,), count)
        yield rows.metric
        yield HOLE_BYTES.single(sum(reader.hole_bytes for reader in snapshot.readers))
        yield IMPLAUSIBLE_RECORDS.single(sum(reader.implausible for reader in snapshot.readers))
    rows = FILES.rows()
    for state, count in files.items():
        rows.add((state.value,), count)
    yield rows.metric
    rows = SKIPPED.rows()
    for reason, count in skipped.items():
        if count:
            rows.add((reason,), count)
    yield rows.metric
    yield LAG.single(sum(reader.lag_bytes for reader in snapshot.readers))
    rows = SILENT_RANKS.rows()
    for reason, ranks in snapshot.silent.items():
        if ranks:
            rows.add((reason.value,), ranks)
    yield rows.metric


def _reclaimed(reclaimed: Iterable[Reclaimed]) -> Iterable[Metric]:
    freed_bytes: Counter[How] = Counter()
    errors: Counter[str] = Counter()
    for one in reclaimed:
        freed_bytes.update(one.freed_bytes)
        errors.update(one.errors)
    rows = RECLAIMED_BYTES.rows()
    for how in How:
        rows.add((how.value,), freed_bytes[how])
    yield rows.metric
    rows = RECLAIM_ERRORS.rows()
    for reason, count in errors.items():
        rows.add((reason,), count)
    yield rows.metric
