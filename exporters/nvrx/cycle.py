"""Cycle files of NVRx: which restart cycle a job is in, on which nodes. Pure.

The launcher of one node writes them (``cycle_info.JOB.ATTEMPT.CYCLE``), the first time not atomically: a reader may
find half a file. A launcher that was killed leaves the end of the cycle empty for ever.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

import msgspec

from agent.core.hosts import expand_hosts, numbers

MAX_CYCLE_BYTES = 256 * 1024
"""Of a file: 10,000 nodes whose names have no ranges take 150 KB."""
MAX_NUMBER = 1 << 31
MAX_TIME_CHARACTERS = 64
MAX_JOB_CHARACTERS = 128
_NAME = re.compile(r"cycle_info\.([^./\s]{0,128})\.([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)


class CycleName(NamedTuple):
    """What the name of a cycle file says. ``job_id`` is Slurm's, of an array its first one's; empty without Slurm."""

    job_id: str
    attempt: int
    cycle: int


class Cycle(msgspec.Struct, frozen=True):
    """One cycle. Times in seconds since the epoch; ``ended`` is None while it runs, or where nobody wrote its end.

    ``group_ranks`` are numbers of nodes in the order of ``active``, never of GPUs; ``standby`` nodes wait for work.
    """

    job_id: str
    attempt: int
    cycle: int
    started: float
    ended: float | None
    active: tuple[str, ...]
    standby: tuple[str, ...]
    group_ranks: tuple[int, ...] = ()
    generation: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Later cycles have a greater one, and later writes of one cycle."""
        return self.attempt, self.cycle, self.generation


class _Written(msgspec.Struct):
    """The file's keys. Protocol Buffers write 64-bit integers as text; other keys are passed over."""

    cycle_number: int | str
    cycle_start_time: str
    job_id: str = ""
    attempt_index: int | str = 0
    cycle_end_time: str = ""
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: int | str = 0
    active_ranks: str = ""


_DECODER = msgspec.json.Decoder(_Written)


def read_name(name: str) -> CycleName | None:
    """What a file's name says; None for other files: the ``.current`` link, and what is not finished (``.tmp``)."""
    found = _NAME.fullmatch(name)
    return None if found is None else CycleName(found[1], int(found[2]), int(found[3]))


def read_cycle(raw: bytes) -> Cycle | None:
    """What a cycle file says; None where it is half written, too long, or not one."""
    if len(raw) > MAX_CYCLE_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
        return _cycle(written)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError):
        return None


def _cycle(written: _Written) -> Cycle:
    if len(written.job_id) > MAX_JOB_CHARACTERS:
        raise ValueError("a job id that is too long")
    return Cycle(
        job_id=written.job_id,
        attempt=_number(written.attempt_index),
        cycle=_number(written.cycle_number),
        started=_seconds(written.cycle_start_time),
        ended=_seconds(written.cycle_end_time) if written.cycle_end_time else None,
        active=expand_hosts(written.active_nodes),
        standby=expand_hosts(written.standby_nodes),
        group_ranks=numbers(written.active_ranks),
        generation=_number(written.generation),
    )


def _number(value: int | str) -> int:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
        raise ValueError("no number")
    if not 0 <= int(value) <= MAX_NUMBER:
        raise ValueError("a number out of range")
    return int(value)


def _seconds(text: str) -> float:
    if len(text) > MAX_TIME_CHARACTERS:
        raise ValueError("no time")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment.timestamp()
