"""Made-up madengine runs: what the tasks of nodes print, and, counted beside it, what must be known of them."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Fate = Literal["ends", "fails", "killed", "silent"]
"""Of a node: ends well, fails with an error, is killed, or leaves with a code and no word of an error."""
AT = "2026-11-22T00:36:{:02d}+00:00"
BENIGN = (
    "[rocprofv3] FAILED to attach to 12",
    "W20261122 00:00:00 simple_timer.cpp:12] FAILED: 3 ms",
    "x.py:1: FutureWarning: ValueError: will be raised",
    "rpd_tracer: finalized, Exception: none",
)


class MadeTask(NamedTuple):
    """A node's two files, and what is true of it."""

    out: list[str]
    err: list[str]
    code: int | None
    failures: dict[str, int]
    verdict: str
    contradiction: str | None


def make_task(node_rank: int, fate: Fate, seed: int = 1) -> MadeTask:
    """Play one node's task. The script runs under `set -e`: what madengine returned is written only where it was 0."""
    chance = random.Random(seed + node_rank)  # noqa: S311  # not for secrets
    host = f"Node {node_rank} (n{node_rank})"
    err = [
        f"[DEBUG] {AT.format(1)} {host}: task script started",
        f"[DEBUG] {AT.format(2)} {host}: about to run madengine",
    ]
    out = [f"step {step} loss {chance.random():.3f}" for step in range(chance.randrange(5, 50))]
    out[chance.randrange(len(out)) : 0] = [chance.choice(BENIGN)]
    failures: dict[str, int] = {}
    code: int | None = None
    if fate == "ends":
        if node_rank == 0:
            out += [f"performance: {1000 + seed}.5 samples_per_second", "performance: 1 samples_per_second"]
            out += ["node_id: 0", "local_gpus: 8", "test_duration: 93.1s"]
        code = 0
        err += [f"[DEBUG] {AT.format(9)} {host}: madengine exited with code 0"]
    elif fate == "fails":
        out += ["Traceback (most recent call last):", "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB"]
        failures = {"Traceback (most recent call last)": 1, "HIP out of memory": 1}
        code = 3
    elif fate == "silent":
        code = 137
    if code is not None:
        err += [f"[DEBUG] {AT.format(10)} {host}: task script exiting with code {code}"]
    measured = fate == "ends" and node_rank == 0
    verdict = "FAILURE" if failures or (node_rank == 0 and not measured) else "SUCCESS"
    contradiction = None
    if verdict == "SUCCESS":
        contradiction = {"killed": "lost", "silent": "exit_code"}.get(fate)
    return MadeTask(out, err, code, failures, verdict, contradiction)
