"""The exporter in the agent, with a fake /proc and a scripted server."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from client_metrics import samples
from lent import Admission, until
from rank_table import environment, facts
from ras_node import Node, report

from agent.app.lease import end_writers
from agent.sdk.exporter import NoData, StateSection
from agent.sdk.ranks import ProcessKey, RankLabel
from exporters.ras import RasConfig, RasExporter
from exporters.ras.config import MAX_ADDRESSES
from exporters.ras.exporter import SEARCH_SECONDS, STALE_INTERVALS, TOLERATED_FAILURES
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query import runner
from exporters.ras.query.policy import LABELS_WAIT_SECONDS, MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS
from exporters.ras.show import RasSnapshot

LONGEST_INTERVAL_SECONDS = 1.1 * MIN_INTERVAL_SECONDS


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Provide a node, by default with the address in the reports."""
    node = Node(tmp_path, address=getattr(request, "param", "10.0.0.1"))
    with node.listener:
        yield node


def shown(snapshot: RasSnapshot) -> dict[str, list[tuple[str, int, int]]]:
    """Return hash, number of replies and of missing ranks for each job's communicators."""
    communicators = {job_id: job.report.communicators for job_id, job in snapshot.reports.items()}
    return {
        job_id: [(entry.hash, entry.responding, entry.missing) for entry in known]
        for job_id, known in communicators.items()
    }


