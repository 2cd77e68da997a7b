"""Parses one of the plugin's files: a row for each kind of operation, with a bandwidth and a time. Pure.

The plugin does not escape labels: a quote in a communicator's name makes a file that Prometheus' own parsers refuse. So
each line is parsed by itself, its labels are split at `",name="`, and malformed lines are counted."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MAX_TEXT_BYTES = 128 * 1024
"""Limit of a file's read: about 280 rows. The plugin writes one row per kind of operation and mebibyte of size."""
MAX_LINE_BYTES = 2048  # The plugin's own limit
MAX_NAME_CHARACTERS = 255  # The plugin's own limit of a communicator's name
MAX_GIGABYTES_PER_SECOND = 1e5  # More than any link or memory reaches
MAX_MICROSECONDS = 1e12  # Eleven days: no operation takes this long; a longer time is a clock error
BANDWIDTHS = frozenset({"nccl_bus_bandwidth_gbs", "nccl_p2p_bus_bandwidth_gbs"})
TIMES = frozenset({"nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds"})
COUNTERS = {
    "nccl_collectives_total": "collectives",
    "nccl_collectives_dropped_total": "collectives_dropped",
    "nccl_p2p_total": "p2p",
    "nccl_p2p_dropped_total": "p2p_dropped",
}
"""Operations of the GPU since its process began; only with NCCL_INSPECTOR_PROM_DUMP_STATS=1 (Inspector's README)."""
MAX_COUNT = 1 << 53  # Above this a float cannot hold every integer

_LINE = re.compile(r"(nccl_[a-z0-9_]{1,60})\{(.*)\} (\S{1,32})", re.DOTALL)
_LABEL = re.compile(r'(?:^|",)([a-z0-9_]{1,32})="')
_NAME = re.compile(f".{{0,{MAX_NAME_CHARACTERS}}}", re.DOTALL)
_COUNT = re.compile(r"[1-9][0-9]{0,6}", re.ASCII)
_OPERATION = re.compile("AllReduce|AllGatherV?|ReduceScatter|Broadcast|Reduce|SendRecv|All2All|Send|Recv")
_SIZE = re.compile(r"([0-9]{1,8})(?:\.[0-9]{1,2})?(?:-[0-9]{1,8})?(B|KB|MB|GB|TB)", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_]{0,32}", re.ASCII)
_COMM_ID = re.compile(r"(?:0x[0-9a-f]{1,16})?", re.ASCII)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class MeansKind(NamedTuple):
    """A kind of operation. ``comm_id``: the communicator's hash, only in 2.29; ``comm_name``: its name, from 2.30 on.

    ``ranks`` and ``nodes`` (NVLink domains) of the communicator, ``message_size``, ``algo_proto``: the plugin's texts.
    """

    comm_id: str
    comm_name: str
    ranks: str
    nodes: str
    operation: str
    message_size: str
    algo_proto: str

    def size_bytes(self) -> int:
        """Return the least size of the messages."""
        match = _SIZE.fullmatch(self.message_size)
        return 0 if match is None else int(match[1]) * _UNITS[match[2]]


_ValueKey = tuple[MeansKind | None, str]
"""Where a line's value belongs: a field of a MeansRow, or (None) a counter."""


class MeansRow(msgspec.Struct):
    """Bus bandwidth in bytes per second and time in seconds; None without a plausible value in the file."""

    bytes_per_second: float | None = None
    seconds: float | None = None


class MeansText(msgspec.Struct):
    """``rows``: rows of the largest messages first. ``skipped``: lines left out, by reason.

    ``counters``: the plugin's counts of operations; their keys are the values of COUNTERS.
    """

    rows: dict[MeansKind, MeansRow]
    skipped: Counter[str]
    counters: dict[str, float] = {}


def parse(raw: bytes) -> MeansText:
    """Parse a file's first MAX_TEXT_BYTES, only whole lines."""
    skipped: Counter[str] = Counter()
    values: dict[_ValueKey, float | None] = {}
    if len(raw) > MAX_TEXT_BYTES:
        skipped["file_size"] += 1
    lines = raw[:MAX_TEXT_BYTES].split(b"\n")
    if lines.pop():
        skipped["cut"] += 1
    for line in lines:
        reason = ""
        match _value(line):
            case str(reason):
                pass
            case value_key, value:
                reason = "twice" if value_key in values else "value" if value is None else ""
                values[value_key] = None if reason else value  # either value may be the true value
        if reason:
            skipped[reason] += 1
    rows: dict[MeansKind, MeansRow] = {}
    counters: dict[str, float] = {}
    for (key, field), value in values.items():
        if value is not None and key is None:
            counters[field] = value
        elif value is not None and key is not None:
            setattr(rows.setdefault(key, MeansRow()), field, value)
    return MeansText(dict(sorted(rows.items(), key=lambda row: -row[0].size_bytes())), skipped, counters)


def _value(line: bytes) -> tuple[_ValueKey, float | None] | str:
    """Return where a line's value belongs and the value (None: implausible), or why it is left out ("": no value)."""
    if not line or line.startswith(b"#"):
        return ""
    if len(line) > MAX_LINE_BYTES:
        return "line_size"
    match = _LINE.fullmatch(line.decode("utf-8", "replace"))
    if match is None:
        return "malformed"
    name, value = match[1], _number(match[3])
    if name in COUNTERS:
        return (None, COUNTERS[name]), value if 0 <= value <= MAX_COUNT else None
    if name not in BANDWIDTHS | TIMES:
        return ""  # a value that follows from other values
    key = _key(_labels(match[2]))
    if key is None:
        return "malformed"
    if name in BANDWIDTHS:
        return (key, "bytes_per_second"), value * 1e9 if 0 < value <= MAX_GIGABYTES_PER_SECOND else None
    return (key, "seconds"), value / 1e6 if 0 < value <= MAX_MICROSECONDS else None


def _labels(text: str) -> dict[str, str]:
    """Return the labels of a line; empty if they are malformed."""
    matches = list(_LABEL.finditer(text))
    if not matches or matches[0].start() or not text.endswith('"'):
        return {}
    ends = [*(label.start() for label in matches[1:]), len(text) - 1]
    labels = {label[1]: text[label.end() : end] for label, end in zip(matches, ends, strict=True)}
    return labels if len(labels) == len(matches) else {}


def _key(labels: Mapping[str, str]) -> MeansKind | None:
    operation = labels.get("collective") or labels.get("p2p_operation", "")
    comm_id, comm_name, ranks, nodes, size, algo_proto = (
        labels.get(name, "") for name in ("comm_id", "comm_name", "nranks", "n_nodes", "message_size", "algo_proto")
    )
    key = MeansKind(comm_id, comm_name, ranks, nodes, operation, size, algo_proto)
    forms = (_COMM_ID, _NAME, _COUNT, _COUNT, _OPERATION, _SIZE, _WORD)
    return key if all(form.fullmatch(text) for form, text in zip(forms, key, strict=True)) else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
