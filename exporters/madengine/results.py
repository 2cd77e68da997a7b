"""Reads results in CSV files: perf.csv, where madengine adds a row per result, and tables of nodes. Pure."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

MAX_METRIC_CHARACTERS = 64
MAX_NUMBER = 1e18
MAX_CSV_BYTES = 8 * 1024 * 1024
"""Limit of a file's size. A longer file would have more than 10,000 results and is not read."""
MAX_ROWS = 65_536
MAX_RESULTS = 256  # Limit of (model, metric) pairs in perf.csv; the newest pairs stay
MAX_TABLE_RESULTS = 64  # Limit of (model, metric) pairs per table
MAX_CELL_CHARACTERS = 65_536
_NODE = re.compile(r"/node_([0-9]{1,6})/[^/]+", re.ASCII)
STATUSES = ("SUCCESS", "FAILURE", "SKIPPED", "other")
_COUNT = re.compile(r"[0-9]{1,7}", re.ASCII)


class PerfRow(NamedTuple):
    """A row of perf.csv. ``performance`` and ``seconds`` (test duration): None if not measured.

    ``status``: one of STATUSES. ``nodes`` and ``gpus``: counts, as text. A text is empty if the row lacks it.
    """

    performance: float | None
    seconds: float | None
    status: str
    launcher: str
    nodes: str
    gpus: str


Results = dict[tuple[str, str], PerfRow]  # Rows by model and metric


class ResultTable(msgspec.Struct, frozen=True):
    """A node's table of several results. ``filled``: rows with a result."""

    results: Mapping[tuple[str, str], float]
    filled: int = 0


class NodeTable(NamedTuple):
    """A table with its job and node."""

    job_id: str
    node_rank: int
    table: ResultTable


def read_perf_csv(raw: bytes) -> Results | None:
    """Return the newest row of each model and metric, the newest last; None if the file is not a perf.csv."""
    last: Results = {}
    try:
        for cells in _records(raw, {"model", "performance", "metric", "status"}):
            name = _name(cells)
            if name[0]:
                last.pop(name, None)
                last[name] = _row(cells)
    except csv.Error:
        return None
    return dict(list(last.items())[-MAX_RESULTS:])


def read_table(raw: bytes) -> ResultTable | None:
    """Return the last result of each model and metric in a table; None if the file is not a table."""
    results: dict[tuple[str, str], float] = {}
    filled = 0
    try:
        for cells in _records(raw, {"model", "performance", "metric"}):
            name, value = _name(cells), _number(cells.get("performance", ""))
            if value is None:
                continue
            filled += 1
            if name in results or len(results) < MAX_TABLE_RESULTS:
                results[name] = value
    except csv.Error:
        return None
    return ResultTable(results, filled)


def node_of(path: str) -> int | None:
    """Return the number N in a table's directory name (``node_N``); None if the name has another form."""
    match = _NODE.search(path)
    return None if match is None else int(match[1])


def most_complete(tables: Iterable[NodeTable]) -> list[NodeTable]:
    """Return each job's table with the most results; of equal tables the first node's table."""
    by_size = sorted(tables, key=lambda placed: (placed.table.filled, -placed.node_rank))
    return list({placed.job_id: placed for placed in by_size}.values())


def as_label(text: str) -> str:
    """Return a job's text as a label value: printable, at most MAX_METRIC_CHARACTERS characters."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_METRIC_CHARACTERS])


def _records(raw: bytes, columns: set[str]) -> Iterator[dict[str, str]]:
    """Yield at most MAX_ROWS rows as stripped cells by column. csv.Error if ``raw`` is too long or lacks a column."""
    if len(raw) > MAX_CSV_BYTES:
        raise csv.Error("too long")
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    rows = csv.reader(raw.decode("utf-8", "replace").splitlines()[: MAX_ROWS + 1])
    header = [cell.strip() for cell in next(rows, [])]
    if not columns <= set(header):
        raise csv.Error("other columns")
    for cells in rows:
        yield dict(zip(header, (cell.strip() for cell in cells), strict=False))


def _name(cells: Mapping[str, str]) -> tuple[str, str]:
    return as_label(cells.get("model", "")), as_label(cells.get("metric", ""))


def _row(cells: Mapping[str, str]) -> PerfRow:
    performance = _number(cells.get("performance", ""))
    seconds = _number(cells.get("test_duration", "").removesuffix("s"))
    status = cells.get("status", "").upper()
    nodes, gpus = (text if _COUNT.fullmatch(text := cells.get(name, "")) else "" for name in ("nnodes", "n_gpus"))
    launcher = as_label(cells.get("launcher", ""))
    return PerfRow(performance, seconds, status if status in STATUSES else "other", launcher, nodes, gpus)


def _number(text: str) -> float | None:
    """Return a cell as a number; None unless it is finite and at most MAX_NUMBER."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= MAX_NUMBER else None
