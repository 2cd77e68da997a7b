"""A user's RAS, which can be any program, cannot change other users' series."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_table import environment
from ras_node import Node, report
from ras_server import conversing, served

from agent.sdk.exporter import OwnThread
from agent.sdk.ranks import ProcessKey
from exporters.ras.config import RasConfig
from exporters.ras.protocol.client import Endpoint
from exporters.ras.query.policy import LABELS_WAIT_SECONDS, MIN_INTERVAL_SECONDS
from exporters.ras.show import RasSnapshot

VICTIM, ATTACKER = 1000, 2000
FORGED = 0xBAD


class Forger:
    """Process 21 of another user, with a RAS of its own that reports pids 11 and 12 as dead."""

    def __init__(self, node: Node, env: dict[str, str], evidence: str = "thread") -> None:
        self._node = node
        self.queries = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        node.add(21, env | {"NCCL_RAS_ADDR": f"127.0.0.1:{self.port}"}, None, evidence, uid=ATTACKER, port=self.port)

    async def report(self) -> bytes:
        self.queries += 1
        whole = json.loads(report(2, size=4, pids=(21, 21, 11, 12), hash_number=FORGED))
        for missing in whole["communicators"][0]["missing_ranks"]:
            missing["status"] = {"unresponsive": True, "considered_dead": True}
        whole["communicators"] += json.loads(report(0, size=2, pids=(11, 12), hash_number=0xBAE))["communicators"]
        return json.dumps(whole).encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Endpoint(*writer.get_extra_info("peername"))
        thread = OwnThread("table")
        await thread.call(lambda: self._node.accept(21, client))
        thread.stop()
        await conversing(self.report, self._node.monitor)(reader, writer)


def add_victims(node: Node) -> None:
    """Add two ranks of job 4711."""
    for pid, rank in ((11, 0), (12, 1)):
        node.add(pid, environment(rank, world=4), uid=VICTIM)


async def watched(node: Node, forger: Forger, seconds: float) -> RasSnapshot:
    """Return the exporter's snapshot after many queries of both jobs."""
    async with served(node.serve, node.listener), served(forger.serve, forger.listener):
        exporter = await node.start(RasConfig(addresses=[f"127.0.0.1:{node.port}"], role="reporter"))
        for _ in range(6):
            snapshot = await node.look(exporter, seconds)
        await exporter.drain()
    return snapshot


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide a node without ranks."""
    node = Node(tmp_path, ranks={})
    with node.listener:
        yield node


@pytest.mark.parametrize("claim", ["4712", "4711"], ids=["a job of its own", "the victim's job"])
@pytest.mark.parametrize("first", ["victim", "attacker"])
def test_a_forged_report_changes_nothing_for_others(node: Node, claim: str, first: str) -> None:
    """Processes that a forged report calls dead stay alive, and their job keeps its own communicators and series."""
    if first == "victim":
        add_victims(node)
    forger = Forger(node, environment(0, world=4, job=claim))
    if first == "attacker":
        add_victims(node)
    snapshot = asyncio.run(watched(node, forger, 1.1 * MIN_INTERVAL_SECONDS))
    assert forger.queries > 0
    node.table.ranks.tick()
    processes = node.table.ranks.running()
    for pid in (11, 12):
        process = processes[ProcessKey(pid, 5000)]
        assert process.silence is None
        assert not {comm for comm, _ in process.members} & {"bad", "bae"}
        assert process.verdict is not None
        assert process.verdict.state == "alive"
    victims = {label.job_id for pid in (11, 12) for label in processes[ProcessKey(pid, 5000)].slots or () if label}
    shown = {job_id: [entry.hash for entry in job.report.communicators] for job_id, job in snapshot.reports.items()}
    assert [shown[job_id] for job_id in victims] == [["0xab"]]
    assert all("0xbad" in hashes for job_id, hashes in shown.items() if job_id not in victims)


@pytest.mark.parametrize("is_queried", [True, False], ids=["asked as well", "without RAS"])
def test_processes_that_nothing_names_are_not_named_by_others(node: Node, *, is_queried: bool) -> None:
    """Processes without a known rank get their ranks only from reports of their own user's RAS."""
    for pid in (11, 12):
        node.add(pid, {"SLURM_JOB_ID": "4711"}, evidence="library", uid=VICTIM, port=None if is_queried else 1)
    forger = Forger(node, {"SLURM_JOB_ID": "4712"}, "library")
    asyncio.run(watched(node, forger, 6.0 * LABELS_WAIT_SECONDS))
    assert forger.queries > 0
    processes = node.table.ranks.running()
    for pid in (11, 12):
        assert {comm for comm, _ in processes[ProcessKey(pid, 5000)].members} == ({"ab"} if is_queried else set())
