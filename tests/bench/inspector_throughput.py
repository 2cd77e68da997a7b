"""How many Inspector records per second one core takes, from the file to published totals.

Run from the repository: ``python tests/bench/inspector_throughput.py [records [kernel_events [batch_lines]]]``. Prints
the best and median of five runs, the peak of the process' memory, and the same speed for a plain json.loads loop and
for msgspec's decoding alone over the same file. 24 ``kernel_events`` make the verbose lines of 24 channels; 2,100,000
records are a backlog of a gigabyte; with ``batch_lines`` each pass writes so many lines of each communicator at once.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.clock import SystemClock
from exporters.inspector.ownership import Ownership
from exporters.inspector.reader import READ_BYTES, DirectoryReader
from exporters.inspector.records import decode_lines

DATA = Path(__file__).parents[1] / "data" / "inspector" / "base8"
RUNS = 5
PASS_US = 1_000_000
LINE_US = 5
"""From one pass, and from one line of a pass, to the next."""


def trace(kernel_events: int) -> dict[str, object]:
    """What NCCL_INSPECTOR_DUMP_VERBOSE=1 adds to a record."""
    numbers = [
        {"channel_id": n, "kernel_start_sn": 3 * n + 3, "kernel_stop_sn": 3 * n + 5, "kernel_record_sn": 3 * n + 4}
        for n in range(kernel_events)
    ]
    times = [
        {"channel_id": n, "kernel_start_ts": 1790 * 10**12, "kernel_stop_ts": 1790 * 10**12, "kernel_record_ts": 0}
        for n in range(kernel_events)
    ]
    return {
        "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": numbers},
        "event_trace_ts": {"coll_start_ts": 1, "coll_stop_ts": 2, "kernel_events": times},
    }


def repeated(lines: list[str], batch_lines: int) -> Iterator[dict[str, Any]]:
    """Repeat the records for ever: as they are, or in passes of ``batch_lines`` for each communicator."""
    if not batch_lines:
        yield from map(json.loads, cycle(lines))
    of_communicator: dict[str, list[str]] = {}
    for line in lines:
        of_communicator.setdefault(json.loads(line)["header"]["id"], []).append(line)
    sources = list(map(cycle, of_communicator.values()))
    for pass_us in count(1_790_000_000_000_000, PASS_US):
        batches = chain.from_iterable(islice(source, batch_lines) for source in sources)
        for number, line in enumerate(batches):
            record = json.loads(line)
            record["metadata"]["dump_timestamp_us"] = pass_us + number * LINE_US
            yield record


def write_file(directory: Path, records: int, kernel_events: int, batch_lines: int) -> Path:
    """Write one rank's log of ``records`` lines: real ones, repeated with rising numbers."""
    source = sorted(DATA.glob("*.log"))[0]
    lines = source.read_text().splitlines()
    path = directory / source.name
    with path.open("w") as log:
        for number, record in enumerate(islice(repeated(lines, batch_lines), records)):
            record["coll_perf"]["coll_sn"] = number
            if kernel_events:
                record["coll_perf"].update(trace(kernel_events))
            log.write(json.dumps(record, separators=(",", ":")) + "\n")
    return path


def read_all(directory: Path) -> int:
    """Read the directory to its end as the exporter does; return the operations added up."""
    reader = DirectoryReader(directory, SystemClock(), lambda *_: True, from_beginning=True)
    while reader.turn(Ownership(everyone=True)).waiting:
        pass
    turn = reader.turn(Ownership(everyone=True), last=True)
    reader.close()
    if turn.published is None:
        raise RuntimeError("nothing published")
    return sum(total.sums.operations for writer in turn.published.writers for total in writer.totals)


def load_all(directory: Path) -> int:
    """Decode every line with the standard library and do nothing with it."""
    lines = 0
    for path in directory.iterdir():
        with path.open("rb") as log:
            for line in log:
                json.loads(line)
                lines += 1
    return lines


def decode_all(directory: Path) -> int:
    """Decode every line as the pipeline does, in pieces as large as its own, and do nothing with it."""
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
    """Print records per second over several runs; refuse a run that lost some."""
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        found = work()
        rates.append(records / (time.perf_counter() - began))
        if found != records:
            raise RuntimeError(f"{found} of {records} records")
    print(f"{what}: best {max(rates):,.0f}/s, median {statistics.median(rates):,.0f}/s")  # its purpose


def main() -> None:
    """Measure on a file in a scratch directory."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    kernel_events = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    batch_lines = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        size_bytes = write_file(directory, records, kernel_events, batch_lines).stat().st_size
        print(f"{size_bytes / records:.0f} bytes per line")
        measure("whole pipeline", records, lambda: read_all(directory))
        print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
        measure("msgspec decoding alone", records, lambda: decode_all(directory))
        measure("json.loads loop", records, lambda: load_all(directory))


if __name__ == "__main__":
    main()
