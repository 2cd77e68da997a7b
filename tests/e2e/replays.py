"""Recorded jobs read, scraped and rendered by the agent's own parts, under one clock, for rules to judge.

The records of each rank are written second by second to a directory that all nodes share. Every node has an exporter
and a rank table of its own. What scrapes of them show becomes the input of `promtool test rules`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TextIO

from fake_clock import FakeClock
from recordings import FIRST_PID, HOSTS, WORLD, Phase, Record, host_of, prolonged
from replay_nodes import Node, Process

JOB = "4711"
EPOCH_US = int(FakeClock().time() * 1_000_000)
"""When a replay begins."""
EMPTY: Mapping[str, str] = MappingProxyType({})


def replay(phases: list[Phase], hosts: int) -> list[dict[str, str]]:
    """Let a job on one node or two live through ``phases``; return what scrapes saw as promtool reads it."""
    records = prolonged(phases, hosts, EPOCH_US)
    return play(records, hosts, sum(phase.seconds for phase in phases), seed=f"{phases} {hosts}")


def play(
    records: Iterator[Record], hosts: int, seconds: int, *, seed: str, settings: Mapping[str, str] = EMPTY
) -> list[dict[str, str]]:
    """Let ranks with these ``settings`` write records, in the order of their times; return what scrapes saw."""
    chance = random.Random(seed)  # noqa: S311  scrapes at the same instants every time
    processes = [Process(JOB, rank, WORLD, FIRST_PID + rank, settings) for rank in range(WORLD)]
    at_home = {name: [each for each in processes if host_of(each.rank, hosts) == name] for name in HOSTS[:hosts]}
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
