"""Inspector's JSON lines as typed records: the keys that are read, the kinds of line, and the operations' size classes.

Source of the format: NVIDIA/nccl plugins/profiler/inspector (2.28 and later). The keys tell the kinds of line apart;
`inspector_output_format_version` does not ("v4.0" in every tagged release up to 2.30).
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.metrics import comm_label

MAX_RANKS = 1 << 20
MAX_SIZE_BYTES = (1 << 63) - 1  # The plugin writes 2**64 - count for data types that it does not know (ncclUint8)
MAX_EXEC_TIME_US = 86_400_000_000
MAX_SEQUENCE_NUMBER = 1 << 53
MAX_BUS_BYTES_PER_US = 100_000_000  # 1e5 GB/s: more than any link or memory reaches
MAX_COMM_NAME_CHARACTERS = 255
MAX_HOSTNAME_CHARACTERS = 255
MAX_ID_CHARACTERS = 18
MAX_WORD_CHARACTERS = 64  # Limit of the name of a collective or of a timing source
MAX_PID = (1 << 31) - 1
MAX_PROXY_STEPS = 1 << 16  # Limit of steps in a line: those of one operation since the last pass

# A value outside of these bounds makes a line malformed, and the agent takes nothing from the line.
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Unsigned = Annotated[int, msgspec.Meta(ge=-(1 << 63))]
"""Real lines have values up to 2**64. msgspec cannot check such a limit, so other code does."""
Rank = Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=1, le=MAX_PID)]
TimestampUs = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
HeaderId = Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARACTERS)]
CommName = Annotated[str, msgspec.Meta(max_length=MAX_COMM_NAME_CHARACTERS)]
Hostname = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOSTNAME_CHARACTERS)]
Word = Annotated[str, msgspec.Meta(max_length=MAX_WORD_CHARACTERS)]

KERNEL_TIMING = "kernel_gpu"
OTHER = "other"

P2P_SEND = "p2p_send"
P2P_RECV = "p2p_recv"
P2P_OTHER = "p2p_other"
P2P_NAMES = {"Send": P2P_SEND, "Recv": P2P_RECV}
"""Maps names in records of P2P operations to rankwatch's names; any other name is P2P_OTHER and counts as garbage."""

COLLECTIVES = frozenset(
    {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "SendRecv", "All2All", "AllGatherV"}
)
"""The names in NCCL 2.30; any other collective counts as `other`."""

ALGORITHMS = frozenset({"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"})
PROTOCOLS = frozenset({"LL", "LL128", "SIMPLE"})
"""The names in NCCL 2.32.3; any other name is `other`, since a job's user can write any name."""


def choice(algorithm: str, protocol: str) -> tuple[str, str]:
    """Return both names; `other` for an unknown name."""
    return algorithm if algorithm in ALGORITHMS else OTHER, protocol if protocol in PROTOCOLS else OTHER


class Result(StrEnum):
    """The result of reading one line."""

    ACCEPTED = "accepted"
    DUMP_STATS = "dump_stats"
    PROXY_TRACE = "proxy_trace"
    BARE = "bare"
    UNKNOWN_KIND = "unknown_kind"
    MALFORMED = "malformed"
    GARBAGE = "garbage"
    OVERLONG = "overlong"
    FAILED = "failed"
    NOT_KERNEL_TIMED = "not_kernel_timed"
    ZERO_TIME = "zero_time"
    ORIGIN_LIMIT = "origin_limit"


class Header(msgspec.Struct, gc=False):
    """The communicator and the writer's rank in it; ``nnodes`` counts NVLink domains.

    ``comm_name`` is None in formats without the key: NCCL 2.28 and 2.29, whose plugin keeps only the latest operation
    between two passes.
    """

    id: HeaderId
    rank: Rank
    n_ranks: Rank
    nnodes: Int64 = 0
    comm_name: CommName | None = None


class Metadata(msgspec.Struct, gc=False):
    """The writer, and the wall-clock time at which the line was formatted (not when the operation ran)."""

    dump_timestamp_us: TimestampUs
    hostname: Hostname
    pid: Pid


class CollectivePerf(msgspec.Struct, gc=False):
    """One collective operation. The printed bandwidths are not read: size, ranks and time determine them exactly.

    ``coll_algo`` and ``coll_proto`` are empty in formats before v4.2 and in P2P operations.
    """

    coll: Word
    coll_sn: Int64
    coll_msg_size_bytes: Unsigned
    coll_exec_time_us: Unsigned
    coll_timing_source: Word
    coll_algo: Word = ""
    coll_proto: Word = ""


class P2PPerf(
    CollectivePerf,
    gc=False,
    rename={
        "coll": "p2p",
        "coll_sn": "p2p_sn",
        "coll_msg_size_bytes": "p2p_msg_size_bytes",
        "coll_exec_time_us": "p2p_exec_time_us",
        "coll_timing_source": "p2p_timing_source",
        "peer": "p2p_peer",
    },
):
    """One P2P operation. Its line has the same fields under other names; they are declared again because `rename`
    covers only a class's own fields.

    ``peer`` is the peer's rank in the communicator, -1 if the line has none.
    """

    coll: Word
    coll_sn: Int64
    coll_msg_size_bytes: Unsigned
    coll_exec_time_us: Unsigned
    coll_timing_source: Word
    peer: Int64 = -1


