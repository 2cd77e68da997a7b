"""Recorded jobs that go on for as long as rules need, read, scraped and rendered by the agent's own parts.

The records of each rank are repeated as if the job had gone on, with times and numbers that rise, and written second
by second to a directory that all nodes share. Every node has an exporter and a rank table of its own under one clock.
What scrapes of them show becomes the input of `promtool test rules`.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TextIO

from fake_clock import FakeClock
from fleets import series_key
from inspector_records import DATA

from agent import rank_families
from agent.api import Admission, Context, Logger, OwnThread, ProcessFacts, ProcessKey, RankTable, Roots, StateSection
from exporters.inspector.exporter import Config, InspectorExporter

JOB = "4711"
WORLD = 8
HOSTS = ("gpu-node-00", "gpu-node-01")
SCRAPE_SECONDS = 15
JITTER_SECONDS = 2
FIRST_PID = 1000
_RISING = re.compile(r'"(?P<name>dump_timestamp_us|coll_sn|p2p_sn|\w+_ts)":(?P<number>\d+)')
_NUMBERS = ("coll_sn", "p2p_sn")
_Kind = tuple[str, str]
"""Communicator and collective (`p2p` for all sends and receives): what is numbered together."""


class Phase(NamedTuple):
    """A recording, and for how long the job is like it; a share of the records of ``lossy_rank`` is lost."""

    folder: str
    seconds: int
    lossy_rank: int | None = None


class _Line(NamedTuple):
    """One record with room for its times and its number, and what these were."""

    after_us: int
    rank: int
    kind: _Kind
    text: str
    rising: tuple[tuple[bool, int], ...]
    """Each number that rises: whether it is the record's number (or a time, in microseconds), and its value."""


class _Recording:
    """The lines of all ranks by time; ``numbers`` are the first and last of each kind."""

    def __init__(self, folder: str, hosts: int) -> None:
        lines: list[_Line] = []
        self.numbers: dict[_Kind, tuple[int, int]] = {}
        for rank, path in enumerate(sorted((DATA / folder).glob("*.log.xz"))):  # pids rise with ranks
            lines += [self._line(text, rank, hosts) for text in lzma.open(path, "rt")]
        lines.sort(key=lambda line: line.after_us)
        self.begin_us = lines[0].after_us
        self.lines = [line._replace(after_us=line.after_us - self.begin_us) for line in lines]
        span_us = self.lines[-1].after_us
        self.span_us = span_us + span_us * WORLD // len(lines)  # and the pause between two records of a rank

    def _line(self, text: str, rank: int, hosts: int) -> _Line:
        record = json.loads(text)
        perf = record.get("coll_perf") or record["p2p_perf"]
        kind = (record["header"]["id"], perf.get("coll", "p2p"))
        number = perf["coll_sn"] if "coll" in perf else perf["p2p_sn"]
        first, last = self.numbers.get(kind, (number, number))
        self.numbers[kind] = (min(first, number), max(last, number))
        rising = tuple((found["name"] in _NUMBERS, int(found["number"])) for found in _RISING.finditer(text))
        text = text.replace(f'"pid":{record["metadata"]["pid"]}', f'"pid":{FIRST_PID + rank}')
        text = text.replace(record["metadata"]["hostname"], host_of(rank, hosts))
        template = _RISING.sub(r'"\g<name>":%d', text.replace("%", "%%"))
        return _Line(record["metadata"]["dump_timestamp_us"], rank, kind, template, rising)


