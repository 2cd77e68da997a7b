"""Queries one address for reports, and counts the outcomes."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.helper import Helper, HelperError, HelperSpec
from agent.sdk.ranks import ProcessKey
from exporters.ras.asking.policy import looks_isolated
from exporters.ras.local.job_files import FileFacts
from exporters.ras.local.listeners import ListenerSearch, Site
from exporters.ras.protocol.client import Endpoint, QueryError, QueryLimits, Stage, ask, greet
from exporters.ras.report.json_report import ReadRequest, ReportReading, read
from exporters.ras.report.model import Report

FIRST_PAUSE_SECONDS = 0.002
ACCEPT_SECONDS = 1.0  # For a process to accept a connection: a RAS thread does so at once, a stopped process never
MAX_REPEATS = 2  # Further queries when most of a job looks missing: each probably reaches another process of the node
READER = HelperSpec("ras", "exporters.ras.report.json_report:read", ReportReading, memory_bytes=64 * 1024 * 1024)
"""The helper that parses large reports, with its bound of memory: a hostile report costs the agent none."""
MAX_HELD_BYTES = 256 * 1024  # of a report that is read in the thread; of a longer one the agent holds a piece at a time
READER_SECONDS = 10.0  # For each step of the helper; a report of 40 MiB takes it half a second


MAX_ATTEMPTS = 32
ATTEMPTS_PER_CHANCE = 4
"""How many connections are made until one reaches a process of the job: at most, and per expected connection."""


class QueryAnswer(NamedTuple):
    """A report, the seconds it took, and the process that gave it."""

    report: Report
    seconds: float
    server: ProcessKey


class Aim(NamedTuple):
    """What to ask: where, the processes of ``site`` that will do, the pids to look for in the report, and the job.

    The pids are those of the job's owner: of others its report says nothing that counts.
    """

    endpoint: Endpoint
    site: Site
    wanted: frozenset[ProcessKey]
    pids: frozenset[int]
    job_id: str = ""

    def attempts(self) -> int:
        """Return how many connections to make: each reaches any of the site's processes."""
        chances = math.ceil(len(self.site.servers) / max(len(self.wanted), 1))
        return min(ATTEMPTS_PER_CHANCE * chances, MAX_ATTEMPTS)


AsSeen = Callable[[Endpoint, Site], Awaitable[bool]]
"""Tells whether, by a new look, the same processes listen at an address, and it may still be queried."""


