"""Dumps of PyTorch's flight recorder: recorded ones, and artificial ones in the format of PyTorch's writer."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data/flight_recorder"


@cache
def recorded(scenario: str) -> Mapping[int, bytes]:
    """Return the dumps of a recorded hang, keyed by rank."""
    with tarfile.open(DATA / "scenarios.tar.xz") as archive:
        dumps = {}
        for member in archive.getmembers():
            _, _, rank = member.name.partition("_dump_")
            content = archive.extractfile(member)
            if member.name.startswith(f"{scenario}/") and rank and content is not None:
                dumps[int(rank)] = content.read()
    return dumps


def pickled(value: Any) -> bytes:
    """Pickle a value as PyTorch's writer does: it writes a repeated string again, not a reference to the first."""
    return b"\x80\x02" + _value(value) + b"."


def _value(value: Any) -> bytes:
    constants = {None: b"N", True: b"\x88", False: b"\x89"}
    if value is None or isinstance(value, bool):
        return constants[value]
    if isinstance(value, int):
        return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_value, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_value, value)) + b"e"
    return b"}(" + b"".join(_value(item) for pair in value.items() for item in pair) + b"u"


def entry(group: str = "0", sequence: int = 1, **changed: Any) -> dict[str, Any]:
    """Return one operation: an all_reduce of 1,024 floats that is scheduled and not started."""
    return {
        "pg_id": int(group) if group.isdecimal() else 0,
        "process_group": (group, "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": "nccl:all_reduce",
        "state": "scheduled",
        "time_created_ns": 1_800_000_000_000_000_000,
        "is_p2p": False,
        "input_sizes": [[32, 32]],
        "input_dtypes": ["Float"],
    } | changed


def dump(
    entries: Sequence[Mapping[str, Any]] = (), ranks: str = "[0, 1, 2, 3]", enqueued: int = 1, **changed: Any
) -> dict[str, Any]:
    """Return the dump of a rank in one process group."""
    return {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": enqueued, "last_started_collective": -1}},
        "entries": list(entries),
    } | changed
