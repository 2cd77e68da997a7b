"""What the look at rank processes costs: real processes of 150 threads and 8 children each, looked at once a second.

    .venv/bin/python tests/bench/bench_usage.py [RANKS...]

CPU time is that of the looking thread alone. Threads that run between two looks cost more than idle ones: some do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agent.sdk.exporter import Guard, Logger, Roots  # noqa: E402  # likewise
from agent.sdk.ranks import ProcessKey  # noqa: E402  # likewise
from exporters.process.scan import Scanner, ScanRequest  # noqa: E402  # likewise

THREADS = 150
CHILDREN = 8
BUSY = {8: 10}
"""Threads of a rank that run, by number of ranks; else one."""
BURST_SECONDS = 0.015
LOOKS = 40
_PR_SET_NAME = 15


def live(busy: int) -> None:
    """Be a rank: never returns."""
    for _ in range(CHILDREN):
        if os.fork() == 0:
            signal.pause()
    ended = threading.Event()

    def idle() -> None:
        ended.wait()

    def named() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"NCCL RAS")
        ended.wait()

    def run() -> None:
        while True:
            until = time.thread_time() + BURST_SECONDS
            while time.thread_time() < until:
                pass
            time.sleep(5.0)

    works = [named, *[run] * busy]
    for work in works + [idle] * (THREADS - 1 - len(works)):
        threading.Thread(target=work, daemon=True).start()
    signal.pause()


def start(ranks: int) -> list[int]:
    """Start so many ranks, each the leader of a process group."""
    pids = []
    for _ in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            live(BUSY.get(ranks, 1))
        pids.append(pid)
    while any(len(os.listdir(f"/proc/{pid}/task")) < THREADS for pid in pids):
        time.sleep(0.1)
    return pids


def measure(ranks: int) -> None:
    """Print one line of docs/benchmarks.md."""
    pids = start(ranks)
    try:
        scanner = Scanner(Roots(), Guard(Logger("process")))
        known: set[ProcessKey] = set()
        spent, longest = 0.0, 0.0
        for number in range(LOOKS + 10):
            began = time.thread_time()
            known = look(scanner, known)
            took = time.thread_time() - began
            if number >= 10:
                spent, longest = spent + took, max(longest, took)
            time.sleep(1.0)
        mine = sum(key.pid in pids for key in known)
        print(f"| {mine} | {spent / LOOKS:.2%} of a core | {longest * 1e3:.1f} ms |", flush=True)
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def look(scanner: Scanner, known: set[ProcessKey]) -> set[ProcessKey]:
    """Look once; returns the rank processes that run."""
    found = scanner.look(ScanRequest(time.monotonic(), tuple(known)))
    return (known | {facts.key for facts in found.new}) - set(found.gone)


def main() -> None:
    """Measure each number of ranks."""
    print("| ranks | look at /proc once a second | longest look |\n|---|---|---|")
    for ranks in map(int, sys.argv[1:] or ("8", "64")):
        measure(ranks)


if __name__ == "__main__":
    main()
