"""A node's exporter of Inspector records and rank table, under a clock of ours, and what scrapes of it show."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fake_clock import FakeClock
from rules import series_key

from agent.core.guard import Guard
from agent.core.metrics import Family, Metric
from agent.evidence.board import EvidenceBoard
from agent.export.exporter_families import EXPORTER_UP
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.helper.client import Helpers
from agent.ranks import families as rank_families, liveness_page
from agent.sdk.exporter import Context, Logger, OwnThread, Roots, StateSection
from agent.sdk.metrics import Admission
from agent.sdk.ranks import ProcessFacts, ProcessKey, RankTable
from exporters.inspector.exporter import InspectorConfig, InspectorExporter

UP = (
    Metric(Family("up", "gauge", "The scrape went well."), [()], [1.0]),
    Metric(Family("scrape_duration_seconds", "gauge", "How long it took."), [()], [0.01]),
)
"""What Prometheus adds to each scrape."""
SCRAPE_SECONDS = 15
JITTER_SECONDS = 2


class Process(NamedTuple):
    """A rank of a job of ``world`` ranks, and its process; ``settings``: what else it has in its environment."""

    job_id: str
    rank: int
    world: int
    pid: int
    settings: Mapping[str, str] = MappingProxyType({})


def environment_of(process: Process) -> dict[str, str]:
    """Return what a rank's process has in its environment."""
    own = {"RANK": str(process.rank), "WORLD_SIZE": str(process.world), "SLURM_JOB_ID": process.job_id}
    return {**process.settings, **own}


class Node:
    """An agent's parts; ``processes`` run here and write below ``directory``.

    ``wanted``: the names of the metrics that are kept, or all. ``read_seconds``: how often the files are looked at.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        processes: Sequence[Process],
        chance: random.Random,
        wanted: frozenset[str] | None = None,
        read_seconds: int = 1,
    ) -> None:
        self._name = name
        self._clock = FakeClock()
        self._table = RankTable(self._clock, name)
        self._exporter = InspectorExporter(InspectorConfig(paths=[str(directory)]))
        self._runner = asyncio.Runner()
        self._processes = {each.pid: ProcessKey(each.pid, 1) for each in processes}
        self._chance = chance
        self._wanted = wanted
        self._read_seconds = read_seconds
        self._offset_seconds = chance.randrange(JITTER_SECONDS, SCRAPE_SECONDS - JITTER_SECONDS)
        self.scraped_at: list[int] = []
        self.series: dict[str, dict[int, float]] = {}
        self._keys: dict[tuple[str, str, tuple[str, ...]], str] = {}
        self._facts = [
            ProcessFacts(
                self._processes[each.pid], self._clock.time(), each.pid, "alice", "thread", environment_of(each)
            )
            for each in processes
        ]

    def __enter__(self) -> Node:
        self._runner.run(
            self._exporter.start(
                Context(
                    roots=Roots(),
                    clock=self._clock,
                    hostname=self._name,
                    ranks=self._table,
                    state=StateSection("inspector", None),
                    admit=Admission(),
                    thread=OwnThread,
                    helper=Helpers(self._clock).lend,
                    checks=HealthLedger(self._clock).of("test"),
                    hardware=Hardware().of("inspector"),
                    evidence=EvidenceBoard().of("inspector"),
                    exits=self._table.liveness.facts.of("inspector"),
                    log=Logger("inspector"),
                    guard=Guard(Logger("inspector")),
                )
            )
        )
        for facts in self._facts:
            self._table.observe_process(facts)
        self._runner.run(self._exporter.update())  # files that are there at the first look are read from their end
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._exporter.drain())
        self._runner.close()

    def advance(self, second: int) -> None:
        """Let a second pass: read what was written, and be scraped, if it is time to."""
        self._clock.advance(1.0)
        if second % self._read_seconds == 0:
            self.read()
        if second % SCRAPE_SECONDS == 0:
            jitter = self._chance.randint(-JITTER_SECONDS, JITTER_SECONDS)
            self.scraped_at.append(second + self._offset_seconds + jitter)
        if self.scraped_at and second == self.scraped_at[-1]:
            self._scrape(second)

    def read(self) -> None:
        """Look at the files, and let the rank table take note."""
        self._runner.run(self._exporter.update())
        for writer_key in self._table.unlinked_writers():  # the process exporter finds who holds the file
            self._table.link(writer_key, self._processes[writer_key.pid])
        self._table.tick()

    def _scrape(self, second: int) -> None:
        up = EXPORTER_UP.rows()
        up.add(("inspector",), 1)
        self._keep("rankwatch-liveness", UP, second)
        self._keep("rankwatch", UP, second)
        ranks = self._table.snapshot()
        self._keep("rankwatch-liveness", liveness_page.families(ranks), second)
        self._keep("rankwatch", rank_families.families(ranks), second)
        self._keep("rankwatch", (up.metric, *self._exporter.families(self._exporter.snapshot())), second)

    def _keep(self, job: str, families: Iterable[Metric], second: int) -> None:
        for metric in families:
            name = metric.family.name
            if self._wanted is not None and name not in self._wanted:
                continue
            is_clock = name == "rankwatch_node_time_seconds"  # promtool's time begins at 0
            for values, value in zip(metric.labels, metric.values, strict=True):
                key = self._keys.get((job, name, values))
                if key is None:
                    own = (("instance", f"{self._name}:19028"), ("node", self._name), ("job", job))
                    key = series_key(name, (*zip(metric.family.labels, values, strict=True), *own))
                    self._keys[job, name, values] = key
                self.series.setdefault(key, {})[second] = second if is_clock else value

    def records_read(self) -> float:
        """Return how many records were accepted so far."""
        families = self._exporter.families(self._exporter.snapshot())
        return sum(
            value
            for metric in families
            if metric.family.name == "rankwatch_inspector_records_total"
            for labels, value in zip(metric.labels, metric.values, strict=True)
            if "accepted" in labels
        )

    def input_series(self) -> list[dict[str, str]]:
        """Return what the scrapes saw as promtool reads it, with a value for each second."""
        return [{"series": key, "values": self._values(samples)} for key, samples in self.series.items()]

    def _values(self, samples: dict[int, float]) -> str:
        words: list[str] = []
        seconds = 0
        shown = False
        for scraped_at in self.scraped_at:
            if scraped_at > seconds:
                words.append(f"_x{scraped_at - seconds}")
            seconds = scraped_at + 1
            value = samples.get(scraped_at)
            words.append("_" if value is None and not shown else "stale" if value is None else repr(value))
            shown = value is not None
        return " ".join(words)
