"""The exporter around the scanner: watched processes, exits, and its stop."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_metrics import samples
from fake_clock import FakeClock
from lent import lent
from proc_tree import ProcTree
from rank_table import RankTable

from agent.app.lease import end_writers
from agent.ranks.table import UNSEEN_SECONDS
from agent.sdk.exporter import NoData, Roots
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process import ProcessConfig, ProcessExporter
from exporters.process.exits import open_pidfd
from exporters.process.observation import THREADS_SECONDS
from exporters.process.scan import ScanResult

START = 5000


class Node:
    """A fake /proc, a table, and an exporter."""

    def __init__(self, root: Path) -> None:
        self.proc = ProcTree(root / "proc")
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here")
        roots = Roots(proc=self.proc.root, sys=root / "sys")
        self.lends = {"roots": roots, "ranks": self.ranks}
        self.context = lent("process", self.clock, **self.lends)

    def add(self, pid: int) -> ProcessKey:
        self.proc.add(pid, start=START, threads={pid + 1: "NCCL RAS"}, environment={"RANK": "0", "SLURM_JOB_ID": "7"})
        return ProcessKey(pid, START)

    async def start(self, **config: bool) -> ProcessExporter:
        self.context = lent("process", self.clock, **self.lends)
        exporter = ProcessExporter(ProcessConfig(**config))
        await exporter.start(self.context)
        return exporter

    def shown(self) -> list[int]:
        return [view.process.facts.key.pid for view in self.ranks.snapshot().ranks if view.process.facts]

    def unseen(self) -> None:
        """Let UNSEEN_SECONDS pass, after which unobserved ranks are hidden."""
        self.clock.advance(UNSEEN_SECONDS + 1.0)
        self.ranks.tick()


def open_pidfds() -> int:
    """Return the number of this process's pidfds."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum("pidfd" in os.readlink(link) for link in links if os.path.lexists(link))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide an empty node; at the end no pidfd may be left open."""
    before = open_pidfds()
    yield Node(tmp_path)
    assert open_pidfds() == before


@pytest.fixture
def rank(node: Node, child: subprocess.Popen[bytes]) -> ProcessKey:
    """Provide the child as a rank process of the node."""
    return node.add(child.pid)


def test_pidfd_is_of_the_process_itself(
    node: Node, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pidfd is kept only if the start time still matches; an exited process or a reused pid gives none."""
    key, proc = node.add(child.pid), ProcFS(node.proc.root)
    before, pidfd = open_pidfds(), open_pidfd(proc, key)
    assert isinstance(pidfd, int)
    os.close(pidfd)
    assert open_pidfd(proc, ProcessKey(child.pid, START - 1)) is None
    assert open_pidfds() == before
    child.kill()
    child.wait()
    assert isinstance(open_pidfd(proc, key), ProcessLookupError)  # of a pid namespace other than that of the /proc
    node.proc.remove(child.pid)
    assert open_pidfd(proc, key) is None
    node.add(child.pid)

    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert isinstance(open_pidfd(proc, key), OSError)


async def test_exit_during_a_look(node: Node, rank: ProcessKey) -> None:
    """A process that exited during a look is not watched again."""
    exporter = await node.start()
    apply = exporter._apply

    def leave(metrics: ScanResult, pidfds: Any) -> None:
        node.ranks.observe_process(metrics.new[0])
        node.ranks.observe_exit(rank, None)
        apply(metrics, pidfds)

    exporter._apply = leave  # type: ignore[method-assign]
    await exporter.update()
    assert not exporter._exits.watched()
    await exporter.drain()


async def test_processes_that_become_ranks_soon(node: Node) -> None:
    """With `without_nccl` a note has the number of processes that will be ranks."""
    await asyncio.to_thread(node.proc.add, 9, environment={"RANK": "0", "WORLD_SIZE": "1"})
    exporter = await node.start(without_nccl=True)
    await exporter.update()
    assert node.context.note.text == "1 processes without NCCL become ranks within a minute"
    await exporter.drain()


async def test_a_hidden_proc_is_no_exit(node: Node, rank: ProcessKey) -> None:
    """A rank that vanishes from /proc (hidepid, an unmount) has exited only if its pidfd says so, or it has none."""
    exporter = await node.start()
    await exporter.update()
    await asyncio.to_thread(node.proc.remove, rank.pid)
    for running in ({rank}, set()):
        with pytest.raises(NoData):
            await exporter.update()
        assert set(node.ranks.running()) == running
        exporter._exits._unwatch(rank)
    await exporter.drain()


def write_group(group: Path, seconds: int) -> None:
    """Write a control group with ``seconds`` of waits for CPUs, a quarter of it for disks, and half for its quota."""
    group.mkdir(parents=True, exist_ok=True)
    for name, waits in (("cpu", 1_000_000), ("io", 250_000)):
        (group / f"{name}.pressure").write_text(f"some avg10=0.00 total={seconds * waits}\n")
    (group / "cpu.stat").write_text(f"throttled_usec {seconds * 500_000}\n")


def lines(exporter: ProcessExporter) -> set[str]:
    """Return the series in the form name{values} value."""
    metrics = samples(exporter.families(exporter.snapshot()))
    return {f"{s.name.removeprefix('rankwatch_')}{{{','.join(s.labels.values())}}} {s.value:g}" for s in metrics}


@pytest.mark.parametrize("all_values", [False, True])
async def test_what_a_rank_uses_is_shown(node: Node, rank: ProcessKey, all_values: bool) -> None:
    """A labelled rank shows its usage (with all_values also its CPUs), and its job the waits of its control groups."""
    exporter = await node.start(all_values=all_values)
    group = node.context.roots.sys / "fs/cgroup/unified/made.slice"
    for seconds in (1, 3, 8):
        await asyncio.to_thread(write_group, group, seconds)
        await exporter.update()
        node.clock.advance(THREADS_SECONDS)
        node.ranks.tick()
    shown = lines(exporter)
    assert {"rank_cpu_seconds_total{7,0,rank} 0", "rank_memory_bytes{7,0,resident} 0"} <= shown
    assert {line for line in shown if line.startswith("job_")} == {
        "job_pressure_waiting_seconds_total{7,cpu} 5",
        "job_pressure_waiting_seconds_total{7,io} 1.25",
        "job_cpu_throttled_seconds_total{7} 2.5",
    }
    assert any(line.startswith("rank_affinity_info{7,0,") for line in shown) is all_values
    node.ranks.observe_exit(rank, None)
    assert not [line for line in lines(exporter) if line.startswith("rank_")]
    await exporter.drain()


async def test_look_that_outlasts_the_exporter(node: Node, rank: ProcessKey) -> None:
    """A look that ends after the exporter was stopped changes nothing and leaves no descriptor open."""
    exporter = await node.start()
    await exporter.update()
    exporter._exits._unwatch(rank)
    node.clock.advance(1.0)
    node.ranks.tick()
    update = asyncio.create_task(exporter.update())
    await asyncio.sleep(0)
    await exporter.drain()
    end_writers(node.context)
    await update
    assert not exporter._exits.watched()
    node.unseen()
    assert node.shown() == []
