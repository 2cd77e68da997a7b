"""What is known of the files over several looks, and the metric families of what they say. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from agent.sdk.metrics import Family, Metric, comm_label
from agent.sdk.ranks import RankLabel
from exporters.inspector_prom.reading import Place
from exporters.inspector_prom.text import MeansKind, MeansRow, MeansText

STALE_INTERVALS = 3
"""Values not rewritten for this many intervals are old: the plugin leaves the last values of an idle GPU there."""
SERIES_PER_ROW = 2

Admit = Callable[[int], bool]  # Requests a number of additional series; returns False when the limit is reached


class MeansFile(msgspec.Struct):
    """``seen``: where the file was at the last look, ``read``: where it was when ``rows`` were read from it.

    ``seen_at`` and ``read_at``: when it had been written by then: monotonic time, and seconds since the epoch.
    """

    seen: Place | None = None
    seen_at: tuple[float, float] = (float("-inf"), 0.0)
    read: Place | None = None
    read_at: tuple[float, float] = (float("-inf"), 0.0)
    rows: dict[MeansKind, MeansRow] = {}
    counters: Mapping[str, float] = {}

    @property
    def written_seconds(self) -> float:
        """When its rows were written, since the epoch."""
        return self.read_at[1]

    def wants(self) -> Place | None:
        """Where the file must be found for it to be read; None: there is nothing new in it."""
        return self.seen if self.seen != self.read else None

    def note(self, identity: Place, now: float, now_seconds: float) -> None:
        """Take in where the file is at the monotonic time ``now``.

        How old a file is that is seen for the first time, its modification time tells; after that our own clock does.
        """
        if identity != self.seen:
            age = max(now_seconds - identity[3] / 1e9, 0.0) if self.seen is None else 0.0
            self.seen, self.seen_at = identity, (now - age, now_seconds - age)

    def take(self, text: MeansText, admit: Admit) -> Counter[str]:
        """Take in what it holds where it was seen last; return what was skipped, by reason."""
        self.read, self.read_at = self.seen, self.seen_at
        self.rows = {key: row for key, row in text.rows.items() if admit(SERIES_PER_ROW)}
        self.counters = text.counters if admit(len(text.counters)) else {}
        refused = len(text.rows) - len(self.rows) + len(text.counters) - len(self.counters)
        return text.skipped + Counter(series=refused)

    def is_fresh(self, now: float, interval_seconds: float) -> bool:
        """Return whether it has rows of the last STALE_INTERVALS."""
        return bool(self.rows) and now - self.read_at[0] <= STALE_INTERVALS * interval_seconds


_KIND = ("comm", "comm_name", "ranks", "nodes", "operation", "message_size", "algo_proto")
_COST = "1 per kind of operation of a rank in Prometheus mode"


class MeansState(StrEnum):
    """How it stands with a rank in this mode; a value is what the log says of it."""

    READ = "read"
    IDLE = "nothing was written for three intervals"
    WAITING = "there is no file yet"
    UNPROVEN = "several processes hold its file, or it has several GPUs and which of their files is its own is unknown"
    UNREADABLE = "its file cannot be read"


# fmt: off
BANDWIDTH = Family(
    "rankwatch_inspector_mean_bus_bandwidth_bytes_per_second", "gauge",
    "Of ranks whose Inspector is in Prometheus mode: the geometric mean of the bus bandwidth of a rank's operations "
    "between the plugin's last two writes (30 s or more; the last 1024 of a communicator), waiting included; of 2.29 "
    "that of the last operation. 2.29 tells comm, 2.30 comm_name: communicators of one name and size are one series.",
    ("job_id", "rank", *_KIND), _COST)
SECONDS = Family(
    "rankwatch_inspector_mean_operation_seconds", "gauge",
    "Likewise the arithmetic mean of the time that these operations took, as the plugin measured it.",
    ("job_id", "rank", *_KIND), _COST)
WRITTEN = Family(
    "rankwatch_inspector_means_timestamp_seconds", "gauge",
    "When the plugin last wrote these means: in the interval before that the rank completed an operation. Absent, as "
    "they are, when it has written none for three intervals.",
    ("job_id", "rank"), "1 per rank in Prometheus mode", "max")
OPERATIONS = Family(
    "rankwatch_inspector_plugin_operations_total", "counter",
    "Operations of the rank's GPU as the plugin counts them (NCCL_INSPECTOR_PROM_DUMP_STATS=1), by its counter: "
    "collectives, collectives_dropped (its ring was full), p2p, p2p_dropped.",
    ("job_id", "rank", "counter"), "4 per rank in Prometheus mode whose plugin writes them")
# fmt: on
FAMILIES = (BANDWIDTH, SECONDS, WRITTEN, OPERATIONS)


class RankMeans(msgspec.Struct, frozen=True):
    """What is shown of one rank: when it was written (epoch seconds), and its rows, which are never changed."""

    label: RankLabel
    written_seconds: float
    rows: Mapping[MeansKind, MeansRow]
    counters: Mapping[str, float] = {}


class MeansSnapshot(msgspec.Struct, frozen=True):
    """All that is rendered."""

    ranks: tuple[RankMeans, ...] = ()
    states: Mapping[RankLabel, MeansState] = {}


def render(snapshot: MeansSnapshot) -> Iterable[Metric]:
    """Turn a snapshot into families."""
    bandwidth, seconds, written, operations = (family.rows() for family in FAMILIES)
    for rank in snapshot.ranks:
        written.add(rank.label, rank.written_seconds)
        for counter, count in rank.counters.items():
            operations.add((*rank.label, counter), count)
        for key, row in rank.rows.items():
            labels = (*rank.label, comm_label(key.comm_id) if key.comm_id else "", *key[1:])
            if row.bytes_per_second is not None:
                bandwidth.add(labels, row.bytes_per_second)
            if row.seconds is not None:
                seconds.add(labels, row.seconds)
    yield from (bandwidth.metric, seconds.metric, written.metric, operations.metric)
