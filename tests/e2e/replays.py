"""Recorded jobs as input for rules: the agent's own code reads and renders them, with one clock.

The records of each rank are written second by second to a directory that all nodes share. Every node has its own
exporter and rank table. The scrapes of all nodes become the input of `promtool test rules`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TextIO

from fake_clock import FakeClock
from lent import lent
from rank_table import RankTable
from recordings import FIRST_PID, HOSTS, WORLD, Phase, Record, host_of, prolonged
from rules import series_key

from agent.core.metrics import Family, Metric
from agent.export.agent_families import EXPORTER_UP
from agent.ranks import families as rank_families, liveness_families
from agent.sdk.ranks import ProcessFacts, ProcessKey
from exporters.inspector.exporter import InspectorConfig, InspectorExporter

UP = (
    Metric(Family("up", "gauge", "The scrape went well."), [()], [1.0]),
    Metric(Family("scrape_duration_seconds", "gauge", "How long it took."), [()], [0.01]),
)
"""The series that Prometheus itself adds to each scrape."""
SCRAPE_SECONDS = 15
JITTER_SECONDS = 2


class Process(NamedTuple):
    """A rank of a job of ``world`` ranks, and its process."""

    job_id: str
    rank: int
    world: int
    pid: int


def environment_of(process: Process) -> dict[str, str]:
    """Return the environment of a rank's process."""
    return {"RANK": str(process.rank), "WORLD_SIZE": str(process.world), "SLURM_JOB_ID": process.job_id}


class Node:
    """A node with an agent's rank table and Inspector exporter; the node's ``processes`` write below ``directory``."""

    def __init__(self, name: str, directory: Path, processes: Sequence[Process], chance: random.Random) -> None:
        self._name = name
        self._clock = FakeClock()
        self._table = RankTable(self._clock, name)
        self._exporter = InspectorExporter(InspectorConfig(paths=[str(directory)]))
        self._runner = asyncio.Runner()
        self._processes = {process.pid: ProcessKey(process.pid, 1) for process in processes}
        self._chance = chance
        self._offset_seconds = chance.randrange(JITTER_SECONDS, SCRAPE_SECONDS - JITTER_SECONDS)
        self.scraped_at: list[int] = []
        self.series: dict[str, dict[int, float]] = {}
        self._keys: dict[tuple[str, str, tuple[str, ...]], str] = {}
        self._facts = [
            ProcessFacts(
                self._processes[process.pid],
                self._clock.time(),
                process.pid,
                "alice",
                "thread",
                environment_of(process),
            )
            for process in processes
        ]

    def __enter__(self) -> Node:
        exits = self._table.liveness.facts.of("inspector")
        context = lent("inspector", self._clock, hostname=self._name, ranks=self._table, exits=exits)
        self._runner.run(self._exporter.start(context))
        for facts in self._facts:
            self._table.observe_process(facts)
        self._runner.run(self._exporter.update())  # files that exist at the first look are read from their end
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._exporter.drain())
        self._runner.close()

    def advance(self, second: int) -> None:
        """Advance by one second: read the new records, and scrape if a scrape is due."""
        self._clock.advance(1.0)
        self._read()
        if second % SCRAPE_SECONDS == 0:
            jitter = self._chance.randint(-JITTER_SECONDS, JITTER_SECONDS)
            self.scraped_at.append(second + self._offset_seconds + jitter)
        if self.scraped_at and second == self.scraped_at[-1]:
            self._scrape(second)

    def _read(self) -> None:
        self._runner.run(self._exporter.update())
        for writer_key in self._table.unlinked_writers():  # in the agent, the process exporter finds the writers
            self._table.link(writer_key, self._processes[writer_key.pid])
        self._table.tick()

    def _scrape(self, second: int) -> None:
        up = EXPORTER_UP.rows()
        up.add(("inspector",), 1)
        self._keep("rankwatch-liveness", UP, second)
        self._keep("rankwatch", UP, second)
        ranks = self._table.timed_snapshot()
        self._keep("rankwatch-liveness", liveness_families.families(ranks), second)
        self._keep("rankwatch", rank_families.families(ranks), second)
        self._keep("rankwatch", (up.metric, *self._exporter.families(self._exporter.snapshot())), second)

    def _keep(self, job: str, families: Iterable[Metric], second: int) -> None:
        for metric in families:
            name = metric.family.name
            is_clock = name == "rankwatch_node_time_seconds"  # promtool's time begins at 0
            for values, value in zip(metric.labels, metric.values, strict=True):
                key = self._keys.get((job, name, values))
                if key is None:
                    own = (("instance", f"{self._name}:19028"), ("node", self._name), ("job", job))
                    key = series_key(name, (*zip(metric.family.labels, values, strict=True), *own))
                    self._keys[job, name, values] = key
                self.series.setdefault(key, {})[second] = second if is_clock else value

    def records_read(self) -> float:
        families = self._exporter.families(self._exporter.snapshot())
        return sum(
            value
            for metric in families
            if metric.family.name == "rankwatch_inspector_records_total"
            for labels, value in zip(metric.labels, metric.values, strict=True)
            if "accepted" in labels
        )

    def input_series(self) -> list[dict[str, str]]:
        """Return the scraped samples in promtool's form, with a value for each second."""
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


JOB = "4711"
EPOCH_US = int(FakeClock().time() * 1_000_000)
"""The start of a replay."""


def replay(phases: list[Phase], hosts: int) -> list[dict[str, str]]:
    """Replay ``phases`` on one node or two; return the scraped samples in promtool's form."""
    records = prolonged(phases, hosts, EPOCH_US)
    return play(records, hosts, sum(phase.seconds for phase in phases), seed=f"{phases} {hosts}")


def play(records: Iterator[Record], hosts: int, seconds: int, *, seed: str) -> list[dict[str, str]]:
    """Write the records in order of time; return the scraped samples."""
    chance = random.Random(seed)  # noqa: S311  scrapes at the same instants every time
    processes = [Process(JOB, rank, WORLD, FIRST_PID + rank) for rank in range(WORLD)]
    at_home = {
        name: [process for process in processes if host_of(process.rank, hosts) == name] for name in HOSTS[:hosts]
    }
    record = next(records, None)
    logs: dict[int, TextIO] = {}
    written = 0
    with TemporaryDirectory() as shared, ExitStack() as stack:
        nodes = [stack.enter_context(Node(name, Path(shared), each, chance)) for name, each in at_home.items()]
        for second in range(seconds):
            while record is not None and record.time_us < EPOCH_US + (second + 1) * 1_000_000:
                if record.rank not in logs:
                    name = f"{host_of(record.rank, hosts)}-pid{FIRST_PID + record.rank}.log"
                    logs[record.rank] = stack.enter_context((Path(shared) / name).open("w"))
                logs[record.rank].write(record.line)
                written += 1
                record = next(records, None)
            for log in logs.values():
                log.flush()
            for node in nodes:
                node.advance(second)
        assert sum(node.records_read() for node in nodes) == written
    return [series for node in nodes for series in node.input_series()]