def host_of(rank: int, hosts: int) -> str:
    """Return the node of a rank: of two the one that the recordings name, or the first of all."""
    return HOSTS[rank * hosts // WORLD]


def prolonged(phases: list[Phase], hosts: int, begin_us: int) -> Iterator[tuple[int, int, str]]:
    """Yield each record's time in microseconds since the epoch, its rank and its line; times rise, and numbers too.

    Half of the records of a lossy rank are left out, chosen by chance.
    """
    chance = random.Random(20)  # noqa: S311  the same records every time
    next_numbers: dict[_Kind, int] = {}
    for phase in phases:
        recording = _Recording(phase.folder, hosts)
        end_us = begin_us + phase.seconds * 1_000_000
        while begin_us < end_us:
            risen = {kind: next_numbers.get(kind, first) - first for kind, (first, _) in recording.numbers.items()}
            later_us = begin_us - recording.begin_us
            for line in recording.lines:
                if line.rank == phase.lossy_rank and chance.random() < 0.5:
                    continue
                more = risen[line.kind]
                values = tuple(value + (more if is_number else later_us) for is_number, value in line.rising)
                yield begin_us + line.after_us, line.rank, line.text % values
            next_numbers |= {kind: last + risen[kind] + 1 for kind, (_, last) in recording.numbers.items()}
            begin_us += recording.span_us


class Node:
    """An agent's exporter and rank table, with ``ranks`` that run here and all of the job's files in ``directory``."""

    def __init__(self, name: str, directory: Path, ranks: list[int], chance: random.Random) -> None:
        self._name = name
        self._clock = FakeClock()
        self._table = RankTable(self._clock, name)
        self._exporter = InspectorExporter(Config(paths=[str(directory)]))
        self._runner = asyncio.Runner()
        self._processes = {FIRST_PID + rank: ProcessKey(FIRST_PID + rank, 1) for rank in ranks}
        self._chance = chance
        self._offset_seconds = chance.randrange(JITTER_SECONDS, SCRAPE_SECONDS - JITTER_SECONDS)
        self.scraped_at: list[int] = []
        self.series: dict[str, dict[int, float]] = {}
        for rank, key in zip(ranks, self._processes.values(), strict=True):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "SLURM_JOB_ID": JOB}
            self._table.observe_process(ProcessFacts(key, self._clock.time(), key.pid, "alice", "thread", environment))

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
                    log=Logger("inspector"),
                )
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._exporter.drain())
        self._runner.close()

    def advance(self, second: int) -> None:
        """Let a second pass: read what was written in it, and be scraped if it is time."""
        self._clock.advance(1.0)
        self._runner.run(self._exporter.update())
        for origin in self._table.unlinked_origins():
            self._table.link(origin, self._processes[origin.pid])  # the process exporter finds who holds the file
        self._table.tick()
        if second % SCRAPE_SECONDS == 0:
            jitter = self._chance.randint(-JITTER_SECONDS, JITTER_SECONDS)
            self.scraped_at.append(second + self._offset_seconds + jitter)
        if self.scraped_at and second == self.scraped_at[-1]:
            self._scrape(second)

    def _scrape(self, second: int) -> None:
        own = (("instance", f"{self._name}:19028"), ("node", self._name))
        pages = {
            "rankwatch-liveness": rank_families.families(self._table.snapshot()),
            "rankwatch": self._exporter.families(self._exporter.snapshot()),
        }
        for job, families in pages.items():
            labels = (*own, ("job", job))
            found = {series_key("up", labels): 1.0, series_key("scrape_duration_seconds", labels): 0.01}
            for family in families:
                for sample in family.samples:
                    found[series_key(sample.name, (*sample.labels.items(), *labels))] = sample.value
            for key, value in found.items():
                self.series.setdefault(key, {})[second] = value

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


def replay(directory: Path, phases: list[Phase], hosts: int) -> list[dict[str, str]]:
    """Let a job on one node or two live through ``phases``; return what scrapes saw as promtool reads it."""
    chance = random.Random(f"{phases} {hosts}")  # noqa: S311  scrapes at the same instants every time
    at_home = {name: [rank for rank in range(WORLD) if host_of(rank, hosts) == name] for name in HOSTS[:hosts]}
    epoch_us = int(FakeClock().time() * 1_000_000)
    records = prolonged(phases, hosts, epoch_us)
    directory.mkdir()
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(name, directory, ranks, chance)) for name, ranks in at_home.items()]
        logs: dict[int, TextIO] = {}
        record = next(records, None)
        for second in range(sum(phase.seconds for phase in phases)):
            while record is not None and record[0] < epoch_us + (second + 1) * 1_000_000:
                _, rank, line = record
                if rank not in logs:
                    path = directory / f"{host_of(rank, hosts)}-pid{FIRST_PID + rank}.log"
                    logs[rank] = stack.enter_context(path.open("w"))
                logs[rank].write(line)
                record = next(records, None)
            for log in logs.values():
                log.flush()
            for node in nodes:
                node.advance(second)
    return [series for node in nodes for series in node.input_series()]
