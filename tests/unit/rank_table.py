"""A rank table, its clock, and helpers that fill it."""

from __future__ import annotations

import threading
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from typing import Any

import msgspec
from fake_clock import FakeClock

from agent.core.identity import Membership, ProcessKey, RankLabel, WriterKey
from agent.ranks import table
from agent.ranks.rank.exit_status import ExitStatus
from agent.ranks.rank.facts import Owner, ProcessFacts
from agent.ranks.snapshot import PublishedProcess, RankView
from agent.ranks.writer import RankWriter

WORLD = "aaaaaaaaaaaaaa"
TENSOR = "bbbbbbbbbbbbbb"
WELL, FAILED, UNKNOWN = ExitStatus(known=True), ExitStatus(known=True, code=1), ExitStatus(known=False)
CRASHED, ABORTED = ExitStatus(known=True, signal=SIGSEGV), ExitStatus(known=True, signal=SIGABRT)
TERMINATED, KILLED = ExitStatus(known=True, signal=SIGTERM), ExitStatus(known=True, signal=SIGKILL)
OOM = ExitStatus(known=True, signal=SIGKILL, oom=True)


def environment(rank: int, world: int = 8, job: str = "4711", port: str = "29500") -> dict[str, str]:
    """Return the environment that Slurm and torchrun would set."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank % 4), "WORLD_SIZE": str(world), "SLURM_JOB_ID": job,
        "MASTER_ADDR": "node-a", "MASTER_PORT": port,
    }  # fmt: skip


def facts(pid: int, env: dict[str, str] | None = None) -> ProcessFacts:
    """Return the facts of a rank process."""
    return ProcessFacts(ProcessKey(pid, 5000), 1.7e9, pid, "alice", "thread", env)


def writer_key(pid: int, generation: int = 0) -> WriterKey:
    """Return the key of a writer with its own file."""
    return WriterKey(64, pid, generation, "here", pid)


def view(pid: int, rank: str, job: str = "4711", *, exited: bool = False, source: str = "", **more: Any) -> RankView:
    """Return the published view of a process's only rank; ``more``: fields of the process's facts."""
    known = msgspec.structs.replace(facts(pid), **more)
    label = RankLabel(job, rank)
    exited_at = 1.0 if exited else None
    return RankView(label, 0, PublishedProcess(0.0, facts=known, slots=[label], source=source, exited_at=exited_at))


def owned(
    pid: int, env: dict[str, str] | None, owner: Owner, *, uid: int = 1000, parent: int = 0, **more: Any
) -> ProcessFacts:
    """Return the facts of an owner's rank process; ``more``: further fields."""
    return msgspec.structs.replace(facts(pid, env), owner=owner, uid=uid, parent_pid=parent, **more)


class RankTable(table.RankTable):
    """A rank table with the methods of its writers.

    A test that uses the table on a second thread fails."""

    def __init__(self, clock: FakeClock, hostname: str, settle_at_once: bool = False) -> None:
        object.__setattr__(self, "owner", threading.get_ident())
        super().__init__(clock, hostname, settle_at_once)
        self.writer = RankWriter(self, "tests")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def __getattribute__(self, name: str) -> Any:
        if object.__getattribute__(self, "owner") != threading.get_ident():
            raise AssertionError(f"RankTable.{name} on thread {threading.current_thread().name}")
        return super().__getattribute__(name)


class Table:
    """A table and its clock."""

    def __init__(self, once: bool = False) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=once)

    def add(self, pid: int, env: dict[str, str] | None = None) -> ProcessKey:
        return self.add_facts(facts(pid, env))

    def add_facts(self, process: ProcessFacts, then: float | None = None) -> ProcessKey:
        """Add a process; tick ``then`` seconds later."""
        assert self.ranks.observe_process(process)
        if then is not None:
            self.tick(then)
        return process.key

    def record(self, pid: int, memberships: list[Membership], key: ProcessKey, at: float | None = None) -> None:
        """Record memberships and progress of a writer, and link the writer to a process."""
        self.ranks.observe_records(writer_key(pid), memberships, at)
        self.ranks.link(writer_key(pid), key)

    def restarted(self, seconds: float = 0.0, saved: bytes | None = None) -> Table:
        """Return the table of an agent that starts ``seconds`` later from this table's checkpoint."""
        again = Table()
        again.clock.now = self.clock.now + seconds
        again.ranks.load(saved or self.ranks.dump())
        return again

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.ranks.tick()

    def labels(self) -> dict[RankLabel, int]:
        return {v.label: v.process.facts.key.pid for v in self.ranks.snapshot().ranks if v.process.facts}

    def states(self) -> dict[str, str]:
        """Judge the changed jobs, as the agent does at the end of each loop; return each rank's state."""
        self.ranks.judge_changed()
        views = self.ranks.snapshot().ranks
        return {v.label.rank: v.process.verdict.state for v in views if v.process.verdict is not None}
