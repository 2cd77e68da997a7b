"""The exporter as the agent runs it, over a made-up /proc and a scripted server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from proc_tree import ProcTree
from rank_table import Table, environment, facts, origin
from ras_server import JSON_ANSWERS, answering, served

from agent.api import Admission, Context, Logger, Membership, NoData, OwnThread, ProcessKey, Roots, StateSection
from exporters.ras import RasConfig, RasExporter
from exporters.ras.client import Endpoint
from exporters.ras.config import MAX_ADDRESSES
from exporters.ras.families import SKIPPED_REASONS, Snapshot
from exporters.ras.policy import MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS
from exporters.ras.report import Skipped

LONGEST_INTERVAL_SECONDS = 1.1 * MIN_INTERVAL_SECONDS
MAPS = "7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/libnccl.so.2.30.7\n"


def report(missing: int = 0, size: int = 4, pids: tuple[int, ...] = (11, 12), hash_number: int = 0xAB) -> bytes:
    """A report of one communicator of which the last ranks do not answer."""
    places = [
        {"rank": rank, "host": "10.0.0.1", "pid": pids[rank % len(pids)], "nvml_dev": rank} for rank in range(size)
    ]
    communicator = {
        "hash": f"{hash_number:#x}",
        "size": size,
        "ranks": places[: size - missing],
        "missing_ranks": [
            {**place, "status": {"unresponsive": True, "considered_dead": False}} for place in places[size - missing :]
        ],
    }
    whole = {"nccl_version": "2.30.7", "communicators": [communicator], "ras": {"timeouts_count": 0}}
    return json.dumps(whole).encode()


class Node:
    """A node with ranks 0 and 1 of job 4711 (pids 11 and 12), whose RAS gives ``replies`` one after the other.

    The last of them is given again and again; None is a reply that does not come.
    """

    def __init__(
        self, path: Path, ranks: Mapping[int, int] = MappingProxyType({11: 0, 12: 1}), address: str = "10.0.0.1"
    ) -> None:
        self.address = address
        self.tree = ProcTree(path / "proc")
        (self.tree.root / "net").mkdir()
        self.table = Table()
        self.replies: list[bytes | None] = [report()]
        self.asked = 0
        self.admission = Admission()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        for pid, rank in ranks.items():
            self.add(pid, environment(rank, world=4))

    def add(self, pid: int, env: dict[str, str], place: Membership | None = None) -> None:
        """Add a rank process with a listener, and with records of its place in a communicator."""
        self.tree.add(pid, threads={pid + 1000: "NCCL RAS"}, maps=MAPS, environment=env)
        (self.tree.root / f"{pid}/fd/40").symlink_to(f"socket:[{pid}]")
        (self.tree.root / f"{pid}/net").mkdir()
        (self.tree.root / f"{pid}/net/fib_trie").write_text(f"|-- {self.address}\n   /32 host LOCAL\n")
        self.listen(pid)
        assert self.table.ranks.observe_process(facts(pid, env))
        if place is not None:
            self.table.ranks.observe_records(origin(pid), [place], None)
            self.table.ranks.link(origin(pid), ProcessKey(pid, 5000))
        self.table.tick(20.0)

    def listen(self, inode: int) -> None:
        """Add a listener."""
        address = f"0100007F:{self.port:04X}"
        with (self.tree.root / "net/tcp").open("a") as table:
            table.write(f"0: {address} 00000000:0000 0A 0:0 0:0 0 0 0 {inode} 1\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self.asked += 1
        await answering(JSON_ANSWERS, [] if reply is None else [reply])(reader, writer)

    @asynccontextmanager
    async def exporter(self, role: str = "auto") -> AsyncIterator[RasExporter]:
        """The exporter, started, with the server running."""
        async with served(self.serve, self.listener) as endpoint:
            config = msgspec.convert({"addresses": [f"127.0.0.1:{endpoint.port}"], "role": role}, RasConfig)
            exporter = RasExporter(config)
            roots = Roots(self.tree.root, self.tree.root / "sys", self.tree.root / "run")
            clock, ranks = self.table.clock, self.table.ranks
            section = StateSection("ras", None)
            await exporter.start(
                Context(roots, clock, "here", ranks, section, self.admission, OwnThread, Logger("ras"))
            )
            yield exporter
            await exporter.drain()

    async def look(self, exporter: RasExporter, after: float) -> Snapshot:
        """Move the clock and update."""
        self.table.tick(after)
        await exporter.update()
        return exporter.snapshot()

    async def first_query(self, exporter: RasExporter) -> Snapshot:
        """Have the listeners found, and wait for as long as the first query may be put off."""
        await self.look(exporter, 1.0)
        return await self.look(exporter, MIN_INTERVAL_SECONDS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of its own for each test."""
    node = Node(tmp_path)
    with node.listener:
        yield node


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Node]:
    """A node with another address than the reports name."""
    node = Node(tmp_path, address="10.0.0.2")
    with node.listener:
        yield node


