"""The state of the files over several polls, and the metric families of their contents. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import msgspec

from agent.sdk.metrics import Family, Metric, comm_label
from agent.sdk.ranks import RankLabel
from exporters.inspector_prom.reading import FileVersion
from exporters.inspector_prom.text import MeansKind, MeansRow, MeansText

STALE_INTERVALS = 3
"""Values not rewritten for this many intervals are old: the plugin keeps an idle GPU's last values in the file."""
SERIES_PER_ROW = 2

Admit = Callable[[int], bool]  # Requests a number of additional series; returns False when the limit is reached


class Means(msgspec.Struct, frozen=True):
    """The content of a version of a file, and when it was written: monotonic, and in seconds since the epoch."""

    version: FileVersion | None = None
    written_at: tuple[float, float] = (float("-inf"), 0.0)
    rows: Mapping[MeansKind, MeansRow] = {}
    counters: Mapping[str, float] = {}


class MeansFile(msgspec.Struct):
    """A file at the last poll (``seen``, written at ``seen_at``: see Means), and the contents that were read last."""

    seen: FileVersion | None = None
    seen_at: tuple[float, float] = (float("-inf"), 0.0)
    means: Means = Means()

    def wants(self) -> FileVersion | None:
        """Return the identity that the file must have to be read; None if nothing is new."""
        return self.seen if self.seen != self.means.version else None

    def note(self, identity: FileVersion, now: float, now_seconds: float) -> None:
        """Store the file's identity at the monotonic time ``now``.

        The age of a new file comes from its modification time, later ages from the agent's clock.
        """
        if identity != self.seen:
            age = max(now_seconds - identity[3] / 1e9, 0.0) if self.seen is None else 0.0
            self.seen, self.seen_at = identity, (now - age, now_seconds - age)

    def take(self, text: MeansText, admit: Admit) -> Counter[str]:
        """Store the contents as of the last poll; return the number of skipped parts by reason."""
        rows = {key: row for key, row in text.rows.items() if admit(SERIES_PER_ROW)}
        counters = text.counters if admit(len(text.counters)) else {}
        self.means = Means(self.seen, self.seen_at, rows, counters)
        refused = len(text.rows) - len(rows) + len(text.counters) - len(counters)
        return text.skipped + Counter(series=refused)

    def is_fresh(self, now: float, interval_seconds: float) -> bool:
        """Return True when the file has rows from the last STALE_INTERVALS."""
        return bool(self.means.rows) and now - self.means.written_at[0] <= STALE_INTERVALS * interval_seconds


_KIND = ("comm", "comm_name", "ranks", "nodes", "operation", "message_size", "algo_proto")
_COST = "1 per kind of operation of a rank in Prometheus mode"


class MeansState(StrEnum):
    """The state of a rank in this mode; the value is its text in the log."""

    READ = "read"
    IDLE = "nothing was written for three intervals"
    WAITING = "there is no file yet"
    UNPROVEN = "several processes hold its file, or it has several GPUs and the right file among theirs is unknown"
    UNREADABLE = "its file cannot be read"


# fmt: off
BANDWIDTH = Family(
    "rankwatch_inspector_mean_bus_bandwidth_bytes_per_second", "gauge",
    "Geometric mean of the bus bandwidth of a rank's operations between the plugin's last two writes (30 s or more "
    "apart; at most the last 1024 operations of a communicator), including waits. With NCCL 2.29: the last "
    "operation's bandwidth. Only for ranks whose Inspector is in Prometheus mode. NCCL 2.29 sets comm, 2.30 sets "
    "comm_name: communicators with the same name and size share one series.",
    ("job_id", "rank", *_KIND), _COST)
SECONDS = Family(
    "rankwatch_inspector_mean_operation_seconds", "gauge",
    "Arithmetic mean of the time of the operations in rankwatch_inspector_mean_bus_bandwidth_bytes_per_second, as the "
    "plugin measured it.",
    ("job_id", "rank", *_KIND), _COST)
WRITTEN = Family(
    "rankwatch_inspector_means_timestamp_seconds", "gauge",
    "Time when the plugin last wrote the rank's means; the rank completed an operation in the interval before. Like "
    "the means, this series is absent after three intervals without a write.",
    ("job_id", "rank"), "1 per rank in Prometheus mode", "max")
OPERATIONS = Family(
    "rankwatch_inspector_plugin_operations_total", "counter",
    "Operations of the rank's GPU by the plugin's own counters (NCCL_INSPECTOR_PROM_DUMP_STATS=1): collectives, "
    "collectives_dropped (the ring was full), p2p, p2p_dropped.",
    ("job_id", "rank", "counter"), "4 per rank in Prometheus mode whose plugin writes them")
# fmt: on
FAMILIES = (BANDWIDTH, SECONDS, WRITTEN, OPERATIONS)


def render(ranks: Mapping[RankLabel, Means]) -> Iterable[Metric]:
    """Return the families of ranks' means."""
    bandwidth, seconds, written, operations = (family.rows() for family in FAMILIES)
    for label, means in ranks.items():
        written.add(label, means.written_at[1])
        for counter, count in means.counters.items():
            operations.add((*label, counter), count)
        for key, row in means.rows.items():
            labels = (*label, comm_label(key.comm_id) if key.comm_id else "", *key[1:])
            if row.bytes_per_second is not None:
                bandwidth.add(labels, row.bytes_per_second)
            if row.seconds is not None:
                seconds.add(labels, row.seconds)
    yield from (bandwidth.metric, seconds.metric, written.metric, operations.metric)
