"""Measures the Inspector records per second of one core, from the file to published totals.

.venv/bin/python tests/bench/inspector_throughput.py [plain | matched | verbose | gigabyte]

Prints a table for docs/benchmarks.md: the best and median of five runs, the same for msgspec's decoding alone and for a
plain json.loads loop, and the peak of the process's memory. ``matched``: files of eight ranks with whole communicators,
so that every operation is matched over its members. ``verbose``: lines as NCCL_INSPECTOR_DUMP_VERBOSE=1 writes them,
with the events of 24 channels."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from inspector_lines import SOURCES, write_log

from agent.core.clock import Clock
from exporters.inspector.format.records import decode_lines
from exporters.inspector.reading.reader import READ_BYTES, DirectoryReader
from exporters.inspector.reading.record_files import Ownership

RUNS = 5


class Mode(NamedTuple):
    """The number and the kind of records."""

    records: int
    kernel_events: int = 0
    ranks: int = 1


MODES = {
    "plain": Mode(100_000),
    "matched": Mode(200_000, ranks=8),
    "verbose": Mode(20_000, kernel_events=24),
    "gigabyte": Mode(2_100_000),
}


def read_all(directory: Path) -> int:
    """Read the directory to its end as the exporter does; return the number of operations added up."""
    reader = DirectoryReader(directory, Clock(), lambda *_: True, from_beginning=True)
    while reader.turn(Ownership(everyone=True)).waiting:
        pass
    turn = reader.turn(Ownership(everyone=True), last=True)
    reader.close()
    if turn.published is None:
        raise RuntimeError("nothing published")
    return sum(own.operations for writer in turn.published.writers for key, own in writer.totals.items())


def load_all(directory: Path) -> int:
    """Decode every line with the standard library."""
    lines = 0
    for path in directory.iterdir():
        with path.open("rb") as log:
            for line in log:
                json.loads(line)
                lines += 1
    return lines


def decode_all(directory: Path) -> int:
    """Decode every line in pieces as large as the pipeline's."""
    lines = 0
    for path in directory.iterdir():
        rest = b""
        with path.open("rb", buffering=0) as log:
            while piece := log.read(READ_BYTES):
                end = piece.rfind(b"\n") + 1
                lines += len(decode_lines(rest + piece[:end])) if end else 0
                rest = piece[end:] if end else rest + piece
    return lines


def measure(what: str, records: int, work: Callable[[], int]) -> None:
    """Print records per second over several runs; raise if a run lost records."""
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        found = work()
        rates.append(records / (time.perf_counter() - began))
        if found != records:
            raise RuntimeError(f"{found} of {records} records")
    print(f"| {what} | {max(rates) / 1000:,.0f} k | {statistics.median(rates) / 1000:,.0f} k |")


def main() -> None:
    """Measure with files in a temporary directory."""
    records, kernel_events, ranks = MODES[sys.argv[1] if len(sys.argv) > 1 else "plain"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        size_bytes = sum(
            write_log(directory / source.name, source, records // ranks, kernel_events=kernel_events)
            for source in SOURCES[:ranks]
        )
        print(f"| {records:,} records of {size_bytes / records:,.0f} bytes, per second | best | median |")
        print("|---|---|---|")
        measure("whole pipeline", records, lambda: read_all(directory))
        peak_megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        measure("msgspec decoding alone", records, lambda: decode_all(directory))
        measure("`json.loads` loop", records, lambda: load_all(directory))
        print(f"| peak memory of the pipeline | {peak_megabytes:.0f} MB | |")


if __name__ == "__main__":
    main()
