"""The metric families of Inspector's records, and how published totals become them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.api import Family, Metric, RankLabel
from exporters.inspector.inheritance import Inheritance, Place, RankTally, SeriesLabels
from exporters.inspector.losses import Tally
from exporters.inspector.ownership import FileState
from exporters.inspector.reclaim import How, Reclaimed
from exporters.inspector.records import P2P_RECV, P2P_SEND, Result
from exporters.inspector.silence import Silence
from exporters.inspector.totals import OriginTotals, Published

_SERIES = ("job_id", "rank", "comm", "collective", "size")
_SERIES_COST = "1 per rank, communicator, collective and size class seen; `other` beyond the budget"

OPERATIONS = Family(
    "rankwatch_collective_operations_total",
    "counter",
    "Collective operations a rank completed, as far as Inspector recorded them with the GPU's own time.",
    _SERIES,
    _SERIES_COST,
)
BYTES = Family(
    "rankwatch_collective_bytes_total",
    "counter",
    "Message bytes of these operations as NCCL counts them: what one rank sends (AllGather) or gets (ReduceScatter).",
    _SERIES,
    _SERIES_COST,
)
SECONDS = Family(
    "rankwatch_collective_seconds_total",
    "counter",
    "Time these operations ran on the rank's GPU, waiting for late ranks included: the late one has the least.",
    _SERIES,
    _SERIES_COST,
)
BUS_BYTES = Family(
    "rankwatch_collective_bus_bytes_total",
    "counter",
    "Bus bandwidth times time of these operations; its rate over the rate of seconds is the mean bus bandwidth.",
    _SERIES,
    _SERIES_COST,
)
BUS_BANDWIDTH = Family(
    "rankwatch_collective_bus_bandwidth_bytes_per_second",
    "gauge",
    "Bus bandwidth of a rank's operations over the last five seconds with data, weighted by time.",
    ("job_id", "rank", "comm", "collective"),
    "1 per rank, communicator and collective seen",
)
_P2P_SERIES = ("job_id", "rank", "comm", "direction", "size")
_P2P_COST = "1 per rank, communicator, direction and size class seen; `other` beyond the budget"
DIRECTIONS = {P2P_SEND: "send", P2P_RECV: "recv"}

P2P_OPERATIONS = Family(
    "rankwatch_p2p_operations_total",
    "counter",
    "Sends and receives a rank completed, as far as Inspector recorded them with the GPU's own time.",
    _P2P_SERIES,
    _P2P_COST,
)
P2P_BYTES = Family(
    "rankwatch_p2p_bytes_total",
    "counter",
    "Message bytes of these sends and receives.",
    _P2P_SERIES,
    _P2P_COST,
)
P2P_SECONDS = Family(
    "rankwatch_p2p_seconds_total",
    "counter",
    "Time these ran on the rank's GPU, waiting for the peer included; a send and a receive fused in one kernel "
    "each have the pair's time.",
    _P2P_SERIES,
    _P2P_COST,
)
P2P_BUS_BYTES = Family(
    "rankwatch_p2p_bus_bytes_total",
    "counter",
    "Bus bandwidth times time of these; its rate over the rate of seconds is the mean bandwidth.",
    _P2P_SERIES,
    _P2P_COST,
)
P2P_BUS_BANDWIDTH = Family(
    "rankwatch_p2p_bus_bandwidth_bytes_per_second",
    "gauge",
    "Bandwidth of a rank's sends or receives over the last five seconds with data, weighted by time, waiting included; "
    "too low where a send and a receive are fused in one kernel.",
    ("job_id", "rank", "comm", "direction"),
    "1 per rank, communicator and direction seen",
)
RECORDS = Family(
    "rankwatch_inspector_records_total",
    "counter",
    "Lines read from this node's Inspector files, by what became of them.",
    ("result",),
    f"{len(Result)} per node",
)
CAUSES = {
    Tally.MISSING_OVERFLOW: "overflow",
    Tally.MISSING_ONE_SLOT: "one_slot",
    Tally.MISSING_OTHERWISE: "filtered_or_lost",
}
MISSING_RECORDS = Family(
    "rankwatch_inspector_missing_records_total",
    "counter",
    "Operations of a rank without a record although later ones have one, by cause: the plugin's ring overflowed, its "
    "one slot was overwritten (2.28 and 2.29), or filtered_or_lost: those below its least size by design, or unknown.",
    ("job_id", "rank", "cause"),
    f"{len(CAUSES)} per rank",
)
SEEN_RECORDS = Family(
    "rankwatch_inspector_seen_records_total",
    "counter",
    "Operations of a rank that have a record, timed or not: with the missing ones, the coverage over any time.",
    ("job_id", "rank"),
    "1 per rank",
)
TIMINGS = {
    Tally.UNTIMED_KERNEL_CPU: "kernel_cpu",
    Tally.UNTIMED_COLLECTIVE_CPU: "collective_cpu",
    Tally.UNTIMED_ZERO: "zero",
    Tally.UNTIMED_OTHER: "other",
}
UNTIMED_OPERATIONS = Family(
    "rankwatch_inspector_untimed_operations_total",
    "counter",
    "Operations of a rank recorded without the GPU's own time, by what was there: in no bandwidth, not missing.",
    ("job_id", "rank", "timing"),
    f"1 per rank and timing seen, at most {len(TIMINGS)}",
)
LAG = Family(
    "rankwatch_inspector_lag_bytes",
    "gauge",
    "Bytes in this node's Inspector files that are not read yet.",
)
LAG_SECONDS = Family(
    "rankwatch_inspector_lag_seconds",
    "gauge",
    "How old the newest record read is, in the file that is furthest behind; 0 when all there is has been read.",
)
FILES = Family(
    "rankwatch_inspector_files",
    "gauge",
    "Inspector files seen: followed, of other hosts (foreign), or not told apart yet (unidentified).",
    ("state",),
    f"{len(FileState)} per node",
)
SKIPPED = Family(
    "rankwatch_inspector_skipped_total",
    "counter",
    "Directories and files not looked at or not read, counted once per look, by reason: a limit, or the error's name.",
    ("reason",),
    "1 per reason seen",
)
HOLE_BYTES = Family(
    "rankwatch_inspector_hole_bytes_total",
    "counter",
    "NUL bytes skipped in Inspector files: holes, as copytruncate and punching leave them.",
)
IMPLAUSIBLE_RECORDS = Family(
    "rankwatch_inspector_implausible_records_total",
    "counter",
    "Records faster than max_bus_bandwidth_gigabytes_per_second; exported too. Some RCCL give a tenth of the time.",
    aggregate="sum",
)
RECLAIMED_BYTES = Family(
    "rankwatch_inspector_reclaimed_bytes_total",
    "counter",
    "Disk space given back (exporters.inspector.reclaim): punched into what was read, or with files deleted.",
    ("how",),
    f"{len(How)} per node",
)
RECLAIM_ERRORS = Family(
    "rankwatch_inspector_reclaim_errors_total",
    "counter",
    "Files whose disk space could not be given back, counted at each try: the error's name; not the file that was read "
    "(replaced); known by another name too (linked).",
    ("reason",),
    "1 per reason seen",
)
BUSY_READERS = Family(
    "rankwatch_inspector_busy_readers",
    "gauge",
    "Configured directories whose reader has not come back from the file system.",
)
SILENT_RANKS = Family(
    "rankwatch_inspector_silent_ranks",
    "gauge",
    "Rank processes with NCCL_INSPECTOR_ENABLE whose other settings keep every record from us, by reason: no_plugin, "
    "no_dump_thread, prometheus_mode, no_interval, or a dump directory that is not read (other_directory).",
    ("reason",),
    f"{len(Silence)} per node",
    "sum",
)

FAMILIES = (
    OPERATIONS,
    BYTES,
    SECONDS,
    BUS_BYTES,
    BUS_BANDWIDTH,
    P2P_OPERATIONS,
    P2P_BYTES,
    P2P_SECONDS,
    P2P_BUS_BYTES,
    P2P_BUS_BANDWIDTH,
    RECORDS,
    MISSING_RECORDS,
    SEEN_RECORDS,
    UNTIMED_OPERATIONS,
    LAG,
    LAG_SECONDS,
    FILES,
    SKIPPED,
    HOLE_BYTES,
    IMPLAUSIBLE_RECORDS,
    RECLAIMED_BYTES,
    RECLAIM_ERRORS,
    BUSY_READERS,
    SILENT_RANKS,
)


class Snapshot(msgspec.Struct, frozen=True):
    """All that is rendered: what each reader published, and the label of each (writer, communicator, rank in it).

    Places without a label are not shown yet. ``unpublished``: a reader has not told yet what it holds, so that no sum
    over readers is whole.
    """

    readers: tuple[Published, ...]
    labels: dict[Place, RankLabel]
    inherited: Inheritance
    busy_readers: int
    unpublished: bool = False
    silent: Mapping[Silence, int] = {}
    reclaimed: tuple[Reclaimed, ...] = ()


def render(snapshot: Snapshot) -> Iterable[Metric]:
    """Turn a snapshot into families."""
    writers = [writer for reader in snapshot.readers for writer in reader.writers]
    yield from _series(writers, snapshot)
    yield from _bandwidth(writers, snapshot.labels)
    yield from _tallies(writers, snapshot)
    yield from _reading(snapshot)
    yield from _reclaimed(snapshot.reclaimed)


def _series(writers: list[OriginTotals], snapshot: Snapshot) -> Iterable[Metric]:
    """Sum the writers of each series; one that may be below its past withholds the whole of it."""
    series = dict(snapshot.inherited.sums)
    withheld: set[SeriesLabels] = set(series) if snapshot.unpublished else set()
    for writer in writers:
        for total in writer.totals:
            label = snapshot.labels.get((writer.origin, total.key.comm, total.key.comm_rank))
            if label is None:
                continue
            key = SeriesLabels.of(label, total.key)
            series[key] = total.sums.plus(series[key]) if key in series else total.sums
            if not writer.caught_up:
                withheld.add(key)
    collectives = [family.rows() for family in (OPERATIONS, BYTES, SECONDS, BUS_BYTES)]
    p2p = [family.rows() for family in (P2P_OPERATIONS, P2P_BYTES, P2P_SECONDS, P2P_BUS_BYTES)]
    for key, sums in series.items():
        if key in withheld:
            continue
        direction = DIRECTIONS.get(key.collective)
        operations, message_bytes, seconds, bus_bytes = collectives if direction is None else p2p
        values = (key.job_id, key.rank, key.comm, direction or key.collective, key.size)
        operations.add(values, sums.operations)
        message_bytes.add(values, sums.message_bytes)
        seconds.add(values, sums.microseconds / 1_000_000)
        bus_bytes.add(values, sums.bus_bytes)
    return [row.metric for row in (*collectives, *p2p)]


def _bandwidth(writers: list[OriginTotals], labels: dict[Place, RankLabel]) -> Iterable[Metric]:
    """Of several writers with the same labels (a restarted rank) the newest is shown."""
    collectives, p2p = BUS_BANDWIDTH.rows(), P2P_BUS_BANDWIDTH.rows()
    newest: dict[tuple[str, str, str, str], float] = {}
    for writer in sorted(writers, key=lambda one: one.last_progress_us):
        for comm, comm_rank, collective, bus_bytes, microseconds in writer.windows:
            if (label := labels.get((writer.origin, comm, comm_rank))) is not None:
                newest[label.job_id, label.rank, comm, collective] = bus_bytes * 1_000_000 / microseconds
    for (job_id, rank, comm, name), value in newest.items():
        direction = DIRECTIONS.get(name)
        (collectives if direction is None else p2p).add((job_id, rank, comm, direction or name), value)
    return [collectives.metric, p2p.metric]


def _tallies(writers: list[OriginTotals], snapshot: Snapshot) -> Iterable[Metric]:
    """Counts of a rank as a whole; as with the series, one writer behind withholds the sum."""
    sums: Counter[RankTally] = Counter(snapshot.inherited.tallies)
    withheld: set[RankLabel] = set()
    if snapshot.unpublished:
        withheld.update(RankLabel(key.job_id, key.rank) for key in sums)
    for writer in writers:
        for comm, comm_rank, tally, count in writer.tallies:
            if (label := snapshot.labels.get((writer.origin, comm, comm_rank))) is None:
                continue
            sums[RankTally(*label, tally)] += count
            if not writer.caught_up:
                withheld.add(label)
    missing, seen, untimed = MISSING_RECORDS.rows(), SEEN_RECORDS.rows(), UNTIMED_OPERATIONS.rows()
    for key, count in sums.items():
        if RankLabel(key.job_id, key.rank) in withheld:
            continue
        if key.tally is Tally.SEEN:
            seen.add((key.job_id, key.rank), count)
        elif (cause := CAUSES.get(key.tally)) is not None:
            missing.add((key.job_id, key.rank, cause), count)
        else:
            untimed.add((key.job_id, key.rank, TIMINGS[key.tally]), count)
    return [missing.metric, seen.metric, untimed.metric]


def _reading(snapshot: Snapshot) -> Iterable[Metric]:
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
    yield LAG_SECONDS.single(max((reader.lag_seconds for reader in snapshot.readers), default=0.0))
    yield BUSY_READERS.single(snapshot.busy_readers)
    rows = SILENT_RANKS.rows()
    for reason in Silence:
        rows.add((reason.value,), snapshot.silent.get(reason, 0))
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
