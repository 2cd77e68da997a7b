"""Runs the queries of one address and counts their outcomes."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.helper import Helper, HelperError, HelperSpec
from agent.sdk.ranks import ProcessKey
from exporters.ras.local.job_files import FileFacts
from exporters.ras.local.listeners import ListenerSearch, Site
from exporters.ras.protocol.client import Endpoint, QueryError, QueryLimits, Stage, greet, query
from exporters.ras.query.policy import looks_isolated
from exporters.ras.report.json_report import ReadRequest, ReportReading, read
from exporters.ras.report.model import ANY_ADDRESS, Addresses, Report

FIRST_PAUSE_SECONDS = 0.002
ACCEPT_SECONDS = 1.0  # A RAS thread accepts a connection at once, a stopped process never does
MAX_REPEATS = 2  # Further queries when most of a job looks missing: each probably reaches another process of the node
READER = HelperSpec("ras", "exporters.ras.report.json_report:read", ReportReading, memory_bytes=64 * 1024 * 1024)
"""The helper process that parses large reports. Its memory is bounded: a hostile report takes no agent memory."""
MAX_SMALL_BYTES = 256 * 1024  # The thread parses a report up to this size; the helper gets a longer report in pieces
READER_SECONDS = 10.0  # Limit of each step of the helper, which reads a report of 40 MiB in half a second


MAX_ATTEMPTS = 32
ATTEMPTS_PER_CHANCE = 4
"""Limit of connections of a query: this number times the connections needed on average to reach a process of the job,
at most MAX_ATTEMPTS."""


class QueryAnswer(NamedTuple):
    """A report, the seconds it took, and the process that gave it."""

    report: Report
    seconds: float
    server: ProcessKey


class QueryTarget(NamedTuple):
    """The address of a query, and the parts of the report to read.

    ``servers``: the processes of ``site`` that may answer. ``pids`` and ``addresses``: of the job owner's processes;
    statements about other processes are not used. ``names``: see read_json.
    """

    endpoint: Endpoint
    site: Site
    servers: frozenset[ProcessKey]
    pids: frozenset[int]
    job_id: str = ""
    names: Mapping[str, str] = {}
    addresses: Addresses = ANY_ADDRESS

    def attempts(self) -> int:
        """Return the limit of connections: each connection reaches any of the site's processes."""
        chances = math.ceil(len(self.site.servers) / max(len(self.servers), 1))
        return min(ATTEMPTS_PER_CHANCE * chances, MAX_ATTEMPTS)


ListenerCheck = Callable[[Endpoint, Site], Awaitable[bool]]
"""Scans /proc again: True when the same processes listen at the address and it may still be queried."""