def shown(snapshot: Snapshot) -> dict[str, list[tuple[str, int, int]]]:
    """Hash, answers and missing ranks of each job's communicators."""
    return {
        job_id: [(each.hash, each.responding, each.missing) for each in job.report.communicators]
        for job_id, job in snapshot.reports.items()
    }


async def test_the_first_query_comes_within_the_interval_and_the_next_after_it(node: Node) -> None:
    """Nobody is asked twice within an interval, and somebody is asked in each."""
    async with node.exporter() as exporter:
        assert node.asked == 0
        assert shown(await node.first_query(exporter)) == {"4711": [("0xab", 4, 0)]}
        await node.look(exporter, 0.8 * MIN_INTERVAL_SECONDS)
        assert node.asked == 1
        await node.look(exporter, LONGEST_INTERVAL_SECONDS - 0.8 * MIN_INTERVAL_SECONDS)
        assert node.asked == 2


@pytest.fixture
def unnamed(tmp_path: Path) -> Iterator[Node]:
    """A node whose processes no environment names; records put them at places 2 and 3 of a communicator of 4."""
    node = Node(tmp_path, ranks={})
    for pid, rank in ((11, 2), (12, 3)):
        node.add(pid, {"SLURM_JOB_ID": "4711"}, Membership("aa", rank, 4))
    with node.listener:
        yield node


async def test_the_size_of_a_job_is_known_from_its_communicator_too(unnamed: Node) -> None:
    """Where no environment tells, the node of the last rank of the largest communicator stands by."""
    async with unnamed.exporter() as exporter:
        found = await unnamed.look(exporter, 1.0)
    assert [(each.role, each.refusal) for each in found.jobs] == [("standby", None)]


async def test_a_role_of_off_looks_at_nothing(node: Node) -> None:
    """Switched off it is no data, whoever listens, and nobody is asked."""
    async with node.exporter("off") as exporter:
        for _ in range(2):
            with pytest.raises(NoData):
                await node.look(exporter, MAX_INTERVAL_SECONDS)
    assert node.asked == 0


@pytest.fixture
def orphaned(node: Node) -> Node:
    """The node with one more listener, which no rank holds."""
    node.listen(13)
    return node


@pytest.fixture
def shared(node: Node) -> Node:
    """The node with two ranks of another job at the same address."""
    for pid, rank in ((21, 0), (22, 1)):
        node.add(pid, environment(rank, world=4, job="4712"))
    return node


async def test_an_orphan_at_the_address_is_never_connected_to(orphaned: Node) -> None:
    """While a listener is nobody's, nobody is asked; the snapshot says why."""
    node = orphaned
    async with node.exporter() as exporter:
        found = await node.first_query(exporter)
    assert node.asked == 0
    assert [(each.job_id, each.role, each.refusal) for each in found.jobs] == [("4711", "reporter", "unowned_listener")]
    assert (list(found.listeners.values()), found.up) == ([(2, 1)], {})


async def test_a_listener_that_comes_and_goes_hastens_nothing(node: Node) -> None:
    """While a process is not known yet its address is not asked, and afterwards not before it is due."""
    table = node.tree.root / "net/tcp"
    async with node.exporter() as exporter:
        assert list((await node.first_query(exporter)).up.values()) == [True]
        before = await asyncio.to_thread(table.read_text)
        for _ in range(5):
            await asyncio.to_thread(node.listen, 13)
            assert (await node.look(exporter, 0.5)).up == {}
            await asyncio.to_thread(table.write_text, before)
            await node.look(exporter, 1.0)
        assert node.asked == 1
        await node.look(exporter, LONGEST_INTERVAL_SECONDS - 7.5)
        assert node.asked == 2


