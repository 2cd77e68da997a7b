"""Reads results in CSV files: perf.csv, where madengine adds a row per result, and tables of nodes."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import Clock
from agent.sdk.files import ChangedFiles, TextFiles, newest

MAX_METRIC_CHARACTERS = 64
MAX_NUMBER = 1e18
MAX_CSV_BYTES = 8 * 1024 * 1024
"""Limit of a file's size. A longer file would have more than 10,000 results and is not read."""
MAX_ROWS = 65_536
MAX_RESULTS = 256
"""Limit of (model, metric) pairs in perf.csv; the newest ones count."""
MAX_TABLE_RESULTS = 64
"""Limit of (model, metric) pairs per table."""
MAX_CELL_CHARACTERS = 65_536
MAX_TABLES = 128
"""Limit of tables per look: the newest files, with equal shares of all users."""
MAX_TABLE_BYTES = 1024 * 1024
"""About 10,000 results."""
_NODE = re.compile(r"/node_([0-9]{1,6})/[^/]+", re.ASCII)

Results = dict[tuple[str, str], float | None]
"""Results by model and metric; None if the row has none."""


class ResultTable(msgspec.Struct, frozen=True):
    """A node's table of several results. ``filled``: rows with a result."""

    results: Mapping[tuple[str, str], float]
    filled: int = 0


class PlacedTable(NamedTuple):
    """A table with its job and node."""

    job_id: str
    node_rank: int
    table: ResultTable


def read_perf_csv(raw: bytes) -> Results | None:
    """Return the newest result of each model and metric, the newest last; None if the file is not a perf.csv."""
    last: Results = {}
    try:
        for cells in _records(raw, {"model", "performance", "metric", "status"}):
            name = _name(cells)
            if name[0]:
                last.pop(name, None)
                last[name] = _number(cells.get("performance", ""))
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


def most_complete(tables: Iterable[PlacedTable]) -> list[PlacedTable]:
    """Return each job's table with the most results; of equal tables the first node's."""
    by_size = sorted(tables, key=lambda one: (one.table.filled, -one.node_rank))
    return list({placed.job_id: placed for placed in by_size}.values())


def as_label(text: str) -> str:
    """Return a job's text as a label value: printable, at most MAX_METRIC_CHARACTERS characters."""
    return "".join(c if c.isprintable() else "?" for c in text.strip()[:MAX_METRIC_CHARACTERS])


def _records(raw: bytes, columns: set[str]) -> Iterator[dict[str, str]]:
    """Yield at most MAX_ROWS rows as stripped cells by column. Raise csv.Error if too long or without a column."""
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


def _number(text: str) -> float | None:
    """Return a cell as a number; None unless it is finite and at most MAX_NUMBER."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= MAX_NUMBER else None


class SiteFacts(NamedTuple):
    """The content of all configured files."""

    results: Results
    tables: tuple[PlacedTable, ...]


class SiteReader:
    """Reads changed files: perf.csv files by name (``results``), and tables (in ``node_N`` of a job) by patterns.

    Blocks: call it in the exporter's own thread.
    """

    def __init__(self, results: Sequence[str], tables: Sequence[str], clock: Clock) -> None:
        self._paths = dict.fromkeys(results)
        self._results: ChangedFiles[Results] = ChangedFiles(MAX_CSV_BYTES, read_perf_csv)
        self._listing = TextFiles(tables, clock.monotonic)
        self._tables: ChangedFiles[ResultTable] = ChangedFiles(MAX_TABLE_BYTES, read_table)

    def look(self) -> SiteFacts:
        """Read new and changed files, and return the content of all."""
        self._results.look(self._paths)
        results: Results = {}
        for path in self._paths:
            results |= self._results.contents.get(path, {})
        names: dict[str, tuple[str, int]] = {}
        users: dict[str, int | None] = {}
        for file in newest(self._listing.discover(), MAX_TABLES):
            job_id, node_rank = self._listing.job_id(file), node_of(file.path)
            if job_id is not None and node_rank is not None:
                names[file.path], users[file.path] = (job_id, node_rank), file.share.uid
        self._tables.look(users)
        tables = tuple(PlacedTable(*names[path], table) for path, table in sorted(self._tables.contents.items()))
        return SiteFacts(dict(list(results.items())[-MAX_RESULTS:]), tables)
