"""Asks one address for reports, and counts what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

from agent.api import Helper, HelperError, HelperSpec, Logger, OwnThread
from exporters.ras.client import Endpoint, Limits, QueryError, Reply, Stage, ask
from exporters.ras.policy import looks_isolated
from exporters.ras.reading import Reading, Request, read
from exporters.ras.report import Report

MAX_REPEATS = 2
"""Further queries when most of a job looks missing: each reaches another process of the node, as like as not."""
READER = HelperSpec("ras", "exporters.ras.reading:read", Reading, memory_bytes=64 * 1024 * 1024)
"""Reads large reports: a hostile one costs this much there, and none of it in the agent."""
READER_SECONDS = 10.0
"""For each step of the helper; a report of 40 MiB takes it half a second."""


class Answer(NamedTuple):
    """A report, and the seconds it took."""

    report: Report
    seconds: float


class Inquiry:
    """Counters of all queries. ``thread`` reads the reports, ``helper`` the large ones."""

    def __init__(self, thread: OwnThread, helper: Helper[Reading], log: Logger) -> None:
        self._thread = thread
        self._helper = helper
        self._log = log
        self.queries = 0
        self.timeouts = 0
        self.duration_seconds: float | None = None
        self.errors: Counter[Stage] = Counter()
        self.skipped: Counter[str] = Counter()

    async def reports(self, endpoint: Endpoint, limits: Limits, pids: frozenset[int]) -> list[Answer]:
        """Ask once, and again while the process that answered may itself be cut off; empty when the first fails.

        Of a report's processes those with ``pids`` are kept.
        """
        found: list[Answer] = []
        for _ in range(1 + MAX_REPEATS):
            answer = await self._report(endpoint, limits, pids)
            if answer is not None:
                found.append(answer)
            if answer is None or not looks_isolated(answer.report):
                break
        return found

    async def _report(self, endpoint: Endpoint, limits: Limits, pids: frozenset[int]) -> Answer | None:
        async def take_large(is_json: bool, pieces: AsyncIterator[bytes]) -> Reading:
            try:
                return await self._helper.call_with_body(Request(is_json, pids), pieces, READER_SECONDS)
            except HelperError as error:
                return Reading(None, f"{type(error).__name__}: {error}")

        self.queries += 1
        try:
            reply = await ask(endpoint, limits, take_large)
        except QueryError as error:
            self._failed(endpoint, error.stage, str(error))
            return None
        reading = await self._read(reply, pids)
        report = reading.report
        if report is None:
            self._failed(endpoint, "cut" if reading.cut else "parse", reading.error)
            return None
        self.duration_seconds = reply.seconds
        self.timeouts += report.timeouts
        self.skipped.update(report.skipped)
        return Answer(report, reply.seconds)

    async def _read(self, reply: Reply[Reading], pids: frozenset[int]) -> Reading:
        if reply.large is not None:
            return reply.large
        return await self._thread.call(lambda: read(Request(reply.is_json, pids), reply.body))

    def _failed(self, endpoint: Endpoint, stage: Stage, error: str) -> None:
        self.errors[stage] += 1
        self._log.warning("RAS gave no report", endpoint=endpoint.label, stage=stage, error=error)
