"""The metric families of Inspector's records."""

from __future__ import annotations

from agent.sdk.metrics import Family, declared
from exporters.inspector.format.records import P2P_RECV, P2P_SEND, Result
from exporters.inspector.reading.record_files import FileState
from exporters.inspector.totals.losses import Tally
from exporters.inspector.totals.pairs import MAX_PAIRS
from exporters.inspector.totals.since_start import BOUND_LABELS, MAX_CHOICES, MAX_HISTOGRAMS, MAX_PEERS

_SERIES = ("job_id", "rank", "comm", "collective", "size")
_SERIES_COST = "1 per rank, communicator, collective and size class; beyond the budget 1 per rank and collective"
_DERIVED = "; only with derived_series"

# fmt: off
OPERATIONS = Family(
    "rankwatch_collective_operations_total", "counter",
    "Collective operations that a rank completed. Counts only Inspector records that the GPU timed.",
    _SERIES, _SERIES_COST)
BYTES = Family(
    "rankwatch_collective_bytes_total", "counter",
    "Message bytes of a rank's collective operations as NCCL counts them: the bytes that one rank sends (AllGather) "
    "or receives (ReduceScatter).",
    _SERIES, _SERIES_COST + _DERIVED)
SECONDS = Family(
    "rankwatch_collective_seconds_total", "counter",
    "GPU time of a rank's collective operations, including its wait for late ranks. So the latest rank has the least "
    "time.",
    _SERIES, _SERIES_COST)
BUS_BYTES = Family(
    "rankwatch_collective_bus_bytes_total", "counter",
    "Bus bandwidth times GPU time of a rank's collective operations. The rate of this counter divided by the rate of "
    "rankwatch_collective_seconds_total is the mean bus bandwidth.",
    _SERIES, _SERIES_COST)
BUS_BANDWIDTH = Family(
    "rankwatch_collective_bus_bandwidth_bytes_per_second", "gauge",
    "Bus bandwidth of a rank's operations over the last five seconds with data, weighted by time. An ended rank has no "
    "series.",
    ("job_id", "rank", "comm", "collective"), "1 per rank, communicator and collective seen")
ALGORITHM = Family(
    "rankwatch_collective_algorithm_info", "gauge",
    "Algorithm and protocol of the latest operation whose record names them; always 1.",
    ("job_id", "comm", "collective", "size", "algorithm", "protocol"),
    "1 per communicator, collective and size class seen")
_ARRIVALS = ("job_id", "comm", "collective", "size")
_ARRIVALS_COST = "1 per collective and size class of a communicator that is wholly on this node"

LATENESS = Family(
    "rankwatch_collective_lateness_seconds_total", "counter",
    "Time that all other ranks of a communicator waited for this rank alone, summed over the operations in which this "
    "rank arrived last. Only for communicators that are wholly on this node.",
    ("job_id", "rank", "comm", "collective"),
    "1 per rank and collective of a communicator that is wholly on this node")
LAST_ARRIVALS = Family(
    "rankwatch_collective_last_arrivals_total", "counter",
    "Operations in which this rank alone arrived last. Only operations with records from all ranks of the communicator "
    "count.",
    ("job_id", "rank", "comm", "collective"),
    "1 per rank and collective of a communicator that is wholly on this node")
MATCHED = Family(
    "rankwatch_communicator_matched_operations_total", "counter",
    "Operations whose times on all ranks of the communicator were compared, because all ranks have a record.",
    _ARRIVALS, _ARRIVALS_COST, aggregate="sum")
UNMATCHED = Family(
    "rankwatch_communicator_unmatched_operations_total", "counter",
    "Operations with records from only some ranks: they cannot show which rank was late.",
    _ARRIVALS, _ARRIVALS_COST + _DERIVED, aggregate="sum")
FLOOR = Family(
    "rankwatch_communicator_floor_seconds_total", "counter",
    "Time of the matched operations on the rank that arrived last and did not wait: the fabric's own time.",
    _ARRIVALS, _ARRIVALS_COST, aggregate="sum")
