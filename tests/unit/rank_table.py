"""A rank table, its clock, and the evidence that tests put into it."""

from __future__ import annotations

from signal import SIGKILL

from fake_clock import FakeClock

from agent.core.identity import ProcessKey, RankLabel, WriterKey
from agent.ranks.table import RankTable
from agent.ranks.verdict import ExitStatus
from agent.system.procfs import ProcessFacts

WORLD = "aaaaaaaaaaaaaa"
TENSOR = "bbbbbbbbbbbbbb"
KILLED = ExitStatus(known=True, signal=SIGKILL)


def environment(rank: int, world: int = 8, job: str = "4711", port: str = "29500") -> dict[str, str]:
    """What Slurm and torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 4),
        "WORLD_SIZE": str(world),
        "SLURM_JOB_ID": job,
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": port,
    }


def facts(pid: int, env: dict[str, str] | None = None) -> ProcessFacts:
    """A rank process."""
    return ProcessFacts(ProcessKey(pid, 5000), 1.7e9, pid, "alice", "thread", env)


def writer_key(pid: int, generation: int = 0) -> WriterKey:
    """A writer with its own file."""
    return WriterKey(64, pid, generation, "here", pid)


class Table:
    """A table and its clock."""

    def __init__(self, once: bool = False) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=once)

    def add(self, pid: int, env: dict[str, str] | None = None) -> ProcessKey:
        found = facts(pid, env)
        assert self.ranks.observe_process(found)
        return found.key

    def tick(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.ranks.tick()

    def labels(self) -> dict[RankLabel, int]:
        return {v.label: v.process.facts.key.pid for v in self.ranks.snapshot().ranks if v.process.facts}

    def states(self) -> dict[str, str]:
        views = self.ranks.snapshot().ranks
        return {v.label.rank: v.process.verdict.state for v in views if v.process.verdict is not None}
