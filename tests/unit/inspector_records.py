"""Inspector lines for tests, and what they must add up to, worked out apart from the code under test."""

import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "inspector"

BUS_FACTORS = {
    "AllReduce": lambda n: Fraction(2 * (n - 1), n),
    "AllGather": lambda n: Fraction(n - 1),
    "ReduceScatter": lambda n: Fraction(n - 1),
    "Broadcast": lambda _: Fraction(1),
}


def line(sn: int = 0, **changes: Any) -> bytes:
    """One collective's line; ``changes`` replace members wherever they stand."""
    record: dict[str, Any] = {
        "header": {"id": "0xabc", "comm_name": "tp", "rank": 1, "n_ranks": 4, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1_690_000_000_000_000 + sn, "hostname": "here", "pid": 7},
        "coll_perf": {"coll": "AllReduce", "coll_sn": sn, "coll_msg_size_bytes": 8192, "coll_exec_time_us": 10 + sn % 7,
         "coll_timing_source": "kernel_gpu"},
    }  # fmt: skip
    for name, value in changes.items():
        for part in record.values():
            if name in part:
                part[name] = value
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def size_class(size_bytes: int) -> str:
    """The size label, found by counting up."""
    bound = 8192
    while bound < size_bytes:
        bound *= 4
    return str(bound)


def expected_sums(files: list[Path]) -> dict[tuple[str, int, str, int, str, str], list[int]]:
    """Operations, bytes, microseconds and bus bytes by host, pid, communicator, rank in it, collective and size."""
    sums: dict[tuple[str, int, str, int, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for path in files:
        for text in path.read_text().splitlines():
            record = json.loads(text)
            header, metadata, perf = record["header"], record["metadata"], record["coll_perf"]
            size = perf["coll_msg_size_bytes"]
            key = (
                metadata["hostname"], metadata["pid"], header["id"].removeprefix("0x")[:14], header["rank"],
                perf["coll"], size_class(size),
            )  # fmt: skip
            own = sums[key]
            own[0] += 1
            own[1] += size
            own[2] += perf["coll_exec_time_us"]
            own[3] += int(BUS_FACTORS[perf["coll"]](header["n_ranks"]) * size)
    return dict(sums)


def append(path: Path, content: bytes) -> None:
    """Write at the end of a file."""
    with path.open("ab") as writer:
        writer.write(content)
