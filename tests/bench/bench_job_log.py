"""Measures the CPU seconds of the search for events in a gigabyte of job log, for each kind of line.

.venv/bin/python tests/bench/bench_job_log.py [MEGABYTES]

Each log has one common kind of line. In the last log every line reports a failure."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from exporters.job_log.catalogue import catalogue  # needs the changed path
from exporters.job_log.matcher import events  # needs the changed path as well

PIECE_BYTES = 128 * 1024
LINES = {
    "Megatron-LM": " [2026-02-24 18:52:02.194471] iteration 12/ 500 | consumed samples: 1000 | elapsed time per "
    "iteration (ms): 1250.5 | learning rate: 1.000E-04 | lm loss: 6.2E+00 | grad norm: 0.512 | number of skipped "
    "iterations: 0 | number of nan iterations: 0 |",
    "torchtitan": "[rank0]:2025-04-01 00:25:47,084 - root - INFO - \x1b[31mstep: 640  \x1b[32mloss:  6.2116  "
    "\x1b[33mmemory: 87.04GiB(93.48%)  tps: 1,234",
    "progress bar": " 12%|#2        | 120/1000 [01:40<12:10,  1.20it/s]",
    "NCCL_DEBUG=INFO": "n1:4000:4001 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "only failures": "[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered",
}


def main() -> None:
    """Print the CPU seconds for a gigabyte, and the number of events in one piece."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    looked_for = catalogue()
    for name, line in LINES.items():
        text = line.encode() + b"\n"
        piece = text * (PIECE_BYTES // len(text))
        pieces = megabytes * 1_000_000 // len(LINES) // len(piece)
        began, found = time.process_time(), 0
        for _ in range(pieces):
            found += sum(1 for _ in events(piece, looked_for))
        seconds = (time.process_time() - began) / (pieces * len(piece)) * 1e9
        sys.stdout.write(f"{name:16} {seconds:6.1f} s/GB, {found // pieces} events in {len(piece)} bytes\n")


if __name__ == "__main__":
    main()
