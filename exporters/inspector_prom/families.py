"""The metric families of the exporter, and how a snapshot becomes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from agent.sdk.metrics import Family, Metric, comm_label
from agent.sdk.ranks import RankLabel
from exporters.inspector_prom.text import MeansKind, MeansRow

_KIND = ("comm", "comm_name", "ranks", "nodes", "operation", "message_size", "algo_proto")
_COST = "1 per kind of operation of a rank in Prometheus mode"


class MeansState(StrEnum):
    """How it stands with a rank in this mode."""

    READ = "read"
    IDLE = "idle"
    WAITING = "waiting"
    UNPROVEN = "unproven"
    UNREADABLE = "unreadable"


BANDWIDTH = Family(
    "rankwatch_inspector_mean_bus_bandwidth_bytes_per_second",
    "gauge",
    "Of ranks whose Inspector is in Prometheus mode: the geometric mean of the bus bandwidth of a rank's operations "
    "between the plugin's last two writes (30 s or more; the last 1024 of a communicator), waiting included; of 2.29 "
    "that of the last operation. 2.29 tells comm, 2.30 comm_name: communicators of one name and size are one series.",
    ("job_id", "rank", *_KIND),
    _COST,
)
SECONDS = Family(
    "rankwatch_inspector_mean_operation_seconds",
    "gauge",
    "Likewise the arithmetic mean of the time that these operations took, as the plugin measured it.",
    ("job_id", "rank", *_KIND),
    _COST,
)
WRITTEN = Family(
    "rankwatch_inspector_means_timestamp_seconds",
    "gauge",
    "When the plugin last wrote these means: in the interval before that the rank completed an operation. Absent, as "
    "they are, when it has written none for three intervals.",
    ("job_id", "rank"),
    "1 per rank in Prometheus mode",
    "max",
)
RANKS = Family(
    "rankwatch_inspector_means_ranks",
    "gauge",
    "Ranks whose Inspector is in Prometheus mode, by state: read; idle: nothing written for three intervals; waiting: "
    "no file yet; unproven: several processes hold its file, or it has several GPUs and it is not known which is the "
    "rank's; unreadable.",
    ("state",),
    "1 per state that holds",
    "sum",
)
SKIPPED = Family(
    "rankwatch_inspector_means_skipped_total",
    "counter",
    "What was not taken of files of Inspector's Prometheus mode, by reason: lines without sense (malformed, cut, "
    "line_size), of a kind that stands there twice (twice), or with a value that cannot be (value); rows that found no "
    "room (series); files above the bounds (file_size, files).",
    ("reason",),
    "1 per reason seen",
)
FAMILIES = (BANDWIDTH, SECONDS, WRITTEN, RANKS, SKIPPED)


class RankMeans(msgspec.Struct, frozen=True):
    """What is shown of one rank: when it was written (epoch seconds), and its rows, which are never changed."""

    label: RankLabel
    written_seconds: float
    rows: Mapping[MeansKind, MeansRow]


class MeansSnapshot(msgspec.Struct, frozen=True):
    """All that is rendered."""

    ranks: tuple[RankMeans, ...] = ()
    states: Mapping[MeansState, int] = {}
    skipped: Mapping[str, int] = {}


def render(snapshot: MeansSnapshot) -> Iterable[Metric]:
    """Turn a snapshot into families."""
    bandwidth, seconds, written = BANDWIDTH.rows(), SECONDS.rows(), WRITTEN.rows()
    for rank in snapshot.ranks:
        written.add(rank.label, rank.written_seconds)
        for key, row in rank.rows.items():
            labels = (*rank.label, *_labels(key))
            if row.bytes_per_second is not None:
                bandwidth.add(labels, row.bytes_per_second)
            if row.seconds is not None:
                seconds.add(labels, row.seconds)
    ranks, skipped = RANKS.rows(), SKIPPED.rows()
    for state, count in sorted(snapshot.states.items()):
        ranks.add((state.value,), count)
    for reason, count in sorted(snapshot.skipped.items()):
        skipped.add((reason,), count)
    return [rows.metric for rows in (bandwidth, seconds, written, ranks, skipped)]


def _labels(key: MeansKind) -> tuple[str, ...]:
    comm = comm_label(key.comm_id) if key.comm_id else ""
    return (comm, key.comm_name, key.ranks, key.nodes, key.operation, key.message_size, key.algo_proto)
