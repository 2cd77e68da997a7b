"""The log exporter, from the rank table and a log to series: restarts, hangs and damage."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_node import ExporterNode
from job_log_jobs import OWNER
from lent import Admission
from rank_table import view

from agent.sdk.exporter import StateSection
from agent.sdk.ranks import UNKNOWN_RANK, local_ranks
from exporters.job_log import JobLogConfig, JobLogExporter, exporter as exporters
from exporters.job_log.jobs import jobs_of
from exporters.job_log.reader import LogSection

PROGRAM_ERROR = "job_log_events_total/4711/0/program_error/root"


class Node(ExporterNode):
    """A node with ranks 0 and 1 of job 4711."""

    def __init__(self, folder: Path, restored: bytes | None = None) -> None:
        config = JobLogConfig(paths=[f"{folder}/%j.out"])
        lends = {"state": StateSection("job_log", restored), "admit": Admission()}
        super().__init__("job_log", folder, lambda: JobLogExporter(config), **lends)
        for rank in range(2):
            self.observe(4000 + rank, rank, OWNER)
        self.start()

    def write(self, text: str) -> None:
        """Append to the job's log."""
        path = self.folder / "4711.out"
        with path.open("a") as file:
            file.write(text)
        os.chown(path, OWNER, -1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide a node."""
    made = Node(tmp_path)
    yield made
    made.end()


def test_counts_survive_the_agent(node: Node) -> None:
    """After a restart the counters continue and count for the limit of series, and no line is counted twice."""
    node.write("[rank0]: ValueError: x\n")
    node.look()
    node.lends["admit"] = Admission()
    node.restart()
    node.write("[rank0]: ValueError: y\n")
    values = node.look()
    assert node.lends["admit"].taken == 1
    assert (values[PROGRAM_ERROR], "job_log_first_root_timestamp_seconds/4711/program_error/0//" in values) == (2, True)


@pytest.mark.parametrize("section", [b"", b"\x00", b"\x81\xa4jobs\x05", msgspec.msgpack.encode({"jobs": {"4711": 5}})])
def test_a_damaged_checkpoint_costs_itself(tmp_path: Path, section: bytes) -> None:
    """With a damaged section the exporter starts without saved state."""
    node = Node(tmp_path, section)
    node.write("[rank0]: ValueError: x\n")
    assert PROGRAM_ERROR in node.look()
    node.end()
    assert msgspec.msgpack.decode(node.ctx.state.published or b"", type=LogSection).positions


def test_an_end_waits_for_no_hung_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a turn hangs, the exporter still stops at once, and shows and saves the results of the turn before."""
    node = Node(tmp_path)
    node.write("[rank0]: ValueError: x\n")
    node.look()
    hangs, released = threading.Event(), threading.Event()
    real = node.exporter._reader.look
    monkeypatch.setattr(node.exporter._reader, "look", lambda *args: (hangs.set(), released.wait(), real(*args))[2])

    async def ended() -> None:
        update = asyncio.ensure_future(node.exporter.update())
        while not hangs.is_set():
            await asyncio.sleep(0.01)
        await asyncio.wait_for(node.exporter.drain(), 5.0)
        assert node.exporter.snapshot().jobs
        released.set()
        await update

    node.runner.run(ended())
    node.runner.close()
    assert msgspec.msgpack.decode(node.ctx.state.published or b"", type=LogSection).positions


@pytest.mark.parametrize("config", [
    {"paths": ["relative"]},
    {"paths": ["/a/../b"]},
    {"paths": ["/a"] * (exporters.MAX_PATHS + 1)},
    {"progress": [{"kind": "iteration", "contains": "tick", "pattern": "("}]},
    {"progress": [{"kind": "iteration", "contains": "abc", "pattern": "(?P<iteration>x)"}]},
    {"progress": [{"kind": "checkpoint_end", "contains": "tick", "pattern": "x"}] * (exporters.MAX_PATTERNS + 1)},
])  # fmt: skip
def test_mistakes_in_the_configuration(config: dict[str, Any]) -> None:
    """Invalid patterns, and more patterns than the limit, are refused when the configuration is read."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(config, JobLogConfig)


@pytest.mark.parametrize(("fields", "rank"), [
    ({"parent_pid": 9}, "1"),
    ({"parent_pid": 8}, UNKNOWN_RANK),
    ({"parent_pid": 8, "exited": True}, "1"),
])  # fmt: skip
def test_a_local_rank_of_two_ranks(fields: dict[str, Any], rank: str) -> None:
    """Of two ranks with one local rank the newer is used, unless the older has another launcher and ran then."""
    views = [view(10, "0", **fields), view(11, "1", parent_pid=9, start_seconds=1.7e9 + 60)]
    assert local_ranks(views, frozenset({"here"})) == {("", ""): rank}


def test_what_the_rank_table_says_of_a_job(node: Node) -> None:
    """A job has the users, ids, size, processes, local ranks and start of its ranks."""
    for rank in range(2):
        node.observe(5000 + rank, rank, OWNER, {"SLURM_STEP_NUM_TASKS": "2"}, job="99", world=2)
    jobs = jobs_of(node.ranks.snapshot())
    job = jobs["4711"]
    assert (job.uids, job.ids, job.world_size, job.tasks_are_ranks) == ({OWNER}, {"4711"}, 8, False)
    assert (job.pids, job.started_seconds, job.has_rank_zero()) == ({4000: "0", 4001: "1"}, 1.7e9, True)
    assert jobs["99"].tasks_are_ranks
    assert job.local_ranks == {("", "0"): "0", ("", "1"): "1"}
