"""Large reports are parsed in a helper process (a real one in these tests), never in the agent."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from fake_clock import FakeClock
from ras_node import report as node_report
from ras_reports import report as large_report
from ras_server import JSON_ANSWERS, answering, conversing, served

from agent.helper.client import Helpers
from agent.sdk.exporter import Logger, OwnThread
from agent.sdk.helper import Helper
from agent.sdk.ranks import ProcessKey
from exporters.ras.local.listeners import ListenerSearch, Server, Site
from exporters.ras.protocol.client import Endpoint, QueryLimits
from exporters.ras.query import runner as reached_module
from exporters.ras.query.runner import MAX_ATTEMPTS, MAX_SMALL_BYTES, READER, QueryAnswer, QueryRunner, QueryTarget
from exporters.ras.report.json_report import ReportReading

PIDS = frozenset({1_000_000, 1_000_001, 7})
HELD = ProcessKey(7, 1)
SITE = Site({HELD: Server((2, 32, 3), 1.0)}, 0)
RANKS, COMMUNICATORS = 400, 3
FIRST, SECOND, THIRD = ProcessKey(11, 1), ProcessKey(12, 1), ProcessKey(13, 1)


async def unchanged(_endpoint: Endpoint, _site: Site) -> bool:
    """Confirm the listener."""
    return True


class Reached(ListenerSearch):
    """Lets these processes accept the connections in turn, and unknown processes after them."""

    def __init__(self, servers: Iterable[ProcessKey]) -> None:
        self.servers = iter(servers)

    def server_of(self, site: Site, server: Endpoint, client: Endpoint) -> ProcessKey | None:
        return next(self.servers, None)


class Bench:
    """A query runner with a real helper process; ``reached`` accepts all connections."""

    def __init__(self, reached: ProcessKey | None) -> None:
        self.helper: Helper[ReportReading] = Helpers(FakeClock()).lend(READER)
        self.thread = OwnThread("ras")
        search = Reached(itertools.repeat(reached) if reached else ())
        self.runner = QueryRunner(self.thread, self.helper, search, unchanged, Logger("ras"))
        self.sent_all = False

    async def ask(self, report: Iterable[bytes], limits: QueryLimits | None = None) -> list[QueryAnswer]:
        """Query a server that sends ``report``; ``sent_all``: the server could send the whole report."""
        self.sent_all = False

        def pieces() -> Iterable[bytes]:
            yield from report
            self.sent_all = True

        async with served(answering(JSON_ANSWERS, pieces())) as endpoint:
            target = QueryTarget(endpoint, SITE, frozenset(SITE.servers), PIDS)
            return await self.runner.reports(target, limits or QueryLimits())


@asynccontextmanager
async def bench_of(reached: ProcessKey | None = HELD) -> AsyncIterator[Bench]:
    """Provide a query runner; stop its helper at the end."""
    bench = Bench(reached)
    yield bench
    await bench.helper.stop()
    bench.thread.stop()


def padded(length: int) -> bytes:
    """Return an empty report of this length."""
    whole = {"nccl_version": "2.32.3", "communicators": [], "ras": {"timeouts_count": 0}}
    return json.dumps(whole).encode().ljust(length)


@pytest.mark.parametrize("reached", [None, ProcessKey(8, 1)], ids=["nobody known", "another"])
async def test_who_is_not_to_be_asked_hears_nothing(
    reached: ProcessKey | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent before the right process has accepted the connection."""
    monkeypatch.setattr(reached_module, "ACCEPT_SECONDS", 0.01)
    lines: list[bytes] = []
    async with bench_of(reached=reached) as bench:
        async with served(answering(JSON_ANSWERS, [padded(100)], lines)) as endpoint:
            target = QueryTarget(endpoint, SITE, frozenset(SITE.servers), PIDS)
            assert await bench.runner.reports(target, QueryLimits()) == []
        assert bench.runner.errors == {"handshake": 1}
    assert set(lines) == {b""}


@pytest.mark.parametrize(("report", "stage"), [
    ([b"[" * 100_000] * 10, "parse"), ([*large_report(RANKS, COMMUNICATORS)][:-1], "cut"),
], ids=["deep nesting", "cut"])  # fmt: skip
async def test_a_large_reply_that_is_no_report(report: list[bytes], stage: str) -> None:
    """Garbage and a cut report have different errors, and the helper goes on."""
    async with bench_of() as bench:
        assert await bench.ask(report) == []
        assert (bench.runner.errors, bench.helper.calls, bench.sent_all) == ({stage: 1}, {"ok": 1}, True)