async def test_a_view_of_a_cut_off_process_is_asked_about_again(node: Node) -> None:
    """Where most ranks look missing the question is put again, and the best answer is shown."""
    node.replies = [report(3), report(1), report(4)]
    async with node.exporter() as exporter:
        found = await node.first_query(exporter)
    assert (node.asked, shown(found)) == (2, {"4711": [("0xab", 3, 1)]})


async def test_a_job_that_is_truly_missing_is_asked_three_times_and_shown(node: Node) -> None:
    """When every answer says so, most of the job is missing."""
    node.replies = [report(3)]
    async with node.exporter() as exporter:
        found = await node.first_query(exporter)
    assert (node.asked, shown(found)) == (3, {"4711": [("0xab", 1, 3)]})


async def test_failures_are_counted_and_old_reports_go(node: Node) -> None:
    """A failed query keeps the last report for three intervals, and puts the next off twice as long."""
    node.replies = [report(), None]
    async with node.exporter() as exporter:
        first = await node.first_query(exporter)
        assert list(first.up.values()) == [True]
        failed = await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        assert (list(failed.up.values()), failed.errors, failed.queries) == ([False], {"cut": 1}, 2)
        assert shown(failed) == {"4711": [("0xab", 4, 0)]}
        await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        assert node.asked == 2
        assert shown(await node.look(exporter, 2 * LONGEST_INTERVAL_SECONDS)) == {}
        assert node.asked == 3


async def test_a_report_that_cannot_be_read_is_counted_as_such(node: Node) -> None:
    """A reply that is no report is a failure of its own stage."""
    node.replies = [b'{"nccl_version": 7}']
    async with node.exporter() as exporter:
        found = await node.first_query(exporter)
    assert (found.errors, list(found.up.values()), found.reports) == ({"parse": 1}, [False], {})


async def test_reports_go_to_the_job_whose_processes_they_name(shared: Node) -> None:
    """Two jobs at one address: each report is shown under its own job, one of neither is counted."""
    node = shared
    other = report(1, pids=(21, 22), hash_number=0xCD)
    node.replies = [other, report(), report(pids=(31, 32))]
    async with node.exporter() as exporter:
        await node.look(exporter, 1.0)
        for _ in range(3):
            found = await node.look(exporter, LONGEST_INTERVAL_SECONDS)
    assert shown(found) == {"4711": [("0xab", 4, 0)], "4712": [("0xcd", 3, 1)]}
    assert found.skipped == {"foreign_report": 1}


async def test_a_job_that_left_is_not_shown(node: Node) -> None:
    """With its last process here a job's report goes, and its budget with it."""
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        for key in list(node.table.ranks.processes()):
            node.table.ranks.observe_exit(key, None)
        assert (await node.look(exporter, 1.0)).reports == {}
    assert not node.admission.refused
    assert node.admission.admit("all", 50_000, 1_000)


async def test_a_report_without_room_is_counted(node: Node) -> None:
    """Where the agent's budget of series is spent, the report is left out."""
    node.admission = Admission(in_all=4)
    async with node.exporter() as exporter:
        found = await node.first_query(exporter)
    assert (found.reports, found.skipped) == ({}, {"refused": 1})


async def test_a_report_takes_the_room_of_the_last_one(node: Node) -> None:
    """However often a job is asked, its series are admitted once."""
    node.admission = Admission(in_all=11)  # the ten of a communicator, and one to spare
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        found = await node.look(exporter, LONGEST_INTERVAL_SECONDS)
    assert (node.asked, found.skipped) == (2, {})
    assert shown(found) == {"4711": [("0xab", 4, 0)]}


