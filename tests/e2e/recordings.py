"""Recordings of jobs, repeated for any duration with rising times and numbers."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from inspector_records import DATA

WORLD = 8
HOSTS = ("gpu-node-00", "gpu-node-01")
FIRST_PID = 1000
LOST_SHARE = 0.5
_RISING = re.compile(r'"(?P<name>dump_timestamp_us|coll_sn|p2p_sn|\w+_ts)":(?P<number>\d+)')
_NUMBERS = ("coll_sn", "p2p_sn")
_Kind = tuple[str, str]
"""Communicator and collective (`p2p`: all sends and receives); records of one kind share a sequence of numbers."""


class Phase(NamedTuple):
    """A recording, and the seconds for which it is repeated; half of the records of ``lossy_rank`` are lost."""

    folder: str
    seconds: int
    lossy_rank: int | None = None


class _Line(NamedTuple):
    """One record as a template, with its first times and number."""

    after_us: int
    rank: int
    kind: _Kind
    text: str
    rising: tuple[tuple[bool, int], ...]
    """Each rising number: True for the record's number, False for a time in microseconds; and the value."""


class _Recording:
    """The lines of all ranks by time; ``numbers``: the first and last of each kind."""

    def __init__(self, folder: str, hosts: int) -> None:
        lines: list[_Line] = []
        self.numbers: dict[_Kind, tuple[int, int]] = {}
        for rank, path in enumerate(sorted((DATA / folder).glob("*.log.xz"))):  # pids rise with ranks
            texts = lzma.decompress(path.read_bytes()).decode().splitlines(keepends=True)
            lines += [self._line(text, rank, hosts) for text in texts]
        lines.sort(key=lambda line: line.after_us)
        self.begin_us = lines[0].after_us
        self.lines = [line._replace(after_us=line.after_us - self.begin_us) for line in lines]
        span_us = self.lines[-1].after_us
        self.span_us = span_us + span_us * WORLD // len(lines)  # plus the pause between two records of a rank

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
    """Return the node of a rank: with two nodes the recorded node, otherwise the first node."""
    return HOSTS[rank * hosts // WORLD]


class Record(NamedTuple):
    """A line, the rank that writes it, and its time in microseconds since the epoch."""

    time_us: int
    rank: int
    line: str


def prolonged(phases: list[Phase], hosts: int, begin_us: int) -> Iterator[Record]:
    """Yield the records of a job with these ``phases``, by time; numbers rise throughout."""
    chance = random.Random(20)  # noqa: S311  the same records every time
    next_numbers: dict[_Kind, int] = {}
    for phase in phases:
        recording = _Recording(phase.folder, hosts)
        end_us = begin_us + phase.seconds * 1_000_000
        while begin_us < end_us:
            risen = {kind: next_numbers.get(kind, first) - first for kind, (first, _) in recording.numbers.items()}
            later_us = begin_us - recording.begin_us
            for line in recording.lines:
                if begin_us + line.after_us >= end_us:
                    break
                if line.rank == phase.lossy_rank and chance.random() < LOST_SHARE:
                    continue
                more = risen[line.kind]
                values = tuple(value + (more if is_number else later_us) for is_number, value in line.rising)
                yield Record(begin_us + line.after_us, line.rank, line.text % values)
            next_numbers |= {kind: last + risen[kind] + 1 for kind, (_, last) in recording.numbers.items()}
            begin_us += recording.span_us
        begin_us = end_us