TRANSFER = Family(
    "rankwatch_communicator_transfer_seconds", "gauge",
    "Transfer time without waiting: the 10th percentile of a rank's operation times in a window of at least 10 s and "
    "3 operations, for this node's rank with the lowest percentile. The minimum over nodes is the fabric's own time.",
    _ARRIVALS, "1 per synchronising collective and size class, in each communicator that is not wholly on this node")
LOST = Family(
    "rankwatch_communicator_lost_operations_total", "counter",
    "Collective operations without a record because the plugin's ring overflowed or its only slot was overwritten, "
    "summed over the communicator's ranks on this node. Operations below the plugin's least size do not count.",
    ("job_id", "comm"), "1 per communicator that has a series of collective operations", aggregate="sum")
_P2P_SERIES = ("job_id", "rank", "comm", "direction", "size")
_P2P_COST = "1 per rank, communicator, direction and size class; beyond the budget 1 per rank and direction"
DIRECTIONS = {P2P_SEND: "send", P2P_RECV: "recv"}

P2P_OPERATIONS = Family(
    "rankwatch_p2p_operations_total", "counter",
    "Sends and receives that a rank completed. Counts only Inspector records that the GPU timed.",
    _P2P_SERIES, _P2P_COST)
P2P_BYTES = Family(
    "rankwatch_p2p_bytes_total", "counter",
    "Message bytes of a rank's sends and receives, which equal their bus bytes. This counter's rate divided by the "
    "rate of rankwatch_p2p_seconds_total is the mean bandwidth.",
    _P2P_SERIES, _P2P_COST)
P2P_SECONDS = Family(
    "rankwatch_p2p_seconds_total", "counter",
    "GPU time of a rank's sends and receives, including the wait for the peer. If one kernel does both, "
    "the kernel's time counts for the send and for the receive.",
    _P2P_SERIES, _P2P_COST)
RECORDS = Family(
    "rankwatch_inspector_records_total", "counter",
    "Lines read from this node's Inspector files, by result.",
    ("result",), f"{len(Result)} per node")
CAUSES = {
    Tally.MISSING_OVERFLOW: "overflow", Tally.MISSING_ONE_SLOT: "one_slot",
    Tally.MISSING_OTHERWISE: "filtered_or_lost",
}
MISSING_RECORDS = Family(
    "rankwatch_inspector_missing_records_total", "counter",
    "Operations of a rank that have no record although later operations have one, by cause. overflow: the plugin's "
    "ring was full. one_slot: the plugin's only slot was overwritten (NCCL 2.28 and 2.29). filtered_or_lost: below "
    "the plugin's least size, or of unknown cause.",
    ("job_id", "rank", "cause"), "2 per rank: its plugin has either one slot or a ring")
SEEN_RECORDS = Family(
    "rankwatch_inspector_seen_records_total", "counter",
    "Operations of a rank that have a record, timed or not. Seen / (seen + missing) is the coverage.",
    ("job_id", "rank"), "1 per rank")
TIMINGS = {
    Tally.UNTIMED_KERNEL_CPU: "kernel_cpu", Tally.UNTIMED_COLLECTIVE_CPU: "collective_cpu",
    Tally.UNTIMED_ZERO: "zero", Tally.UNTIMED_OTHER: "other",
}
UNTIMED_OPERATIONS = Family(
    "rankwatch_inspector_untimed_operations_total", "counter",
    "Operations recorded without the GPU's own time, by the clock that timed them instead. They count in no bandwidth, "
    "and not as missing records.",
    ("job_id", "rank", "timing"), f"1 per rank and timing seen, at most {len(TIMINGS)}")
LAG = Family(
    "rankwatch_inspector_lag_bytes", "gauge",
    "Bytes in this node's Inspector files that are not read yet.")
FILES = Family(
    "rankwatch_inspector_files", "gauge",
    "Inspector files seen: followed (this agent reads them), foreign (of other hosts), or unidentified (unknown host). "
    "writable_by_others: followed files that users other than the owner can write to or replace, so any user may have "
    "written the records; give each job a directory that only its user may enter.",
    ("state",), f"{len(FileState)} per node")