async def test_what_a_report_holds_becomes_series(node: Node) -> None:
    """Counts by state, each missing rank with its place, and what was skipped or waited for, are exported."""
    whole = json.loads(report(1))
    whole["communicators"].append({"hash": "0x0", "size": 0, "ranks": [], "missing_ranks": []})
    whole["ras"]["timeouts_count"] = 2
    node.replies = [json.dumps(whole).encode()]
    async with node.exporter() as exporter:
        found = list(exporter.families(await node.first_query(exporter)))
    series = {(sample.name, *sample.labels.values()): sample.value for family in found for sample in family.samples}
    states = {key[3]: value for key, value in series.items() if key[0] == "rankwatch_communicator_ranks"}
    assert states == {"expected": 4, "responding": 3, "missing": 1, "unresponsive": 1, "dead": 0}
    assert series["rankwatch_communicator_rank_missing", "4711", "ab", "3", "3", "10.0.0.1", "3", "unresponsive"] == 1
    assert series["rankwatch_ras_skipped_total", "phantom"] == 1
    assert series["rankwatch_ras_timeouts_total",] == 2
    assert series["rankwatch_ras_queries_total",] == 1
    assert series["rankwatch_ras_reporter", "4711", "reporter"] == 1
    assert series["rankwatch_ras_query_duration_seconds",] >= 0
    endpoint = f"127.0.0.1:{node.port}"
    assert series["rankwatch_library_info", "4711", "nccl", "2.30.7"] == 1
    assert series["rankwatch_ras_up", endpoint] == 1
    assert series["rankwatch_ras_listeners", endpoint, "rank"] == 2


async def test_a_drain_waits_for_the_end_of_a_report(node: Node) -> None:
    """A query under way is read to its end before the exporter is gone."""
    began, go_on = asyncio.Event(), asyncio.Event()
    serve = node.serve

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.set()
        await go_on.wait()
        await serve(reader, writer)

    node.serve = slowly  # type: ignore[method-assign]
    async with node.exporter() as exporter:
        update = asyncio.ensure_future(node.first_query(exporter))
        await began.wait()
        drain = asyncio.ensure_future(exporter.drain())
        await asyncio.sleep(0)
        assert not drain.done()
        go_on.set()
        await drain
        assert shown(await update) != {}


@pytest.mark.parametrize(
    "section",
    [
        {"addresses": []},
        {"addresses": ["gpu-node:28028"]},
        {"addresses": ["127.0.0.1"]},
        {"addresses": ["127.0.0.1:0"]},
        {"addresses": ["127.0.0.1:65536"]},
        {"addresses": ["::1:28028"]},
        {"addresses": ["1.2.3.4.5:28028"]},
        {"addresses": [f"127.0.0.1:{port}" for port in range(1, MAX_ADDRESSES + 2)]},
        {"role": "monitor"},
        {"oldest_version": "2.29"},
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(section: dict[str, object]) -> None:
    """Addresses are localhost or IP addresses with a port; roles and versions are as documented."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, RasConfig)


def test_localhost_is_both_loopbacks() -> None:
    """RAS binds the first address of localhost alone, and that differs between clusters."""
    assert RasConfig().endpoints() == (Endpoint("127.0.0.1", 28028), Endpoint("::1", 28028))
    assert RasConfig(addresses=["[::1]:28028", "localhost:28028"]).endpoints()[0] == Endpoint("::1", 28028)
    assert RasConfig().oldest() == (2, 29, 2)


def test_every_reason_to_skip_is_a_series() -> None:
    """Whatever a report is skipped for is exported."""
    assert set(Skipped.__args__) | {"foreign_report", "refused"} == set(SKIPPED_REASONS)  # type: ignore[attr-defined]


async def test_a_process_that_the_others_do_not_hear_is_unresponsive(node: Node) -> None:
    """The process of rank 1 is missed by two reports over 15 s: its rank is unresponsive, until RAS is not asked."""
    node.replies = [report(1, size=2)]
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        assert node.table.states() == {"0": "alive", "1": "alive"}
        for _ in range(2):
            await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        node.table.tick()
        assert node.table.states() == {"0": "alive", "1": "unresponsive"}
    node.table.tick()
    assert node.table.states() == {"0": "alive", "1": "alive"}


async def test_a_process_of_another_host_with_the_same_pid_is_not_meant(elsewhere: Node) -> None:
    """The address of the missed process is none of this node's: its namesake here is alive."""
    node = elsewhere
    node.replies = [report(1, size=2)]
    async with node.exporter() as exporter:
        await node.first_query(exporter)
        for _ in range(3):
            await node.look(exporter, LONGEST_INTERVAL_SECONDS)
        node.table.tick()
        assert node.table.states() == {"0": "alive", "1": "alive"}
