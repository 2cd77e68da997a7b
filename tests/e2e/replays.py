"""Recorded jobs read, scraped and rendered by the agent's own parts, under one clock, for rules to judge.

The records of each rank are written second by second to a directory that all nodes share. Every node has an exporter
and a rank table of its own. What scrapes of them show becomes the input of `promtool test rules`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TextIO

from client_metrics import samples
from fake_clock import FakeClock
from fleets import series_key
from recordings import FIRST_PID, HOSTS, WORLD, Phase, Record, host_of, prolonged

from agent.api import Admission, Context, Logger, OwnThread, ProcessFacts, ProcessKey, RankTable, Roots, StateSection
from agent.core.guard import Guard
from agent.export.exporter_families import EXPORTER_UP
from agent.hardware.inventory import Hardware
from agent.hardware.ledger import HealthLedger
from agent.helper.client import Helpers
from agent.ranks import families as rank_families
from exporters.inspector.exporter import InspectorConfig, InspectorExporter

JOB = "4711"
SCRAPE_SECONDS = 15
JITTER_SECONDS = 2
EPOCH_US = int(FakeClock().time() * 1_000_000)
"""When a replay begins."""
EMPTY: Mapping[str, str] = MappingProxyType({})


class Node:
    """An agent's exporter and rank table, with ``ranks`` that run here and all of the job's files in ``directory``.

    ``settings``: what else the ranks have in their environment.
    """

    def __init__(
        self, name: str, directory: Path, ranks: list[int], chance: random.Random, settings: Mapping[str, str]
    ) -> None:
        self._name = name
        self._clock = FakeClock()
        self._table = RankTable(self._clock, name)
        self._exporter = InspectorExporter(InspectorConfig(paths=[str(directory)]))
        self._runner = asyncio.Runner()
        self._processes = {FIRST_PID + rank: ProcessKey(FIRST_PID + rank, 1) for rank in ranks}
        self._chance = chance
        self._offset_seconds = chance.randrange(JITTER_SECONDS, SCRAPE_SECONDS - JITTER_SECONDS)
        self.scraped_at: list[int] = []
        self.series: dict[str, dict[int, float]] = {}
        self._environments = [
            {**settings, "RANK": str(rank), "WORLD_SIZE": str(WORLD), "SLURM_JOB_ID": JOB} for rank in ranks
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
                    log=Logger("inspector"),
                    guard=Guard(Logger("inspector")),
                )
            )
        )
        for key, environment in zip(self._processes.values(), self._environments, strict=True):
            self._table.observe_process(ProcessFacts(key, self._clock.time(), key.pid, "alice", "thread", environment))
        self._runner.run(self._exporter.update())  # files that are there at the first look are read from their end
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._exporter.drain())
        self._runner.close()

    def advance(self, second: int) -> None:
        """Let a second pass: read what was written in it, and be scraped if it is time."""
        self._clock.advance(1.0)
        self._runner.run(self._exporter.update())
        for writer_key in self._table.unlinked_writers():
            self._table.link(
                writer_key, self._processes[writer_key.pid]
            )  # the process exporter finds who holds the file
        self._table.tick()
        if second % SCRAPE_SECONDS == 0:
            jitter = self._chance.randint(-JITTER_SECONDS, JITTER_SECONDS)
            self.scraped_at.append(second + self._offset_seconds + jitter)
        if self.scraped_at and second == self.scraped_at[-1]:
            self._scrape(second)

    def _scrape(self, second: int) -> None:
        own = (("instance", f"{self._name}:19028"), ("node", self._name))
        up = EXPORTER_UP.rows()
        up.add(("inspector",), 1)
        pages = {
            "rankwatch-liveness": rank_families.families(self._table.snapshot()),
            "rankwatch": (up.metric, *self._exporter.families(self._exporter.snapshot())),
        }
        for job, families in pages.items():
            labels = (*own, ("job", job))
            found = {series_key("up", labels): 1.0, series_key("scrape_duration_seconds", labels): 0.01}
            for sample in samples(families):
                is_clock = sample.name == "rankwatch_node_time_seconds"  # promtool's time begins at 0
                found[series_key(sample.name, (*sample.labels.items(), *labels))] = second if is_clock else sample.value
            for key, value in found.items():
                self.series.setdefault(key, {})[second] = value

    def records_read(self) -> float:
        """Return how many records were accepted so far."""
        families = self._exporter.families(self._exporter.snapshot())
        return sum(
            sample.value
            for sample in samples(families)
            if sample.name == "rankwatch_inspector_records_total" and sample.labels["result"] == "accepted"
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


def replay(phases: list[Phase], hosts: int) -> list[dict[str, str]]:
    """Let a job on one node or two live through ``phases``; return what scrapes saw as promtool reads it."""
    records = prolonged(phases, hosts, EPOCH_US)
    return play(records, hosts, sum(phase.seconds for phase in phases), seed=f"{phases} {hosts}")


def play(
    records: Iterator[Record], hosts: int, seconds: int, *, seed: str, settings: Mapping[str, str] = EMPTY
) -> list[dict[str, str]]:
    """Let ranks with these ``settings`` write records, in the order of their times; return what scrapes saw."""
    chance = random.Random(seed)  # noqa: S311  scrapes at the same instants every time
    at_home = {name: [rank for rank in range(WORLD) if host_of(rank, hosts) == name] for name in HOSTS[:hosts]}
    record = next(records, None)
    logs: dict[int, TextIO] = {}
    written = 0
    with TemporaryDirectory() as shared, ExitStack() as stack:
        nodes = [
            stack.enter_context(Node(name, Path(shared), ranks, chance, settings)) for name, ranks in at_home.items()
        ]
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
