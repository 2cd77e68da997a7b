"""Asks one address for reports, and counts what became of it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from agent.api import Logger, OwnThread
from exporters.ras.client import Endpoint, Limits, QueryError, Reply, Stage, ask
from exporters.ras.json_report import read_json
from exporters.ras.policy import looks_isolated
from exporters.ras.report import Report, ReportError
from exporters.ras.text_report import read_text

MAX_REPEATS = 2
"""Further queries when most of a job looks missing: each reaches another process of the node, as like as not."""


class Answer(NamedTuple):
    """A report, and the seconds it took."""

    report: Report
    seconds: float


class Inquiry:
    """Counters of all queries. ``thread`` reads the reports: a large one takes a while."""

    def __init__(self, thread: OwnThread, log: Logger) -> None:
        self._thread = thread
        self._log = log
        self.queries = 0
        self.timeouts = 0
        self.duration_seconds: float | None = None
        self.errors: Counter[Stage] = Counter()
        self.skipped: Counter[str] = Counter()

    async def reports(self, endpoint: Endpoint, limits: Limits) -> list[Answer]:
        """Ask once, and again while the process that answered may itself be cut off; empty when the first fails."""
        found: list[Answer] = []
        for _ in range(1 + MAX_REPEATS):
            answer = await self._report(endpoint, limits)
            if answer is not None:
                found.append(answer)
            if answer is None or not looks_isolated(answer.report):
                break
        return found

    async def _report(self, endpoint: Endpoint, limits: Limits) -> Answer | None:
        self.queries += 1
        try:
            reply = await ask(endpoint, limits)
            report = await self._thread.call(lambda: _read(reply))
        except QueryError as error:
            self._failed(endpoint, error.stage, error)
            return None
        except ReportError as error:
            self._failed(endpoint, "cut" if error.cut else "parse", error)
            return None
        self.duration_seconds = reply.seconds
        self.timeouts += report.timeouts
        self.skipped.update(report.skipped)
        return Answer(report, reply.seconds)

    def _failed(self, endpoint: Endpoint, stage: Stage, error: Exception) -> None:
        self.errors[stage] += 1
        self._log.warning("RAS gave no report", endpoint=endpoint.label, stage=stage, error=error)


def _read(reply: Reply) -> Report:
    return read_json(reply.body) if reply.is_json else read_text(reply.body)