SKIPPED = Family(
    "rankwatch_inspector_skipped_total", "counter",
    "Directories and files that a search or a read skipped, counted once per search, by reason: a limit, the error's "
    "name, or overwritten (a second live writer wrote over lines that were read). At a limit, entries of the user and "
    "directory with the most entries are skipped: delete old files, or give each job its own directory. Limits: "
    "entry, directory, file, open, left (positions of files that disappeared), writer, place (ranks of "
    "communicators), match (ranks compared), pair (pairs of ranks), binding (kinds of record).",
    ("reason",), "1 per reason seen")
IMPLAUSIBLE_RECORDS = Family(
    "rankwatch_inspector_implausible_records_total", "counter",
    "Records with a bus bandwidth above max_bus_bandwidth_gigabytes_per_second. They count in all other series, too. "
    "Some RCCL versions report a tenth of the true time.",
    aggregate="sum")
RECLAIM_ERRORS = Family(
    "rankwatch_inspector_reclaim_errors_total", "counter",
    "Failed attempts to free a file's disk space, by reason: the error's name; replaced (not the file that was read); "
    "linked (the file has another name too).",
    ("reason",), "1 per reason seen")
SILENT_RANKS = Family(
    "rankwatch_inspector_silent_ranks", "gauge",
    "Rank processes with NCCL_INSPECTOR_ENABLE whose other settings keep every record from the agent, by reason: "
    "no_plugin, no_dump_thread, otlp_mode (records go to an OTLP endpoint), prometheus_mode, no_interval, or a dump "
    "directory that the agent does not read (other_directory).",
    ("reason",), "1 per reason that holds", "sum")
DURATIONS = Family(
    "rankwatch_collective_operation_duration_seconds", "histogram",
    "Durations of collectives of a job's ranks on this node, including the wait for late ranks. Counted since the "
    "agent's start.",
    ("job_id", "collective", "size", "le"),
    f"{len(BOUND_LABELS) + 2} per job, collective and size class seen, at most {MAX_HISTOGRAMS} times; only with "
    "operation_histogram",
    "sum")
BY_ALGORITHM = Family(
    "rankwatch_collective_algorithm_operations_total", "counter",
    "Collectives of a job's ranks on this node, by NCCL's algorithm and protocol. Counts only records that name both "
    "(NCCL 2.30), without size `other`. Counted since the agent's start.",
    ("job_id", "collective", "size", "algorithm", "protocol"),
    f"1 per job, collective, size class, algorithm and protocol, at most {MAX_CHOICES}; only with by_algorithm", "sum")
SLOW_PAIRS = Family(
    "rankwatch_p2p_slow_pair_bandwidth_bytes_per_second", "gauge",
    "Bandwidth that the fastest tenth of a pair's messages in one size class reached in the last window of at least "
    "10 seconds and 20 messages. Only a rank's 4 slowest pairs and the 4 pairs furthest below their own best have "
    "series. sender and receiver are ranks in the communicator; direction is the side that measured. A slow link is "
    "slow on both sides; a late rank is not slow on its own side. Messages up to 512 KiB do not count.",
    ("job_id", "rank", "comm", "direction", "sender", "receiver", "size"),
    f"at most {MAX_PAIRS} per rank that sends or receives such messages, else none")
PROXY_SECONDS = Family(
    "rankwatch_proxy_seconds_total", "counter",
    "Time that steps of the network proxy took, by phase: gpu_produce (a send waits for the GPU's data), peer_credit "
    "(a send waits for room at the peer), wire (until the data is sent or received), flush, gpu_consume (a receive "
    "waits for the GPU). peer is a rank in the communicator. Steps overlap. Counted since the agent's start.",
    ("job_id", "rank", "comm", "direction", "peer", "phase"),
    f"6 per peer, rank and communicator, at most {MAX_PEERS} peers; only with NCCL_INSPECTOR_ENABLE_PROXY=1")
# fmt: on
FAMILIES = declared(globals())
