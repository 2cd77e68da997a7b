"""perf.csv, to which madengine adds a row for each result: the newest of each model and metric. Pure."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator

import msgspec

from exporters.madengine.lines import MAX_NUMBER, as_label

MAX_CSV_BYTES = 8 * 1024 * 1024
"""A longer file is not read: it would have more than 10,000 results."""
MAX_ROWS = 65_536
MAX_RESULTS = 256
"""Models and metrics; of more the newest."""
MAX_CELL_CHARACTERS = 65_536
MAX_COUNT_DIGITS = 7
STATUSES = ("SUCCESS", "FAILURE", "SKIPPED", "other")


class PerfRow(msgspec.Struct, frozen=True):
    """A result. ``performance`` None: none was measured. ``status``: one of STATUSES.

    ``launcher``, ``nodes`` and ``gpus`` (how many): what ran, empty where it is not given; ``seconds``: the test took.
    """

    model: str
    metric: str
    performance: float | None
    status: str
    launcher: str = ""
    nodes: str = ""
    gpus: str = ""
    seconds: float | None = None


def read_rows(raw: bytes) -> list[PerfRow] | None:
    """The newest row of each model and metric, MAX_RESULTS at most; None for what is no such file."""
    found: dict[tuple[str, str], PerfRow] = {}
    try:
        for cells in records(raw, {"model", "performance", "metric", "status"}):
            row = _row(cells)
            if row is not None:
                found.pop((row.model, row.metric), None)  # the newest last
                found[row.model, row.metric] = row
    except csv.Error:
        return None
    return list(found.values())[-MAX_RESULTS:]


def records(raw: bytes, columns: set[str]) -> Iterator[dict[str, str]]:
    """Each row by the names of its columns, blanks around both left out, MAX_ROWS at most.

    csv.Error where the file is too long, is no such file, or has not these ``columns``.
    """
    if len(raw) > MAX_CSV_BYTES:
        raise csv.Error("too long")
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    rows = csv.reader(raw.decode("utf-8", "replace").splitlines()[: MAX_ROWS + 1])
    header = [cell.strip() for cell in next(rows, [])]
    if not columns <= set(header):
        raise csv.Error("other columns")
    for cells in rows:
        yield dict(zip(header, (cell.strip() for cell in cells), strict=False))


def _row(cells: dict[str, str]) -> PerfRow | None:
    """What a row says; None for one without a model."""
    model, status = as_label(cells.get("model", "")), cells.get("status", "").upper()
    if not model:
        return None
    value = as_number(cells.get("performance", ""))
    return PerfRow(
        model,
        as_label(cells.get("metric", "")),
        value,
        status if status in STATUSES else "other",
        as_label(cells.get("launcher", "")),
        _count(cells.get("nnodes", "")),
        _count(cells.get("n_gpus", "")),
        as_number(cells.get("test_duration", "").removesuffix("s")),
    )


def _count(text: str) -> str:
    return text if len(text) <= MAX_COUNT_DIGITS and text.isascii() and text.isdecimal() else ""


def as_number(text: str) -> float | None:
    """A cell as a number; None where it is none, or no finite one of at most MAX_NUMBER."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= MAX_NUMBER else None