async def test_a_report_beyond_the_cap_is_no_fault_of_the_helper() -> None:
    """A report above the limit fails at the stage `size`, an endless one is not read to its end; the next is read."""
    body = padded(2 * MAX_SMALL_BYTES)
    limits = QueryLimits(report_bytes=len(body))
    async with bench_of() as bench:
        for report, answers in (([body], 1), ([body, b" "], 0), ([body] * 1000, 0), ([body], 1)):
            assert len(await bench.ask(report, limits)) == answers
            assert bench.sent_all == (len(report) < 1000)
        assert (bench.runner.errors, bench.helper.calls) == ({"size": 2}, {"ok": 2})


async def test_the_helpers_time_is_not_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the helper accepts no data, the report's deadline does not run: the query fails at the stage `parse`."""
    limits = QueryLimits(collective_seconds=0, timeout_factor=0.0, slack_seconds=0.8)
    async with bench_of() as bench:
        assert await bench.ask(large_report(RANKS, COMMUNICATORS))
        process = bench.helper._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr("exporters.ras.query.runner.READER_SECONDS", 1.0)  # the helper reads nothing after this
        assert await bench.ask([padded(65536)] * 160, limits) == []
        assert (bench.runner.errors, bench.helper.calls, bench.sent_all) == ({"parse": 1}, {"ok": 1, "hung": 1}, True)


def test_connections_are_made_until_one_should_reach_the_job() -> None:
    """The limit of connections is four times the number expected to reach the job once, at most MAX_ATTEMPTS."""
    servers = dict.fromkeys((ProcessKey(pid, 1) for pid in range(100)), Server((2, 32, 3), 1.0))
    site, keys = Site(servers, 0), list(servers)

    def attempts(servers: int) -> int:
        return QueryTarget(Endpoint("127.0.0.1", 1), site, frozenset(keys[:servers]), PIDS).attempts()

    assert [attempts(servers) for servers in (100, 50, 33, 1)] == [4, 8, 16, MAX_ATTEMPTS]


@asynccontextmanager
async def runner_of(accepting: Iterable[ProcessKey]) -> AsyncIterator[tuple[QueryRunner, Reached]]:
    """Provide a query runner whose connections these processes accept."""
    thread, search = OwnThread("ras"), Reached(accepting)
    yield QueryRunner(thread, Helpers(FakeClock()).lend(READER), search, unchanged, Logger("ras")), search
    thread.stop()


@pytest.mark.parametrize(("accepting", "present", "unused"), [
    ([SECOND, FIRST, FIRST, THIRD, FIRST], frozenset({FIRST, THIRD}), 1),
    ([SECOND, FIRST], frozenset({FIRST}), 0),
    ([SECOND] * MAX_ATTEMPTS + [FIRST], frozenset(), 1),
], ids=["all", "some", "beyond the attempts"])  # fmt: skip
async def test_processes_that_answer_a_greeting(
    accepting: list[ProcessKey], present: frozenset[ProcessKey], unused: int
) -> None:
    """Connections are made until all processes that may answer have replied or the limit is reached."""
    lines: list[bytes] = []
    async with runner_of(accepting) as (runner, search), served(answering(JSON_ANSWERS[:1], lines=lines)) as endpoint:
        received = await runner.present(QueryTarget(endpoint, SITE, frozenset({FIRST, THIRD}), PIDS), QueryLimits())
    assert (received, len([*search.servers]), set(lines) - {b""}) == (present, unused, {b"CLIENT PROTOCOL 2\n"})
    assert runner.queries == 0


async def test_a_process_that_does_not_answer_is_waited_for_once() -> None:
    """If a greeting gets no reply in time, the runner greets no other process."""
    accepted: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        accepted.append(await reader.readline())
        await reader.read()

    async with runner_of([FIRST]) as (runner, _), served(silent) as endpoint:
        target = QueryTarget(endpoint, SITE, frozenset({FIRST}), PIDS)
        assert await runner.present(target, QueryLimits(step_seconds=0.05)) == frozenset()
    assert accepted == [b"CLIENT PROTOCOL 2\n"]


async def test_another_view_is_asked_for_by_as_many_connections_as_it_takes() -> None:
    """If one process gave an isolated view, more connections reach another process; its complete view comes first."""
    fourth = ProcessKey(14, 1)
    site = Site(dict.fromkeys((FIRST, SECOND, THIRD, fourth), Server((2, 32, 3), 1.0)), 0)
    replies = [node_report(3), node_report()]

    async def reply() -> bytes:
        return replies.pop(0)

    async def nobody(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nobody monitors")

    async with runner_of([FIRST, *[fourth] * 15, SECOND]) as (runner, _), served(conversing(reply, nobody)) as endpoint:
        received = await runner.reports(QueryTarget(endpoint, site, frozenset({FIRST, SECOND}), PIDS), QueryLimits())
    assert [answer.server for answer in received] == [SECOND, FIRST]
    assert not runner.errors
