"""How many Inspector records per second one core takes, from the file to published totals.

Run from the repository: ``python tests/bench/inspector_throughput.py [records]``. Prints the best and median of five
runs, and the same for a plain json.loads loop over the same file.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.clock import SystemClock
from exporters.inspector.ownership import Ownership
from exporters.inspector.reader import DirectoryReader

DATA = Path(__file__).parents[1] / "data" / "inspector" / "base8"
RUNS = 5


def write_file(directory: Path, records: int) -> Path:
    """Write one rank's log of ``records`` lines: real ones, repeated with rising numbers."""
    source = sorted(DATA.glob("*.log"))[0]
    lines = source.read_text().splitlines()
    path = directory / source.name
    with path.open("w") as log:
        for number, line in enumerate(islice(cycle(lines), records)):
            record = json.loads(line)
            record["coll_perf"]["coll_sn"] = number
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
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_file(directory, records)
        measure("json.loads loop", records, lambda: load_all(directory))
        measure("whole pipeline", records, lambda: read_all(directory))


if __name__ == "__main__":
    main()
