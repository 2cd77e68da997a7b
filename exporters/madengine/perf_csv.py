"""perf.csv, to which madengine adds a row for each result: the newest of each model and metric. Pure."""

from __future__ import annotations

import csv
import math

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

    ``launcher``, ``nodes`` and ``gpus`` (how many): what ran, empty where it is not told; ``seconds``: the test took.
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
    if len(raw) > MAX_CSV_BYTES:
        return None
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    lines = raw.decode("utf-8", "replace").splitlines()[: MAX_ROWS + 1]
    found: dict[tuple[str, str], PerfRow] = {}
    try:
        rows = csv.reader(lines)
        header = [cell.strip() for cell in next(rows, [])]
        if not {"model", "performance", "metric", "status"} <= set(header):
            return None
        for cells in rows:
            row = _row(dict(zip(header, (cell.strip() for cell in cells), strict=False)))
            if row is not None:
                found.pop((row.model, row.metric), None)  # the newest last
                found[row.model, row.metric] = row
    except csv.Error:
        return None
    return list(found.values())[-MAX_RESULTS:]


def _row(cells: dict[str, str]) -> PerfRow | None:
    """What a row says; None for one without a model."""
    model, status = as_label(cells.get("model", "")), cells.get("status", "").upper()
    if not model:
        return None
    value = _number(cells.get("performance", ""))
    return PerfRow(
        model,
        as_label(cells.get("metric", "")),
        value,
        status if status in STATUSES else "other",
        as_label(cells.get("launcher", "")),
        _count(cells.get("nnodes", "")),
        _count(cells.get("n_gpus", "")),
        _number(cells.get("test_duration", "").removesuffix("s")),
    )


def _count(text: str) -> str:
    return text if len(text) <= MAX_COUNT_DIGITS and text.isascii() and text.isdecimal() else ""


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= MAX_NUMBER else None
