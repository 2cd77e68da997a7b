"""Artificial reports of any size, in the format of NCCL 2.32."""

import json
from collections.abc import Iterator

RANKS_PER_NODE = 8
STATUS = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
COUNTS = {"Broadcast": 3, "Reduce": 0, "AllGather": 512_345, "ReduceScatter": 512_345, "AllReduce": 1_048_576}


def rank(number: int) -> dict[str, object]:
    """Return one rank that has replied."""
    node, gpu = divmod(number, RANKS_PER_NODE)
    identity = {"rank": number, "host": f"10.4.{node >> 8}.{node & 255}", "pid": 1_000_000 + number}
    return {**identity, "cuda_dev": gpu, "nvml_dev": gpu, "status": STATUS, "collective_counts": COUNTS}


def communicators(ranks: int, count: int) -> Iterator[str]:
    """Yield communicators that each contain all ranks."""
    members = [rank(number) for number in range(ranks)]
    for number in range(count):
        size = {"size": ranks, "ranks_count": ranks, "missing_ranks_count": 0}
        whole = {"hash": f"{(number + 1) << 60 | 0xABCDEF:#x}", **size, "ranks": members, "missing_ranks": []}
        yield json.dumps(whole, indent=2).replace("\n", "\n    ")


def report(ranks: int, count: int) -> Iterator[bytes]:
    """Yield a report in pieces, one for each communicator."""
    yield b'{\n  "nccl_version": "2.32.3",\n  "timestamp": "2026-11-20 17:52:36",\n  "communicators": [\n    '
    for number, text in enumerate(communicators(ranks, count)):
        yield (",\n    " if number else "").encode() + text.encode()
    yield b'\n  ],\n  "ras": {\n    "collection_time_ms": 4,\n    "timeouts_count": 0\n  }\n}\n'
