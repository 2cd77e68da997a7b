"""Runs one exporter, as in a single pass of the agent, on a recorded tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from client_metrics import encode
from fake_clock import FakeClock
from rank_table import RankTable

from agent.app.discovery import load_spec
from agent.app.lease import Lease, Lender
from agent.core.checkpoint import StateFile
from agent.sdk.exporter import Exporter, Logger, Roots
from agent.sdk.metrics import Metric
from agent.sdk.ranks import ProcessFacts

DATA = Path(__file__).parents[1] / "data"
HOSTNAME = "gpu-node-00"


class Bench:
    """Exporter ``name`` on ``root`` (proc, sys, run and further recorded data).

    Its configuration is ``section_text``, or section.yml of its data directory, with {root} replaced by ``root``. The
    rank table has the processes of ranks.json in that directory, if any."""

    def __init__(self, name: str, root: Path, section_text: str = "") -> None:
        self.spec = load_spec(name)
        text = section_text or (DATA / name / "section.yml").read_text()
        section = yaml.safe_load(text.replace("{root}", str(root)))
        self.exporter: Exporter = self.spec.build(msgspec.convert(section, self.spec.config))
        clock = self.clock = FakeClock()
        self.ranks = RankTable(clock, HOSTNAME, settle_at_once=True)
        known = root / "ranks.json"
        self._known = msgspec.json.decode(known.read_bytes(), type=list[ProcessFacts]) if known.exists() else []
        roots = Roots(root / "proc", root / "sys", root / "run")
        state = StateFile(None, "", Logger("test"))
        self.lender = Lender(roots=roots, clock=clock, hostname=HOSTNAME, ranks=self.ranks, state=state, once=True)
        self._lease = Lease(self.lender, name, self.spec.checkpoint_bytes)

    async def begin(self) -> None:
        """Start the exporter, and add the ranks afterwards."""
        await self.exporter.start(self._lease.context)
        for facts in self._known:
            self.ranks.observe_process(facts)
        if self._known:
            self.ranks.tick()

    async def look(self) -> Any:
        """Start, update once, bind the ranks, and return the snapshot."""
        await self.begin()
        await self.exporter.update()
        self.ranks.tick()
        return self.exporter.snapshot()

    async def end(self) -> None:
        """Drain the exporter, and end its lease."""
        await self.exporter.drain()
        await self._lease.close()

    def families(self, snapshot: object) -> list[Metric]:
        """Return the snapshot's families in a fixed order of series, because sources list files in any order."""
        return [_in_order(family) for family in self.exporter.families(snapshot)]


def exposition(families: Sequence[Metric]) -> str:
    """Return families in the text format."""
    return encode(families).body.decode()


def _in_order(family: Metric) -> Metric:
    series = sorted(zip(family.labels, family.values, strict=True), key=lambda one: one[0])
    return Metric(family.family, [labels for labels, _ in series], [value for _, value in series])