class Inquiry:
    """Counters of all queries. ``thread`` parses reports, ``helper`` large ones; ``search`` tells who answers.

    ``as_seen`` decides before an address is queried again.
    """

    def __init__(
        self, thread: OwnThread, helper: Helper[ReportReading], search: ListenerSearch, as_seen: AsSeen, log: Logger
    ) -> None:
        self._thread = thread
        self._search = search
        self._helper = helper
        self._as_seen = as_seen
        self._log = log
        self.queries = 0
        self.duration_seconds: float | None = None
        self.errors: Counter[Stage] = Counter()

    async def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        """Return the process of ``site`` that accepted the connection from ``client``; None when none did in time."""
        now = asyncio.get_running_loop().time
        until, pause = now() + ACCEPT_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            server_key = await self._thread.call(lambda: self._search.server_of(site, server, client))
            if server_key is not None or now() >= until:
                return server_key
            await asyncio.sleep(pause)
            pause *= 2

    async def reports(self, aim: Aim, limits: QueryLimits) -> list[QueryAnswer]:
        """Query once, then again while the process that answered may itself be cut off; empty when the first fails."""
        received: list[QueryAnswer] = []
        for _ in range(1 + MAX_REPEATS):
            answered = {answer.server for answer in received}
            others = aim._replace(wanted=aim.wanted - answered or aim.wanted)
            answer = await self._report(others, msgspec.structs.replace(limits, attempts=others.attempts()))
            if answer is not None:
                received.append(answer)
            if answer is None or not looks_isolated(answer.report) or not await self._as_seen(aim.endpoint, aim.site):
                break
        return received

    async def present(self, aim: Aim, limits: QueryLimits) -> frozenset[ProcessKey]:
        """The wanted processes that answer a greeting, for which no collective runs; some, when one does not answer.

        That one may be stopped: it is not waited for again and again, since others can be greeted another time.
        """
        heard: set[ProcessKey] = set()
        candidate: set[ProcessKey] = set()

        async def note(client: Endpoint) -> bool:
            reached = await self.server_of(aim.site, aim.endpoint, client)
            candidate.update(aim.wanted & {reached})
            return reached is not None

        once = msgspec.structs.replace(limits, attempts=1)
        for _ in range(MAX_ATTEMPTS):
            if heard == aim.wanted:
                break
            candidate.clear()
            try:
                _, writer = await greet(aim.endpoint, once, note)
            except QueryError:
                break
            writer.close()
            heard |= candidate
        return frozenset(heard)

    async def _report(self, aim: Aim, limits: QueryLimits) -> QueryAnswer | None:
        accepted: list[ProcessKey] = []

        async def accept(client: Endpoint) -> bool:
            server = await self.server_of(aim.site, aim.endpoint, client)
            accepted.extend(aim.wanted & {server})
            return server in aim.wanted

        async def take(is_json: bool, pieces: AsyncIterator[bytes]) -> ReportReading:
            request, head = ReadRequest(is_json, aim.pids), bytearray()
            try:
                async for piece in pieces:
                    head += piece
                    if len(head) > MAX_HELD_BYTES:
                        return await self._helper.call_with_body(request, _joined(bytes(head), pieces), READER_SECONDS)
            except HelperError as error:
                return ReportReading(None, f"{type(error).__name__}: {error}")
            return await self._thread.call(lambda: read(request, bytes(head)))

        self.queries += 1
        try:
            reading, seconds = await ask(aim.endpoint, limits, take, accept)
        except QueryError as error:
            self._failed(aim, error.stage, str(error))
            return None
        report = reading.report
        if report is None:
            self._failed(aim, "cut" if reading.cut else "parse", reading.error)
            return None
        self.duration_seconds = seconds
        return QueryAnswer(report, seconds, accepted[-1])

    def _failed(self, aim: Aim, stage: Stage, error: str) -> None:
        self.errors[stage] += 1
        self._log.warning(
            "RAS at {endpoint} gave no report on job {job_id}",
            endpoint=aim.endpoint.label,
            job_id=aim.job_id or "unknown",
            stage=stage,
            error=error,
        )


async def _joined(head: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for piece in pieces:
        yield piece


MAX_REQUESTS = 256  # In one call; the others wait for the next look, and those that were not answered for all others
CALL_SECONDS = 3.0  # The helper answers in one, whichever file system hangs
FILE_READER = HelperSpec(
    "ras_files", "exporters.ras.local.job_files:read_files", list[FileFacts | None], memory_bytes=192 * 1024 * 1024
)


class JobFiles:
    """See the module; ``thread`` is the search's own."""

    def __init__(self, helper: Helper[list[FileFacts | None]], thread: OwnThread, log: Logger) -> None:
        self._helper = helper
        self._thread = thread
        self._log = log
        self._unanswered: frozenset[ProcessKey] = frozenset()

    async def read_for(self, search: ListenerSearch) -> bool:
        """Read what the last look needs; True when it learnt something."""
        wanted = await self._thread.call(search.wanted)
        if not wanted:
            self._helper.rest()  # the next process to be looked at is long in coming
            return False
        last = self._unanswered
        asked = {key: wanted[key] for key in sorted(wanted, key=lambda key: (key in last, key))[:MAX_REQUESTS]}
        try:
            answers = await self._helper.call(list(asked.values()), CALL_SECONDS)
        except HelperError as error:
            self._log.warning("files of jobs cannot be read", error=error)
            return False
        read_facts = {key: facts for key, facts in zip(asked, answers, strict=False) if facts is not None}
        self._unanswered = last.intersection(wanted).union(asked) - read_facts.keys()
        await self._thread.call(lambda: search.note(asked, read_facts))
        return bool(read_facts)