class QueryRunner:
    """Runs queries and counts them. ``thread`` parses small reports, ``helper`` large reports.

    ``search`` finds the process that answers. ``is_unchanged``: if False, an address is not queried a second time.
    """

    def __init__(
        self,
        thread: OwnThread,
        helper: Helper[ReportReading],
        search: ListenerSearch,
        is_unchanged: ListenerCheck,
        log: Logger,
    ) -> None:
        self._thread = thread
        self._search = search
        self._helper = helper
        self._is_unchanged = is_unchanged
        self._log = log
        self.queries = 0
        self.errors: Counter[Stage] = Counter()

    async def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        """Return the process of ``site`` that accepted the connection from ``client``; None after ACCEPT_SECONDS."""
        now = asyncio.get_running_loop().time
        until, pause = now() + ACCEPT_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            server_key = await self._thread.call(lambda: self._search.server_of(site, server, client))
            if server_key is not None or now() >= until:
                return server_key
            await asyncio.sleep(pause)
            pause *= 2

    async def reports(self, target: QueryTarget, limits: QueryLimits) -> list[QueryAnswer]:
        """Return the answers to a query, the most complete first.

        The query is repeated up to MAX_REPEATS times if the replying process may be isolated.
        """
        received: list[QueryAnswer] = []
        for _ in range(1 + MAX_REPEATS):
            answered = {answer.server for answer in received}
            subject = target._replace(servers=target.servers - answered or target.servers)
            answer = await self._report(subject, msgspec.structs.replace(limits, attempts=subject.attempts()))
            if answer is not None:
                received.append(answer)
            if (
                answer is None
                or not looks_isolated(answer.report)
                or not await self._is_unchanged(target.endpoint, target.site)
            ):
                break
        return sorted(received, key=lambda answer: (-answer.report.ranks(), answer.report.missing()))

    async def present(self, target: QueryTarget, limits: QueryLimits) -> frozenset[ProcessKey]:
        """Return the processes of ``target.servers`` that answer a greeting, which starts no collective.

        Stop at the first process that does not answer: it may be stopped, and the next query greets the others.
        """
        present: set[ProcessKey] = set()
        candidate: set[ProcessKey] = set()

        async def note(client: Endpoint) -> bool:
            reached = await self.server_of(target.site, target.endpoint, client)
            candidate.update(target.servers & {reached})
            return reached is not None

        once = msgspec.structs.replace(limits, attempts=1)
        for _ in range(MAX_ATTEMPTS):
            if present == target.servers:
                break
            candidate.clear()
            try:
                _, writer = await greet(target.endpoint, once, note)
            except QueryError:
                break
            writer.close()
            present |= candidate
        return frozenset(present)

    async def _report(self, target: QueryTarget, limits: QueryLimits) -> QueryAnswer | None:
        accepted: list[ProcessKey] = []

        async def accept(client: Endpoint) -> bool:
            server = await self.server_of(target.site, target.endpoint, client)
            accepted.extend(target.servers & {server})
            return server in target.servers

        async def read_report(is_json: bool, pieces: AsyncIterator[bytes]) -> ReportReading:
            request = ReadRequest(is_json, target.pids, target.names, target.addresses)
            head = bytearray()
            try:
                async for piece in pieces:
                    head += piece
                    if len(head) > MAX_SMALL_BYTES:
                        return await self._helper.call_with_body(request, _joined(bytes(head), pieces), READER_SECONDS)
            except HelperError as error:
                return ReportReading(None, f"{type(error).__name__}: {error}")
            return await self._thread.call(lambda: read(request, bytes(head)))

        self.queries += 1
        try:
            reading, seconds = await query(target.endpoint, limits, read_report, accept)
        except QueryError as error:
            self._failed(target, error.stage, str(error))
            return None
        report = reading.report
        if report is None:
            self._failed(target, "cut" if reading.cut else "parse", reading.error)
            return None
        return QueryAnswer(report, seconds, accepted[-1])

    def _failed(self, target: QueryTarget, stage: Stage, error: str) -> None:
        self.errors[stage] += 1
        self._log.warning(
            "RAS at {endpoint} gave no report on job {job_id}",
            endpoint=target.endpoint.label,
            job_id=target.job_id or "unknown",
            stage=stage,
            error=error,
        )


async def _joined(head: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in pieces:
        yield piece


MAX_REQUESTS = 256  # Requests of one call; the rest waits for the next scan. Unanswered requests are repeated last
CALL_SECONDS = 3.0  # The helper answers within 1 s, whichever file system hangs
FILE_READER = HelperSpec(
    "ras_files", "exporters.ras.local.job_files:read_files", list[FileFacts | None], memory_bytes=192 * 1024 * 1024
)


class JobFiles:
    """Lets a helper read the files that jobs name. ``thread`` is the thread of the listener search."""

    def __init__(self, helper: Helper[list[FileFacts | None]], thread: OwnThread, log: Logger) -> None:
        self._helper = helper
        self._thread = thread
        self._log = log
        self._unanswered: frozenset[ProcessKey] = frozenset()

    async def read_for(self, search: ListenerSearch) -> bool:
        """Read the files that the last search needs; return True when a file was read."""
        unread = await self._thread.call(search.requests)
        if not unread:
            self._helper.rest()  # the next process may start much later
            return False
        last = self._unanswered
        requests = {key: unread[key] for key in sorted(unread, key=lambda key: (key in last, key))[:MAX_REQUESTS]}
        try:
            answers = await self._helper.call(list(requests.values()), CALL_SECONDS)
        except HelperError as error:
            self._log.warning("files of jobs cannot be read", error=error)
            return False
        read_facts = {key: facts for key, facts in zip(requests, answers, strict=False) if facts is not None}
        self._unanswered = last.intersection(unread).union(requests) - read_facts.keys()
        await self._thread.call(lambda: search.note(requests, read_facts))
        return bool(read_facts)
