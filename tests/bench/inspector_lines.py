"""Inspector logs of any length for the benchmarks: the records of a real job, repeated with later times and numbers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = sorted((Path(__file__).parents[1] / "data" / "inspector" / "base8").glob("*.log"))
"""The logs of eight ranks, one process each."""
_TIME, _NUMBER = "<time>", "<number>"


class _Line(NamedTuple):
    """A record as a template: its first time, its first number, and the number of records of its kind in a round."""

    text: str
    time_us: int
    number: int
    step: int


def write_log(path: Path, source: Path, records: int, *, hostname: str = "", kernel_events: int = 0) -> int:
    """Write ``records`` lines like those of ``source``; return the bytes written.

    Times and numbers grow from round to round, so that no record seems missing. ``hostname`` replaces the recorded host
    name. ``kernel_events``: number of channels whose verbose fields are added."""
    recorded = [json.loads(line) for line in source.read_text().splitlines()]
    kinds = Counter(_kind(record) for record in recorded)
    lines = [_line(record, kinds[_kind(record)], hostname, kernel_events) for record in recorded]
    span_us = lines[-1].time_us - lines[0].time_us + 1
    with path.open("w") as log:
        for turn in range(-(-records // len(lines))):
            log.writelines(
                line.text % (line.time_us + turn * span_us, line.number + turn * line.step)
                for line in lines[: records - turn * len(lines)]
            )
        return log.tell()


def _kind(record: dict[str, Any]) -> tuple[str, str]:
    return record["header"]["id"], record["coll_perf"]["coll"]


def _line(record: dict[str, Any], step: int, hostname: str, kernel_events: int) -> _Line:
    metadata, perf = record["metadata"], record["coll_perf"]
    time_us, number = metadata["dump_timestamp_us"], perf["coll_sn"]
    metadata["dump_timestamp_us"], perf["coll_sn"] = _TIME, _NUMBER
    metadata["hostname"] = hostname or metadata["hostname"]
    if kernel_events:
        perf.update(_trace(kernel_events))
    text = json.dumps(record, separators=(",", ":")).replace("%", "%%") + "\n"
    return _Line(text.replace(f'"{_TIME}"', "%d").replace(f'"{_NUMBER}"', "%d"), time_us, number, step)


def _trace(kernel_events: int) -> dict[str, object]:
    """Return the fields that NCCL_INSPECTOR_DUMP_VERBOSE=1 adds to a record."""
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
