"""A site for tests of the evidence exporter: two ranks, and a directory for bundles."""

import asyncio
import subprocess
import sys
import tarfile
from pathlib import Path

from fake_clock import FakeClock
from lent import lent
from rank_table import KILLED, RankTable, environment

from agent.evidence import folder
from agent.evidence.summary import Summary
from agent.ranks.rank.facts import ProcessFacts
from agent.sdk.evidence import EvidenceRegistry
from agent.sdk.exporter import Roots
from agent.sdk.ranks import ProcessKey
from exporters.evidence import EvidenceConfig, EvidenceExporter

TOLD = "planted-do-not-keep"
RANKS = 2


class Site:
    """Two ranks of a job, whose sleeping processes hold secrets, and an exporter that collects evidence."""

    def __init__(self, root: Path, **settings: float) -> None:
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        self.registry = EvidenceRegistry()
        self.folder = root / "state" / "evidence"
        self.folder.parent.mkdir(parents=True)
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)", f"--password={TOLD}"]
        self.processes = [subprocess.Popen(command, env={"TOKEN": TOLD}) for _ in range(RANKS)]
        self.keys = [ProcessKey(process.pid, 5) for process in self.processes]
        self.config = EvidenceConfig(path=str(self.folder), **settings)  # type: ignore[arg-type]
        self.exporter = EvidenceExporter(self.config)

    async def start(self) -> None:
        """Start the exporter and then the ranks, because the exporter must register its variables first."""
        context = lent("evidence", self.clock, ranks=self.ranks, evidence=self.registry.of("evidence"), roots=Roots())
        await self.exporter.start(context)
        for rank, key in enumerate(self.keys):
            known = {**environment(rank, RANKS, "7"), "NCCL_ALGO": "Ring", "AWS_SECRET_ACCESS_KEY": TOLD}
            self.ranks.observe_process(ProcessFacts(key, 1.7e9, key.pid, "ann", "thread", known))
        await self.look(1)

    async def start_and_kill(self, rank: int) -> None:
        """Start the exporter, kill a rank, and wait for the bundle."""
        await self.start()
        self.kill(rank)
        await self.look(30)

    async def look(self, times: int = 20) -> None:
        """Let ``times`` seconds pass; each second tick the table, update the exporter, and wait for its bundle."""
        for _ in range(times):
            self.clock.advance(1.0)
            self.ranks.tick()
            await self.exporter.update()
            if self.exporter._task is not None:
                await asyncio.wait({self.exporter._task})

    def kill(self, rank: int) -> None:
        self.ranks.observe_exit(self.keys[rank], KILLED)

    async def summaries(self) -> list[Summary]:
        """Return the summaries of the bundles, the oldest first."""
        return await asyncio.to_thread(lambda: [summary for _, summary in folder.summaries(self.folder)])

    async def members(self) -> dict[str, bytes]:
        return await asyncio.to_thread(self._members)

    def _members(self) -> dict[str, bytes]:
        with tarfile.open(self.folder / f"{folder.bundles(self.folder)[-1]}.tar.gz") as archive:
            return {member.name: (archive.extractfile(member) or sys.stdin.buffer).read() for member in archive}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
