"""A node with ranks, a fake /proc and one exporter, for tests of exporters that follow jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fake_clock import FakeClock
from lent import lent, stop_all
from proc_tree import ProcTree
from rank_table import RankTable, environment, owned

from agent.app.lease import end_writers
from agent.helper.client import Helpers
from agent.ranks.rank.facts import Owner
from agent.sdk.exporter import StateSection


class ExporterNode:
    """A node with exporter ``name``, which ``build`` makes; ``lends`` replaces parts of the exporter's context."""

    def __init__(self, name: str, folder: Path, build: Callable[[], Any], **lends: Any) -> None:
        self.runner = asyncio.Runner()
        self.name, self.folder, self.build = name, folder, build
        self.proc = ProcTree(folder / "proc")
        self.clock = FakeClock()
        self.ranks = RankTable(self.clock, "here", settle_at_once=True)
        self.helpers = Helpers(self.clock)
        self.lends = {"ranks": self.ranks, "helper": self.helpers.lend} | lends
        self.ctx = lent(name, self.clock, folder, **self.lends)
        self.exporter = build()

    def observe(self, pid: int, rank: int, uid: int, given: Mapping[str, str] = {}, **more: Any) -> Any:
        """Add a rank to the table and return its process key; ``given``: further environment variables."""
        options = {name: more.pop(name) for name in ("job", "world") if name in more}
        variables = environment(rank, port="1", **options) | given
        facts = owned(pid, variables, Owner("user", str(uid)), uid=uid, **more)
        self.ranks.observe_process(facts)
        self.ranks.tick()
        return facts.key

    def start(self) -> None:
        self.runner.run(self.exporter.start(self.ctx))

    def look(self, seconds: float = 5.0) -> dict[str, float]:
        """Let time pass, update, and return the exported values, keyed by name and label values."""
        self.clock.advance(seconds)
        self.runner.run(self.exporter.update())
        return self.shown()

    def shown(self) -> dict[str, float]:
        """Return the exported values, keyed by name and label values."""
        return {
            "/".join((metric.family.name.removeprefix("rankwatch_"), *labels)): value
            for metric in self.exporter.families(self.exporter.snapshot())
            for labels, value in zip(metric.labels, metric.values, strict=True)
        }

    def restart(self) -> None:
        """Stop the exporter, and start a new exporter from its checkpoint."""
        self.stop()
        state = StateSection(self.name, self.ctx.state.published)
        self.ctx = lent(self.name, self.clock, self.folder, **(self.lends | {"state": state}))
        self.exporter = self.build()
        self.start()

    def stop(self) -> None:
        self.runner.run(self.exporter.drain())
        end_writers(self.ctx)
        self.runner.run(stop_all(self.helpers))

    def end(self) -> None:
        """Stop the exporter, and close the event loop."""
        self.stop()
        self.runner.close()
