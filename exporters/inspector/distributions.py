"""How operations' times are spread: the slowest pairs of ranks, and durations in buckets. Pure."""

from __future__ import annotations

from agent.sdk.metrics import COUNT, SUM, Family, Metric
from agent.sdk.ranks import RankLabel
from exporters.inspector.families import DIRECTIONS
from exporters.inspector.format.records import P2P_SEND
from exporters.inspector.totals.durations import BOUND_LABELS, MAX_HISTOGRAMS, JobDurations
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import Place
from exporters.inspector.transfers.pairs import MAX_PAIRS

DURATIONS = Family(
    "rankwatch_collective_operation_duration_seconds",
    "histogram",
    "How long collectives of a job's ranks on this node ran, waiting for late ranks included; since the agent's start.",
    ("job_id", "collective", "size", "le"),
    f"{len(BOUND_LABELS) + 2} per job, collective and size class seen, at most {MAX_HISTOGRAMS} times; only with "
    "operation_histogram",
    "sum",
)
SLOW_PAIRS = Family(
    "rankwatch_p2p_slow_pair_bandwidth_bytes_per_second",
    "gauge",
    "Bandwidth that the fastest tenth of a pair's messages of a size class reached, over the last window of 10 seconds "
    "and 20 messages or more: of a rank's pairs the 4 slowest and the 4 furthest below their own best. sender and "
    "receiver are ranks in the communicator; direction says which of them rank is. A link that is slow is so at both "
    "ends, a late rank is not at its own. Not of messages up to 512 KiB.",
    ("job_id", "rank", "comm", "direction", "sender", "receiver", "size"),
    f"at most {MAX_PAIRS} per rank that sends or receives such messages, else none",
)


def slow_pairs(writers: list[WriterTotals], labels: dict[Place, RankLabel]) -> Metric:
    """Return the pairs that writers chose; of several writers with the same labels the newest one's."""
    newest: dict[tuple[str, ...], float] = {}
    for writer in sorted(writers, key=lambda one: one.last_progress_us):
        for (end, peer, size), bandwidth in writer.pairs:
            if (label := labels.get((writer.writer_key, end.comm, end.comm_rank))) is not None:
                places = (end.comm_rank, peer) if end.direction == P2P_SEND else (peer, end.comm_rank)
                newest[*label, end.comm, DIRECTIONS[end.direction], *map(str, places), size] = bandwidth
    return Metric(SLOW_PAIRS, list(newest), list(newest.values()))


def durations(writers: list[WriterTotals], labels: dict[Place, RankLabel], left: JobDurations) -> Metric:
    """How long the ranks of each job here took; ``left``: those that ended. A writer behind withholds its jobs."""
    jobs = left.copy()
    withheld: set[str] = set()
    for writer in writers:
        jobs.take(writer.writer_key, writer.durations, labels)
        if not writer.caught_up:
            ranks = (labels.get((writer.writer_key, *place)) for place in writer.places)
            withheld.update(label.job_id for label in ranks if label is not None)
    rows = DURATIONS.rows()
    for series, own in jobs.shown():
        if series.job_id not in withheld:
            counts = own.cumulative()
            for bound, count in zip(BOUND_LABELS, counts, strict=True):
                rows.add((*series, bound), count)
            rows.add((*series, COUNT), counts[-1])
            rows.add((*series, SUM), own.microseconds / 1_000_000)
    return rows.metric
