"""What evidence costs a job: operations per second of a busy Python process, with and without somebody who looks at it.

    .venv/bin/python tests/bench/bench_evidence.py

The process has a core of its own, and threads that wait. Windows with and without looks take turns; each look is what a
bundle (/proc of the process) or the exporter stacks (py-spy) does once in ten minutes, here once a second.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from exporters.evidence.processes import rank_files  # noqa: E402  # after the change of the path

THREADS = 150
WINDOW_SECONDS = 1.0
WINDOWS = 60
"""Of each kind."""
PY_SPY = Path(sys.executable).with_name("py-spy")
BLOCK = b"work" * 1024


def operate(count: mmap.mmap) -> None:
    """Count operations for ever, on the first core."""
    os.sched_setaffinity(0, {0})
    for _ in range(THREADS):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    number = 0
    while True:
        hashlib.sha256(BLOCK).digest()
        number += 1
        count[:8] = struct.pack("q", number)


def by_proc(pid: int) -> None:
    """Look as a bundle does."""
    rank_files(Path("/proc"), Path("/sys/fs/cgroup"), "0", pid)


def by_py_spy(pid: int) -> None:
    """Look as the exporter stacks does."""
    subprocess.run(
        [str(PY_SPY), "dump", "--nonblocking", "--json", "--pid", str(pid)], capture_output=True, check=False
    )


def windows(pid: int, count: mmap.mmap, look: Callable[[int], None]) -> tuple[list[float], list[float], list[float]]:
    """Return operations per second without looks and with, and how long looks took."""
    without, with_looks, took = [], [], []
    for number in range(2 * WINDOWS):
        looks = number % 2
        began, first = time.monotonic(), struct.unpack("q", count[:8])[0]
        if looks:
            look(pid)
            took.append(time.monotonic() - began)
        time.sleep(max(0.0, WINDOW_SECONDS - (time.monotonic() - began)))
        rate = (struct.unpack("q", count[:8])[0] - first) / (time.monotonic() - began)
        (with_looks if looks else without).append(rate)
    return without, with_looks, took


def main() -> None:
    """Print a line for each kind of look."""
    count = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        operate(count)
    os.sched_setaffinity(0, set(range(1, os.cpu_count() or 2)))
    time.sleep(1.0)
    try:
        for name, look in (("nothing", lambda _pid: None), ("/proc", by_proc), ("py-spy", by_py_spy)):
            without, with_looks, took = windows(pid, count, look)
            change = statistics.median(with_looks) / statistics.median(without) - 1
            spread = statistics.stdev(without) / statistics.mean(without) / WINDOWS**0.5
            milliseconds = 1000 * statistics.median(took)
            print(f"{name}: {100 * change:+.2f} % (noise {100 * spread:.2f} %), a look {milliseconds:.1f} ms")
    finally:
        os.kill(pid, 9)
        os.wait()


if __name__ == "__main__":
    main()
