"""Exits are reported at once; the statuses of exits are read together, and their jobs are judged together."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from fake_clock import FakeClock
from lent import lent, until
from proc_tree import ProcTree
from rank_table import KILLED, RankTable, environment, facts

from agent.core.identity import RankLabel
from agent.ranks import table
from agent.ranks.rank.evidence import RankVerdict
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict_thresholds import Thresholds
from agent.ranks.writer import MAX_PROCESSES
from agent.sdk.exporter import Logger, OwnThread, Roots
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process import ProcessConfig, ProcessExporter, exits as exits_module
from exporters.process.exits import EXIT_TRIES_SECONDS, ExitWatch
from exporters.process.scan import Scanner

FAILED = ExitStatus(known=True, code=3)
T = TypeVar("T")


class InlineThread(OwnThread):
    """Runs each call at once, and counts the calls."""

    def __init__(self) -> None:
        super().__init__("inline")
        self.calls = 0

    async def call(self, function: Callable[[], T]) -> T:
        self.calls += 1
        return function()


class Node:
    """Ranks without real processes, whose exits the test reports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here")
        self.thread = InlineThread()
        self.statuses: dict[ProcessKey, ExitStatus | Exception] = {}
        self.exits = ExitWatch(self.ranks, ProcFS(Path("/nowhere")), self.thread, Logger("process"), ioctl=False)
        monkeypatch.setattr(exits_module, "from_zombie", self.from_zombie)

    def from_zombie(self, _proc: ProcFS, key: ProcessKey, _may_ptrace: object) -> ExitStatus | None:
        """Return a zombie's status; None if the test set none.

        If the test set an error as the status, return None before the first call on the thread, and raise the error
        after it.
        """
        status = self.statuses.get(key)
        if not isinstance(status, Exception):
            return status
        if not self.thread.calls:
            return None
        raise status

    def add(self, pids: range, job: str, status: ExitStatus | None = None) -> list[ProcessKey]:
        """Add ranks of a job, with the status of their later exit if it will be known."""
        keys = [ProcessKey(pid, 5000) for pid in pids]
        for number, key in enumerate(keys):
            self.ranks.observe_process(facts(key.pid, environment(number, world=len(keys), job=job)))
            if status is not None:
                self.statuses[key] = status
        self.clock.advance(1.0)
        self.ranks.tick()
        return keys

    def states(self, job: str) -> set[str]:
        views = self.ranks.snapshot().ranks
        return {view.process.verdict.state for view in views if view.label.job_id == job and view.process.verdict}

    def learnt(self) -> int:
        return sum(view.process.exit is not None for view in self.ranks.snapshot().ranks)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Provide an empty node."""
    return Node(monkeypatch)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Provide a list that gets the number of processes at each call of ``judge_job``."""
    sizes: list[int] = []

    def judge_job(processes: list[RankProcess], now: float, thresholds: Thresholds) -> list[RankVerdict]:
        sizes.append(len(processes))
        return original(processes, now, thresholds)

    original = table.judge_job
    monkeypatch.setattr(table, "judge_job", judge_job)
    return sizes


async def test_all_ranks_of_a_node_leave_at_once(node: Node, judged: list[int]) -> None:
    """1,000 exits of a job need two judgements of the job and one call for the statuses; other jobs are not judged."""
    others = 24
    node.add(range(5000, 5000 + others), "other")
    keys = node.add(range(10, 10 + MAX_PROCESSES - others), "4711", status=KILLED)
    judged.clear()
    for key in keys:
        node.exits.note_exit(key)
    assert not judged
    await until(lambda: len(judged) == 2 and node.learnt() == len(keys))
    assert (judged, node.thread.calls, node.states("4711")) == ([len(keys)] * 2, 1, {"exited"})
    assert node.states("other") == {"alive"}
    await node.exits.stop()


async def test_an_exit_after_a_pause_is_judged_in_the_next_turn(node: Node, judged: list[int]) -> None:
    """A single exit is judged at once, a crash as soon as its status is known; without a pidfd the loop reads none."""
    [key] = node.add(range(10, 11), "4711", status=FAILED)
    judged.clear()
    node.exits.note_exit(key)
    assert node.exits._exits[key].early is None
    await asyncio.sleep(0)
    assert judged == [1]
    await until(lambda: node.states("4711") == {"dead"})
    await node.exits.stop()


async def test_what_led_to_an_end_is_judged_before_it_is_replaced(node: Node) -> None:
    """If a rank restarts before the judgement, its peers that were torn down do not become dead."""
    node.add(range(10, 13), "4711", status=FAILED)
    for pid in range(10, 13):
        node.exits.note_exit(ProcessKey(pid, 5000))
        node.clock.advance(0.3)
    await until(lambda: node.learnt() == 3)
    node.ranks.observe_process(facts(20, environment(0, world=3)))
    node.clock.advance(1.0)
    node.ranks.tick()
    states = {v.label.rank: v.process.verdict.state for v in node.ranks.snapshot().ranks if v.process.verdict}
    assert states == {"0": "alive", "1": "exited", "2": "exited"}
    await node.exits.stop()


