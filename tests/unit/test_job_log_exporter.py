"""The exporter: from the rank table and a log to series, over restarts, hangs and damage."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_clock import FakeClock
from job_log_jobs import OWNER
from lent import Admission, lent
from rank_table import RankTable, environment, owned

from agent.app.lease import end_writers
from agent.sdk.exporter import NoData, StateSection
from agent.sdk.metrics import Metric
from agent.sdk.ranks import Owner
from exporters.job_log import JobLogConfig, JobLogExporter, exporter as exporters
from exporters.job_log.jobs import jobs_of
from exporters.job_log.reader import LogSection


class Running:
    """An exporter over ``root``, with ranks 0 and 1 of job 4711 here."""

    def __init__(self, root: Path, restored: bytes | None = None, **config: Any) -> None:
        self.logs = root
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        for rank in range(2):
            self.ranks.observe_process(owned(4000 + rank, environment(rank), Owner(), uid=OWNER))
        self.ranks.tick()
        self.state = StateSection("job_log", restored)
        self.admit = Admission()
        self.context = lent("job_log", self.clock, root, state=self.state, ranks=self.ranks, admit=self.admit)
        self.exporter = JobLogExporter(JobLogConfig(paths=[f"{self.logs}/%j.out"], **config))

    async def write(self, text: str) -> None:
        """Add to the job's log."""
        await asyncio.to_thread(self._write, text)

    def _write(self, text: str) -> None:
        path = self.logs / "4711.out"
        with path.open("a") as file:
            file.write(text)
        os.chown(path, OWNER, -1)

    async def update(self) -> dict[str, Metric]:
        """One update, with a look for files; the families by name."""
        self.clock.advance(5.0)
        await self.exporter.update()
        return {one.family.name: one for one in self.exporter.families(self.exporter.snapshot())}


def series(metric: Metric) -> dict[tuple[str, ...], float]:
    """A family's series."""
    return dict(zip(metric.labels, metric.values, strict=True))


async def test_a_log_becomes_series(tmp_path: Path) -> None:
    """A line of a rank here is counted under its job and rank, and is the job's first cause."""
    node = Running(tmp_path)
    await node.write("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\niteration 7 / 9 |\n")
    await node.exporter.start(node.context)
    found = await node.update()
    assert series(found["rankwatch_job_log_events_total"]) == {("4711", "1", "gpu_hardware", "root"): 1}
    assert series(found["rankwatch_job_log_first_root_info"]) == {
        ("4711", "gpu_hardware", "1", "", "restart_elsewhere"): 1
    }
    assert series(found["rankwatch_train_iteration"]) == {("4711",): 7}
    await node.exporter.drain()


async def test_without_a_log_there_is_no_data(tmp_path: Path) -> None:
    """A node without a log of a job here has no series, and a log that comes up later has."""
    node = Running(tmp_path)
    await node.exporter.start(node.context)
    with pytest.raises(NoData):
        await node.update()
    await node.write("[rank0]: ValueError: x\n")
    assert series((await node.update())["rankwatch_job_log_events_total"]) == {
        ("4711", "0", "program_error", "root"): 1
    }
    await node.exporter.drain()
    end_writers(node.context)
    assert node.admit.taken == 0


async def test_counts_survive_the_agent(tmp_path: Path) -> None:
    """After a restart counting goes on where it was, and no line counts twice."""
    node = Running(tmp_path)
    await node.write("[rank0]: ValueError: x\n")
    await node.exporter.start(node.context)
    await node.update()
    await node.exporter.drain()
    again = Running(tmp_path, node.state.published)
    await again.write("[rank0]: ValueError: y\n")
    await again.exporter.start(again.context)
    found = await again.update()
    assert series(found["rankwatch_job_log_events_total"]) == {("4711", "0", "program_error", "root"): 2}
    assert series(found["rankwatch_job_log_first_root_info"]) == {("4711", "program_error", "0", "", ""): 1}
    await again.exporter.drain()


@pytest.mark.parametrize("section", [b"", b"\x00", b"\x81\xa4jobs\x05", msgspec.msgpack.encode({"jobs": {"4711": 5}})])
async def test_a_damaged_checkpoint_costs_itself(tmp_path: Path, section: bytes) -> None:
    """With a section that makes no sense the exporter begins anew."""
    node = Running(tmp_path, section)
    await node.write("[rank0]: ValueError: x\n")
    await node.exporter.start(node.context)
    assert "rankwatch_job_log_events_total" in await node.update()
    await node.exporter.drain()
    assert node.state.published is not None
    assert msgspec.msgpack.decode(node.state.published, type=LogSection).positions


async def test_a_hung_file_system_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that hangs is left to itself; after a while what it had published is shown no more."""
    monkeypatch.setattr(exporters, "WAIT_SECONDS", 0.01)
    node = Running(tmp_path)
    await node.write("[rank0]: ValueError: x\n")
    await node.exporter.start(node.context)
    while not node.exporter.snapshot().jobs:
        await asyncio.sleep(0.001)
        try:
            await node.update()
        except NoData:
            continue
    hangs, released = threading.Event(), threading.Event()
    real = node.exporter._reader.look
    monkeypatch.setattr(node.exporter._reader, "look", lambda *given: (hangs.set(), released.wait(), real(*given))[2])
    while not hangs.is_set():
        await node.update()
    assert node.exporter.snapshot().jobs
    node.clock.advance(exporters.STALE_SECONDS + 1)
    await node.exporter.update()
    assert node.exporter.snapshot().jobs == ()
    released.set()
    while not node.exporter.snapshot().jobs:
        await node.update()
    await node.exporter.drain()


@pytest.mark.parametrize(
    "config",
    [
        {"paths": ["relative"]},
        {"paths": ["/a/../b"]},
        {"paths": ["/a"] * (exporters.MAX_PATHS + 1)},
        {"progress": [{"kind": "iteration", "contains": "tick", "pattern": "("}]},
        {"progress": [{"kind": "iteration", "contains": "abc", "pattern": "(?P<iteration>x)"}]},
        {"progress": [{"kind": "checkpoint_end", "contains": "tick", "pattern": "x"}] * (exporters.MAX_PATTERNS + 1)},
    ],
)
def test_mistakes_in_the_configuration(config: dict[str, Any]) -> None:
    """Patterns that are none, and too many, are refused when the configuration is read."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(config, JobLogConfig)


def test_what_the_rank_table_says_of_a_job(tmp_path: Path) -> None:
    """A job is told by its ranks: users, ids, size, processes by both their numbers, since when it runs."""
    found = jobs_of(Running(tmp_path).ranks.snapshot().ranks)["4711"]
    assert (found.uids, found.ids, found.world_size, found.tasks_are_ranks) == ({OWNER}, {"4711"}, 8, False)
    assert found.pids == {4000: "0", 4001: "1"}
    assert found.started_seconds == 1.7e9
    assert found.has_rank_zero()


def test_tasks_are_ranks_where_there_are_as_many(tmp_path: Path) -> None:
    """The number of a scheduler's task is a rank only where the job step has as many tasks as ranks."""
    node = Running(tmp_path)
    for rank in range(2):
        claimed = environment(rank, 2, "99") | {"SLURM_STEP_NUM_TASKS": "2"}
        node.ranks.observe_process(owned(5000 + rank, claimed, Owner(), uid=OWNER))
    node.ranks.tick()
    assert jobs_of(node.ranks.snapshot().ranks)["99"].tasks_are_ranks