class DumpStats(msgspec.Struct, gc=False):
    """The first line of a batch in newer formats: how many lines follow, and how many records the rings dropped."""

    coll_records: Int64 = 0
    p2p_records: Int64 = 0
    proxy_records: Int64 = 0
    coll_dropped_since_last_dump: Int64 = 0
    p2p_dropped_since_last_dump: Int64 = 0


class ProxyStep(msgspec.Struct, gc=False):
    """Microseconds of a network proxy's step, by phase. A send has the first three phases, a receive the last three."""

    gpu_produce_us: Int64 = 0
    peer_credit_us: Int64 = 0
    wire_us: Int64 = 0
    flush_us: Int64 = 0
    gpu_consume_us: Int64 = 0


class ProxyTrace(ProxyStep, gc=False):
    """A step of the network proxy, or an operation with its steps (NCCL_INSPECTOR_ENABLE_PROXY=1).

    ``peer``: the peer's rank in the communicator; ``direction``: send or recv.
    """

    peer: Int64 = -1
    direction: Word = ""
    steps: Annotated[list[ProxyStep], msgspec.Meta(max_length=MAX_PROXY_STEPS)] = []


class InspectorRecord(msgspec.Struct, gc=False):
    """One line."""

    header: Header | None = None
    metadata: Metadata | None = None
    coll_perf: CollectivePerf | None = None
    p2p_perf: P2PPerf | None = None
    dump_stats: DumpStats | None = None
    proxy_trace: ProxyTrace | None = None


BROKEN = InspectorRecord()  # Stands for a line that is no record

_DECODER = msgspec.json.Decoder(InspectorRecord)
_DECODING_ERRORS = (ValueError, RecursionError, MemoryError)
"""Errors that the decoding of a line can raise: msgspec's errors and UnicodeDecodeError are ValueErrors."""


def decode_lines(data: bytes) -> list[InspectorRecord]:
    """Decode whole lines. A line that is no record gives BROKEN; blank lines give nothing."""
    try:
        return _DECODER.decode_lines(data)
    except _DECODING_ERRORS:  # a line is bad: find out which
        return [_decode(line) for line in data.split(b"\n") if line.strip()]


def _decode(line: bytes) -> InspectorRecord:
    try:
        return _DECODER.decode(line)
    except _DECODING_ERRORS:
        return BROKEN


def kind(record: InspectorRecord) -> Result:
    """Return the kind of a line that is no operation, or lacks the operation's header or metadata."""
    if record is BROKEN:
        return Result.MALFORMED
    if record.proxy_trace is not None:
        return Result.PROXY_TRACE
    if record.header is None or record.metadata is None:
        perf = record.coll_perf or record.p2p_perf
        return Result.UNKNOWN_KIND if perf is None else Result.BARE
    return Result.DUMP_STATS if record.dump_stats is not None else Result.UNKNOWN_KIND


def communicator(header_id: str, rank: int, n_ranks: int) -> str | None:
    """Return the `comm` label, or None when the header is implausible."""
    digits = header_id.removeprefix("0x")
    if not 0 <= rank < n_ranks <= MAX_RANKS or not digits or len(header_id) > MAX_ID_CHARACTERS:
        return None
    return None if digits.strip("0123456789abcdefABCDEF") else comm_label(header_id)


def bus_bytes_per_operation(collective: str, size_bytes: int, n_ranks: int) -> int:
    """Return bus bandwidth times time of one operation, in bytes, rounded down (nccl-tests' PERFORMANCE.md).

    The result is 0 for an unknown collective. The printed `coll_busbw_gbs` multiplied by the time is not used: both are
    rounded, so sums drift. A float total that is summed in another order after a restart looks like a counter reset.
    """
    if collective == "AllReduce":
        return 2 * (n_ranks - 1) * size_bytes // n_ranks
    if collective in ("AllGather", "AllGatherV", "ReduceScatter"):
        return (n_ranks - 1) * size_bytes  # total of n x size, times (n - 1) / n
    return size_bytes if collective in ("Broadcast", "Reduce", "SendRecv", P2P_SEND, P2P_RECV) else 0


MAX_TOTAL = 1 << 62  # Limit of every total: a hostile job must not make integers that no checkpoint can hold
Total = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOTAL)]

SIZE_BOUNDS = tuple(8192 * 4**step for step in range(12))
"""Upper bounds of the size classes in bytes, inclusive: powers of four from 8 KiB to 32 GiB."""
SIZE_LABELS = (*(str(bound) for bound in SIZE_BOUNDS), "+Inf")


class SeriesKey(NamedTuple):
    """The key of one accumulator of a writer; ``size``: a label of SIZE_LABELS, or `other` for a refused series.

    ``comm`` is `other` only beyond the limits of ``Places``. A refused series keeps its communicator in the key,
    because the rank's label depends on the communicator; the exported `comm` is `other`.
    """

    comm: str
    comm_rank: int
    collective: str  # or a P2P name of records.P2P_NAMES
    size: str


def size_label(size_bytes: int) -> str:
    """Return the size class of a message: its upper bound in bytes, inclusive, or "+Inf"."""
    return SIZE_LABELS[bisect_left(SIZE_BOUNDS, size_bytes)]