async def test_an_unexpected_error_during_a_query_delays_the_next_query(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error fails the update; the job gets the next query only after an interval."""
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(runner, "read", lambda _request, _body: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await node.look(exporter, MIN_INTERVAL_SECONDS)
        await node.look(exporter, 0.8 * MIN_INTERVAL_SECONDS)
        assert node.queries == 1
        assert shown(await node.look(exporter, 2 * LONGEST_INTERVAL_SECONDS)) == {"4711": [("0xab", 4, 0)]}


async def test_listeners_are_searched_when_ranks_change_or_the_interval_ends(node: Node) -> None:
    """While the ranks stay the same, a new listener is found after SEARCH_SECONDS; with a new rank, at once."""

    async def unowned(after: float) -> int:
        [(_, count)] = (await node.look(exporter, after)).listeners.values()
        return count

    config = {"addresses": [f"127.0.0.1:{node.port}"], "oldest_version": "99.0.0"}  # no library is new enough to query
    exporter = await node.start(msgspec.convert(config, RasConfig))
    assert await unowned(1.0) == 0
    await asyncio.to_thread(node.listen, 99)
    assert await unowned(SEARCH_SECONDS - 0.1) == 0
    assert await unowned(0.1) == 1
    await asyncio.to_thread(node.listen, 98)
    assert await unowned(0.1) == 1
    settings = {"NCCL_RAS_ADDR": f"127.0.0.1:{node.port}", "NCCL_RAS_TIMEOUT_FACTOR": "1"}  # no file sets more
    await asyncio.to_thread(node.tree.add, 77, environment=settings)
    assert node.table.ranks.observe_process(facts(77, environment(7)))
    assert await unowned(0.1) == 2
    await exporter.drain()
    end_writers(node.context)


def series_of(exporter: RasExporter, snapshot: RasSnapshot) -> dict[tuple[str, ...], float]:
    """Return the series of a snapshot, keyed by family (without its prefix) and labels."""
    shown = samples(exporter.families(snapshot))
    return {(sample.name.removeprefix("rankwatch_"), *sample.labels.values()): sample.value for sample in shown}


@pytest.fixture
def nameless(tmp_path: Path) -> Iterator[Node]:
    """Provide a node with processes of unknown ranks."""
    node = Node(tmp_path, ranks={})
    for pid in (11, 12):
        node.add(pid, {"SLURM_JOB_ID": "4711"}, evidence="library")
    with node.listener:
        yield node


async def test_who_nothing_has_named_is_learnt_from_one_report(nameless: Node) -> None:
    """Processes without environment or records get their ranks from the largest communicator of a report."""
    node = nameless
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        assert ((await node.look(exporter, LABELS_WAIT_SECONDS - 2.0)).queries, node.table.labels()) == (0, {})
        published = await node.look(exporter, 6.0 * LABELS_WAIT_SECONDS)
        assert published.queries == 1
        node.table.tick()
        assert node.table.labels() == {RankLabel("4711", rank): 11 + int(rank) % 2 for rank in "0123"}
        for _ in range(2):
            published = await node.look(exporter, MIN_INTERVAL_SECONDS)
        assert [(job.job.job_id, job.role, job.refusal) for job in published.jobs] == [("4711", "reporter", None)]
        assert published.queries == 2


async def test_a_role_of_off_looks_at_nothing(node: Node) -> None:
    """With role off there is no source and no query."""
    async with node.exporter("off") as exporter:
        for _ in range(2):
            with pytest.raises(NoData):
                await node.look(exporter, MAX_INTERVAL_SECONDS)
    assert node.queries == 0


@pytest.mark.parametrize(("last", "queries"), [(report(3), 3), (report(size=0), 2)], ids=["alike", "no communicator"])
async def test_a_job_that_is_truly_missing_is_asked_again_and_shown(node: Node, last: bytes, queries: int) -> None:
    """A report in which most ranks are missing is shown if three queries agree, or a reply has no communicator."""
    node.replies = [report(3), last]
    async with node.exporter() as exporter:
        published = await node.first_query(exporter)
    assert (node.queries, shown(published)) == (queries, {"4711": [("0xab", 1, 3)]})


async def test_failures_are_counted_and_old_reports_go(node: Node) -> None:
    """Each failed query doubles the next interval; the last report is shown during TOLERATED_FAILURES failures."""
    node.replies = [report(), None]
    async with node.exporter() as exporter:
        assert list((await node.first_query(exporter)).up.values()) == [True]
        for failures in range(1, TOLERATED_FAILURES + 2):
            failed = await node.look(exporter, 2 ** (failures - 1) * LONGEST_INTERVAL_SECONDS)
            assert (list(failed.up.values()), failed.errors) == ([False], {"cut": failures})
            assert shown(failed) == {"4711": [("0xab", 4, 0)]}
        await node.look(exporter, STALE_INTERVALS * 2**TOLERATED_FAILURES * LONGEST_INTERVAL_SECONDS)
        assert shown(await node.look(exporter, 0.0)) == {}


async def test_the_second_of_one_hash_keeps_its_name(node: Node) -> None:
    """If two communicators have the same hash and the first ends, the second keeps its name."""
    whole = json.loads(report(launched=5))
    whole["communicators"] = [whole["communicators"][0] | {"secondary_hash": f"{number}:0"} for number in (5, 6)]
    node.replies = [
        json.dumps(whole).encode(),
        json.dumps(whole | {"communicators": whole["communicators"][1:]}).encode(),
    ]
    async with node.exporter() as exporter:
        assert shown(await node.first_query(exporter)) == {"4711": [("0xab", 4, 0), ("0xab-dcd7aee5", 4, 0)]}
        assert shown(await node.look(exporter, LONGEST_INTERVAL_SECONDS)) == {"4711": [("0xab-dcd7aee5", 4, 0)]}


async def test_a_report_is_shown_while_the_next_is_waited_for(node: Node) -> None:
    """If a query outlasts the validity of the last report, that report stays; an event is handled afterwards."""
    node.replies = [report(size=1000), report(missing=1, size=1000)]  # 30 s between queries
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        gate = held_up(node)
        node.table.tick(33.0)
        await exporter.update()
        node.table.tick(70.0)
        await node.listened_to(exporter)
        await node.tell(exporter, "PEER_DEAD")
        await exporter.update()
        assert shown(exporter.snapshot()) == {"4711": [("0xab", 1000, 0)]}
        gate.set()
        await exporter.settle()
        assert shown(exporter.snapshot()) == {"4711": [("0xab", 999, 1)]}
        await node.look(exporter, 0.0)
        assert (await node.look(exporter, LONGEST_INTERVAL_SECONDS)).queries == 3


def still_since(snapshot: RasSnapshot) -> float:
    """Return the time of the last launch in the job's communicator."""
    return snapshot.reports["4711"].watches["0xab"].since_seconds


async def test_a_hang_has_one_clock_through_failures_and_an_agents_restart(node: Node) -> None:
    """Failed reports and a restart of the agent do not change the time of the last launch."""
    node.replies = [report(launched=5), *[None] * 6, report(launched=5)]
    async with node.exporter() as exporter:
        began = still_since(await node.first_query(exporter))
        while node.queries < 8:
            published = await node.look(exporter, MAX_INTERVAL_SECONDS)
        assert still_since(published) == began
        await exporter.drain()
        node.state = StateSection("ras", node.state.published)
        after = await node.start(msgspec.convert({"addresses": [f"127.0.0.1:{node.port}"]}, RasConfig))
        assert still_since(await node.first_query(after)) == began
        node.replies = [report(launched=6)]
        assert still_since(await node.look(after, MAX_INTERVAL_SECONDS)) > began
        await after.drain()


async def test_a_report_of_a_process_that_has_ended_is_counted(node: Node) -> None:
    """A report of a process that has ended belongs to no job and is counted."""
    give = node.report

    async def last_words() -> bytes | None:
        for pid in (11, 12):
            node.table.ranks.observe_exit(ProcessKey(pid, 5000), None)
        return await give()

    node.report = last_words  # type: ignore[method-assign]
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        node.table.tick(MIN_INTERVAL_SECONDS)
        await exporter.update()
        await exporter.settle()
        published = exporter.snapshot()
    assert (published.queries, published.reports) == (1, {})


async def test_a_job_that_left_is_not_shown(node: Node) -> None:
    """When a job's last local process ends, its report, budget and time of the last launch are dropped."""
    node.replies = [report(launched=5)]
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        await node.look(exporter, 0.0)
        saved = node.state.published
        for key in list(node.table.ranks.running()):
            node.table.ranks.observe_exit(key, None)
        with pytest.raises(NoData):
            await node.look(exporter, 1.0)
        assert exporter.snapshot().reports == {}
        assert not node.admission.refused
        assert node.admission.admit("all", 50_000, 1_000)
    assert saved != node.state.published == msgspec.msgpack.encode([])


async def test_what_is_true_of_every_report_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """For each job the log says once that its reports arrive, or that the series budget refuses them."""
    caplog.set_level("INFO")
    node.admission = Admission(in_all=19)  # a job can have 10 of 19; a report with launches needs 11
    node.replies = [report(), report(), report(launched=5)]
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        for _ in range(4):
            await node.look(exporter, LONGEST_INTERVAL_SECONDS)
    assert node.queries == 5
    words = [record.message for record in caplog.records if "report" in record.message]
    assert words == [
        "RAS reports on job {job_id}: {ranks} ranks",
        "no series are left for RAS's reports on job {job_id}",
    ]
    assert exporter.snapshot().reports == {}


async def test_what_a_report_holds_becomes_series(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Counts by state and each missing rank are series; the log names skipped parts."""
    caplog.set_level("INFO")
    whole = json.loads(report(1))
    whole["communicators"].append({"hash": "0x0", "size": 0, "ranks": [], "missing_ranks": []})
    node.replies = [json.dumps(whole).encode()]
    async with node.exporter() as exporter:
        series = series_of(exporter, await node.first_query(exporter))
    states = {key[3]: value for key, value in series.items() if key[0] == "communicator_ranks"}
    assert states == {"expected": 4, "responding": 3, "missing": 1, "unresponsive": 1, "dead": 0}
    assert series["communicator_rank_missing", "4711", "ab", "3", "3", "10.0.0.1", "3", "unresponsive"] == 1
    assert [record.fields["left_out"] for record in caplog.records if "RAS reports" in record.message] == ["1 phantom"]
    assert (series["ras_queries_total",], series["ras_reporter", "4711", "reporter"]) == (1, 1)
    endpoint = f"127.0.0.1:{node.port}"
    assert (series["library_info", "4711", "nccl", "2.30.7"], series["ras_up", endpoint]) == (1, 1)
    assert series["ras_listeners", endpoint, "rank"] == 2


async def test_a_role_of_monitor_listens_and_never_asks(node: Node) -> None:
    """With role monitor the node of rank 0 reads events and never queries."""
    async with node.exporter("monitor") as exporter:
        await node.look(exporter, 1.0)
        await node.listened_to(exporter)
        await node.tell(exporter, "PEER_DEAD")
        published = await node.first_query(exporter)
    assert (node.queries, published.monitored.events) == (0, {"PEER_DEAD": 1})
    assert [(job.role, job.refusal) for job in published.jobs] == [("none", "not_elected")]


async def test_a_single_pass_monitors_no_process(node: Node) -> None:
    """A single pass opens no stream."""
    async with node.exporter(once=True) as exporter:
        published = await node.first_query(exporter)
    assert (published.monitored.up, node.queries) == ({}, 0)


def held_up(node: Node) -> asyncio.Event:
    """Hold all reports back until the test sets the returned event."""
    gate, answer = asyncio.Event(), node.report

    async def slow() -> bytes | None:
        await gate.wait()
        return await answer()

    node.report = slow  # type: ignore[method-assign]
    return gate


async def test_a_slow_query_holds_nothing_else_up(node: Node) -> None:
    """During a slow query updates go on, and no second query starts."""
    gate = held_up(node)
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        for _ in range(10):
            node.table.tick(MIN_INTERVAL_SECONDS)
            await exporter.update()
        await until(lambda: exporter.snapshot().queries == 1)
        assert shown(exporter.snapshot()) == {}
        drain = asyncio.ensure_future(exporter.drain())
        await until(lambda: node.streams == [])
        assert not drain.done()
        gate.set()
        await drain
        assert (node.queries, exporter.snapshot().queries, exporter.snapshot().errors) == (1, 1, {})


async def test_an_exporter_waits_for_the_query_of_the_one_before(node: Node) -> None:
    """After a reload the new exporter waits for the old exporter's query."""
    gate = held_up(node)
    async with node.exporter() as before:
        await node.look(before, 1.0)
        node.table.tick(MIN_INTERVAL_SECONDS)
        await before.update()
        await until(lambda: before.snapshot().queries == 1)
        after = await node.start(RasConfig(addresses=[f"127.0.0.1:{node.port}"]))
        for _ in range(3):
            node.table.tick(MIN_INTERVAL_SECONDS)
            await after.update()
        assert after.snapshot().queries == 0
        gate.set()
        await before.settle()
        await node.look(after, MIN_INTERVAL_SECONDS)
        assert after.snapshot().queries == 1
        await after.drain()


async def test_what_is_known_of_each_jobs_queries(node: Node) -> None:
    """Time and number of reports, consecutive failures and the interval are series by job."""
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        queried_seconds = node.table.clock.time()
        await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        node.replies = [b"garbage"]
        await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        series = series_of(exporter, exporter.snapshot())
    assert series["ras_report_timestamp_seconds", "4711"] == queried_seconds + LONGEST_INTERVAL_SECONDS
    assert series["ras_failures", "4711"] == 1
    doubled = 2 * MIN_INTERVAL_SECONDS
    assert 0.9 * doubled <= series["ras_interval_seconds", "4711"] <= 1.1 * doubled


async def test_no_stream_begins_once_the_exporter_is_drained(node: Node) -> None:
    """An update that ends after the drain starts no stream."""
    async with node.exporter() as exporter:
        update = asyncio.ensure_future(exporter.update())
        await asyncio.sleep(0)  # the update runs
        await exporter.drain()
        await update
        assert (exporter.snapshot().monitored.up, node.streams) == ({}, [])


async def test_events_become_series(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Events by name, open streams and unread parts are series with a closed set of labels."""
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        (await node.listened_to(exporter)).write(b"garbage\n")
        await node.tell(exporter, "PEER_NEW", times=3)
        series = series_of(exporter, exporter.snapshot())
    events = {key[1]: value for key, value in series.items() if key[0] == "ras_events_total"}
    assert (len(events), {event: value for event, value in events.items() if value}) == (13, {"PEER_NEW": 3})
    assert series["ras_monitor_up", f"127.0.0.1:{node.port}"] == 1
    assert [record.message for record in caplog.records if "not events" in record.message]
    assert sum(value for key, value in series.items() if key[0] == "ras_monitor_errors_total") == 0


@pytest.mark.parametrize("section", [
    {"addresses": []},
    {"addresses": ["gpu-node:28028"]},
    {"addresses": ["127.0.0.1"]},
    {"addresses": ["127.0.0.1:0"]},
    {"addresses": ["127.0.0.1:65536"]},
    {"addresses": ["::1:28028"]},
    {"addresses": ["1.2.3.4.5:28028"]},
    {"addresses": [f"127.0.0.1:{port}" for port in range(1, MAX_ADDRESSES + 2)]},
    {"role": "none"},
    {"oldest_version": "2.29"},
])  # fmt: skip
def test_a_configuration_that_cannot_be_used_is_refused(section: dict[str, object]) -> None:
    """Addresses are localhost or IP addresses with a port; roles and versions are as documented."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, RasConfig)


def test_localhost_is_both_loopbacks() -> None:
    """localhost means both loopback addresses, because RAS binds only the first, which differs by cluster."""
    assert RasConfig().endpoints() == (Endpoint("127.0.0.1", 28028), Endpoint("::1", 28028))
    assert RasConfig(addresses=["[::1]:28028", "localhost:28028"]).endpoints()[0] == Endpoint("::1", 28028)


@pytest.mark.parametrize(("node", "room", "state"), [
    ("10.0.0.1", 100, "unresponsive"), ("10.0.0.1", 1, "unresponsive"), ("10.0.0.2", 100, "alive"),
], indirect=["node"])  # fmt: skip
async def test_a_process_that_the_others_do_not_hear_is_unresponsive(node: Node, room: int, state: str) -> None:
    """A rank that is missing in two reports over 15 s is unresponsive until queries stop, even if the reports have no
    series."""
    node.admission = Admission(in_all=room)
    node.replies = [report(1, size=2)]
    node.pids = [11]  # a stopped process accepts nothing
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        assert node.table.states() == {"0": "alive", "1": "alive"}
        for _ in range(2):
            await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        node.table.tick()
        assert node.table.states() == {"0": "alive", "1": state}
    node.table.tick()
    assert node.table.states() == {"0": "alive", "1": "alive"}
