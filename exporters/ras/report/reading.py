"""Reads a reply, in the exporter's thread or, if it is a large one, in a helper process. Pure."""

from __future__ import annotations

import msgspec

from exporters.ras.report.json_report import read_json
from exporters.ras.report.model import Report, ReportError
from exporters.ras.report.text_report import read_text


class ReadRequest(msgspec.Struct, frozen=True):
    """What to read: JSON or text; of the processes in it only those with one of ``pids`` are of interest."""

    is_json: bool
    pids: frozenset[int]


class ReportReading(msgspec.Struct, frozen=True):
    """A report, or why there is none; ``cut``: the reply is the beginning of one."""

    report: Report | None
    error: str = ""
    cut: bool = False


def read(request: ReadRequest, body: bytes) -> ReportReading:
    """Read a reply."""
    try:
        report = read_json(body, request.pids) if request.is_json else read_text(body)
    except ReportError as error:
        return ReportReading(None, str(error), error.cut)
    near = frozenset(process for process in report.processes if process[1] in request.pids)
    return ReportReading(msgspec.structs.replace(report, processes=near))
