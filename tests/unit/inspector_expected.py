"""The totals of a folder of Inspector files, computed line by line with the standard library alone."""

import json
import lzma
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

RING_LINES = 1024
STEP_US = 5000
WIRE_BYTES_PER_US = 100_000_000
P2P = {"Send": "p2p_send", "Recv": "p2p_recv"}


BUS_FACTORS = {
    "AllReduce": lambda n: Fraction(2 * (n - 1), n),
    "AllGather": lambda n: Fraction(n - 1),
    "ReduceScatter": lambda n: Fraction(n - 1),
    "Broadcast": lambda _: Fraction(1),
}


def size_class(size_bytes: int) -> str:
    """Return the size label, computed by a loop."""
    bound = 8192
    while bound < size_bytes:
        bound *= 4
    return str(bound)


class Operation(NamedTuple):
    """One operation's line, with the line's own header and metadata or else those of the last `dump_stats` line."""

    header: dict[str, Any]
    metadata: dict[str, Any]
    name: str
    is_p2p: bool
    number: int
    size_bytes: int
    time_us: int
    timing: str

    @property
    def bus_bytes(self) -> int:
        """Return bus bandwidth multiplied by time, in bytes."""
        return self.size_bytes if self.is_p2p else int(BUS_FACTORS[self.name](self.header["n_ranks"]) * self.size_bytes)

    def result(self) -> str:
        """Return the result under which the reader must count the line."""
        if self.size_bytes >= 2**63:
            return "garbage"
        if self.timing != "kernel_gpu":
            return "not_kernel_timed"
        if not self.time_us:
            return "zero_time"
        return "garbage" if self.bus_bytes > WIRE_BYTES_PER_US * self.time_us else "accepted"


class Expected(NamedTuple):
    """Number of lines for each result, sums for each series, and number of missing records for each cause."""

    results: Counter[str]
    sums: dict[tuple[str, int, str, int, str, str], list[int]]
    seen: int
    missing: Counter[str]


def unpacked(folder: Path, scratch: Path) -> Path:
    """Return the folder, or a copy of it with its compressed files unpacked."""
    packed = list(folder.glob("*.xz"))
    for path in packed:
        (scratch / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return scratch if packed else folder


def expected(folder: Path) -> Expected:
    """Read every file of ``folder``."""
    results: Counter[str] = Counter()
    sums: dict[tuple[str, int, str, int, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    missing: Counter[str] = Counter()
    seen = 0
    for path in sorted(folder.glob("*.log")):
        operations = list(_operations(path, results))
        seen += len(operations)
        missing += _missing(operations)
        for one in operations:
            results[one.result()] += 1
            if one.result() == "accepted":
                _add(sums, one)
    return Expected(results, dict(sums), seen, missing)


def _operations(path: Path, results: Counter[str]) -> Iterator[Operation]:
    context, announced = ({}, {}), 0
    for text in path.read_bytes().lstrip(b"\0").split(b"\n")[:-1]:
        try:
            line = json.loads(text)
        except ValueError:
            results["malformed"] += 1
            announced = 0
            continue
        if "dump_stats" in line:
            results["dump_stats"] += 1
            context = (line["header"], line["metadata"])
            announced = line["dump_stats"]["coll_records"] + line["dump_stats"]["p2p_records"]
            continue
        if "header" not in line:
            assert announced, path
            announced -= 1
        header, metadata = (line["header"], line["metadata"]) if "header" in line else context
        kind = "p2p" if "p2p_perf" in line else "coll"
        perf = line[f"{kind}_perf"]
        members = [perf[f"{kind}_{name}"] for name in ("sn", "msg_size_bytes", "exec_time_us", "timing_source")]
        yield Operation(header, metadata, perf[kind], kind == "p2p", *members)


def _add(sums: dict[tuple[str, int, str, int, str, str], list[int]], one: Operation) -> None:
    comm = one.header["id"].removeprefix("0x")[:14]
    name = P2P[one.name] if one.is_p2p else one.name
    own = sums[
        one.metadata["hostname"], one.metadata["pid"], comm, one.header["rank"], name, size_class(one.size_bytes)
    ]
    for index, value in enumerate((1, one.size_bytes, one.time_us, one.bus_bytes)):
        own[index] += value


def _missing(operations: list[Operation]) -> Counter[str]:
    """Count missing records by cause; gaps before a dump are `overflow` if the dump has as many lines as the ring."""
    missing: Counter[str] = Counter()
    rings: dict[tuple[str, int, bool], list[list[Operation]]] = defaultdict(list)
    last = None
    for one in operations:
        ring = (one.header["id"], one.header["rank"], one.is_p2p)
        now = one.metadata["dump_timestamp_us"]
        if last is None or last[0] != ring or not 0 <= now - last[1] <= STEP_US:
            rings[ring].append([])
        rings[ring][-1].append(one)
        last = (ring, now)
    for batches in rings.values():
        numbers: dict[str, set[int]] = defaultdict(set)
        for batch in batches:
            before = _gaps(numbers)
            for one in batch:
                numbers["p2p" if one.is_p2p else one.name].add(one.number)
            cause = "overflow" if len(batch) == RING_LINES else "otherwise"
            missing[cause if "comm_name" in batch[0].header else "one_slot"] += _gaps(numbers) - before
    return +missing


def _gaps(numbers: dict[str, set[int]]) -> int:
    return sum(max(own) + 1 - len(own) - (name == "p2p") for name, own in numbers.items())
