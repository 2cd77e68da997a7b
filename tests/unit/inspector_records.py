"""Inspector lines for tests."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "inspector"


def line(sn: int = 0, **changes: Any) -> bytes:
    """Return the line of one collective; ``changes`` replace its members at any depth."""
    record: dict[str, Any] = {
        "header": {"id": "0xabc", "comm_name": "tp", "rank": 1, "n_ranks": 4, "nnodes": 1},
        "metadata": {"dump_timestamp_us": 1_690_000_000_000_000 + sn, "hostname": "here", "pid": 7},
        "coll_perf": {"coll": "AllReduce", "coll_sn": sn, "coll_msg_size_bytes": 8192, "coll_exec_time_us": 10 + sn % 7,
         "coll_timing_source": "kernel_gpu"},
    }  # fmt: skip
    for name, value in changes.items():
        for part in record.values():
            if name in part:
                part[name] = value
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def append(path: Path, *contents: bytes) -> None:
    """Append to a file."""
    with path.open("ab") as writer:
        writer.write(b"".join(contents))