async def test_one_exit_that_cannot_be_read(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """An exit whose status cannot be read is counted and logged; the other exits have their status."""
    keys = node.add(range(10, 13), "4711", status=KILLED)
    node.statuses[keys[1]] = ValueError("not a status")
    for key in keys:
        node.exits.note_exit(key)
    await until(lambda: node.learnt() == 2 and node.exits.unknown_exits == 1)
    assert "could not be read" in caplog.text
    assert node.states("4711") <= {"exited"}
    await node.exits.stop()


async def test_the_exit_of_a_launcher_is_not_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A process that maps NCCL but has no rank and never initialised it, such as torchrun, exits without a log line."""
    launcher = msgspec.structs.replace(facts(10, {}), evidence="library")
    unnamed = facts(11, {})
    for process in (launcher, unnamed):
        node.ranks.observe_process(process)
        node.statuses[process.key] = FAILED
        node.exits.note_exit(process.key)
    caplog.set_level("INFO")
    await until(lambda: not node.exits.watched() and bool(caplog.records))
    assert [record.fields["pid"] for record in caplog.records] == [11]  # type: ignore[attr-defined]
    await node.exits.stop()


async def test_a_parent_that_reaps_late(node: Node) -> None:
    """A missing status is read again while the pidfd is open; without a pidfd the first result is final."""
    [key] = node.add(range(10, 11), "4711")
    pidfd = os.pidfd_open(os.getpid())  # any pidfd will do, since the process is fake
    node.exits._pidfds[key] = pidfd
    node.exits.note_exit(key)
    await until(lambda: node.thread.calls == len(EXIT_TRIES_SECONDS) - 5)
    assert node.exits.unknown_exits == 0
    node.statuses[key] = KILLED
    await until(lambda: node.learnt() == 1)
    assert not node.exits.watched()
    [other] = node.add(range(11, 12), "4712")
    calls = node.thread.calls
    node.exits.note_exit(other)
    await until(lambda: node.exits.unknown_exits == 1)
    assert node.thread.calls == calls + 1
    await node.exits.stop()


def off_the_loop(read: Callable[..., T]) -> Callable[..., T | None]:
    """Wrap a read so that it finds nothing on the event loop, where only the kernel's own files may be read."""
    loop_thread = threading.get_ident()
    return lambda *args: None if threading.get_ident() == loop_thread else read(*args)


class OwnedScanner(Scanner):
    """Records the threads on which a scanner is used."""

    users: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        OwnedScanner.users |= {threading.current_thread().name}
        return super().__getattribute__(name)


async def test_each_state_is_used_on_the_thread_of_its_owner(
    tmp_path: Path, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From discovery to OOM kill, only the loop uses the table, and only the scanner's thread uses the scanner."""
    monkeypatch.setattr("exporters.process.exporter.Scanner", OwnedScanner)
    monkeypatch.setattr(exits_module, "from_zombie", off_the_loop(exits_module.from_zombie))
    proc, group = await asyncio.to_thread(ProcTree, tmp_path / "proc"), tmp_path / "sys/fs/cgroup/job/memory.events"
    environ = {"RANK": "0", "SLURM_JOB_ID": "7"}

    def show(kills: int, **state: Any) -> None:
        group.parent.mkdir(parents=True, exist_ok=True)
        group.write_text(f"oom_kill {kills}\n")
        proc.add(child.pid, environment=environ, cgroup="0::/job\n", **state)

    await asyncio.to_thread(show, 0, threads={child.pid + 1: "NCCL RAS"})
    clock = FakeClock()
    ranks = RankTable(clock, "here")  # raises if used on another thread
    roots = Roots(proc=proc.root, sys=tmp_path / "sys")
    exporter = ProcessExporter(ProcessConfig(exit_status_ioctl=False))
    await exporter.start(lent("process", clock, roots=roots, ranks=ranks))
    for _ in range(2):
        await exporter.update()
    clock.advance(1.0)
    ranks.tick()
    await asyncio.to_thread(show, 1, state="Z", exit_code=9)
    child.kill()

    def ended() -> bool:
        [view] = ranks.snapshot().ranks
        return view.process.exit is not None

    await until(ended)
    [view] = ranks.snapshot().ranks
    assert view.label == RankLabel("7", "0")
    assert view.process.exit is not None
    assert view.process.exit.oom
    assert OwnedScanner.users == {"process"}
    await exporter.drain()


async def test_an_exit_at_the_end_of_a_run_is_not_lost(node: Node) -> None:
    """A status that is read at the exit reaches the table, even if the watch has stopped."""
    keys = node.add(range(10, 12), "4711", status=FAILED)
    node.exits.note_exit(keys[0])
    await node.exits.stop()
    node.ranks.tick()
    assert (node.learnt(), node.states("4711")) == (1, {"dead", "alive"})
