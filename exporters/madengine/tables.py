"""Tables of several results (madengine's ``multiple_results``) of nodes: the most complete counts. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from exporters.madengine.lines import as_label
from exporters.madengine.perf_csv import as_number, records

MAX_TABLE_RESULTS = 64
"""Of one table, that are shown; rows beyond are counted."""
_NODE = re.compile(r"/node_([0-9]{1,6})/[^/]+", re.ASCII)


class ResultTable(msgspec.Struct, frozen=True):
    """One table: its results by model and metric; how many of its rows have one (``filled``), and none (``empty``)."""

    results: Mapping[tuple[str, str], float]
    filled: int = 0
    empty: int = 0


class PlacedTable(NamedTuple):
    """A table, and the job and node whose it is."""

    job_id: str
    node_rank: int
    table: ResultTable


def read_table(raw: bytes) -> ResultTable | None:
    """What a table says: of rows of one model and metric the last; None for what is no such file."""
    results: dict[tuple[str, str], float] = {}
    filled = empty = 0
    try:
        for cells in records(raw, {"model", "performance", "metric"}):
            name = as_label(cells.get("model", "")), as_label(cells.get("metric", ""))
            value = as_number(cells.get("performance", ""))
            if value is None:
                empty += 1
                continue
            filled += 1
            if name in results or len(results) < MAX_TABLE_RESULTS:
                results[name] = value
    except csv.Error:
        return None
    return ResultTable(results, filled, empty)


def node_of(path: str) -> int | None:
    """The number of the node in whose directory (``node_N``) a table lies; None where it lies in none."""
    found = _NODE.search(path)
    return None if found is None else int(found[1])


def of_nodes(tables: Iterable[PlacedTable]) -> list[PlacedTable]:
    """Of each node of a job the table with the most results, the first where several have as many; by job and node."""
    found: dict[tuple[str, int], PlacedTable] = {}
    for each in tables:
        best = found.get((each.job_id, each.node_rank))
        if best is None or each.table.filled > best.table.filled:
            found[each.job_id, each.node_rank] = each
    return [each for _, each in sorted(found.items())]


def most_complete(tables: Iterable[PlacedTable]) -> list[PlacedTable]:
    """Of each job the table with the most results, that of the first node where several have as many."""
    found: dict[str, PlacedTable] = {}
    for each in of_nodes(tables):
        best = found.get(each.job_id)
        if best is None or each.table.filled > best.table.filled:
            found[each.job_id] = each
    return list(found.values())
