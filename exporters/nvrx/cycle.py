"""NVRx's cycle files: the restart cycle of a job, and its nodes. Pure.

The launcher of one node writes them (``cycle_info.JOB.ATTEMPT.CYCLE``), the first time not atomically: a reader may
see half a file.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.system import expand_hosts

MAX_CYCLE_BYTES = 256 * 1024
"""10,000 nodes whose names have no ranges take 150 KB."""
MAX_NUMBER = 1 << 31
_NAME = re.compile(r"cycle_info\.([^./\s]{0,128})\.([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class CycleName(NamedTuple):
    """The name of a cycle file. ``job_id`` is Slurm's (of an array the first job's); empty without Slurm."""

    job_id: str
    attempt: int
    cycle: int


class Cycle(msgspec.Struct, frozen=True):
    """One cycle: how many nodes are ``active``, and how many are ``standby`` without ranks."""

    job_id: str
    attempt: int
    cycle: int
    active: int
    standby: int
    generation: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Greater for later cycles, and for later writes of one cycle."""
        return self.attempt, self.cycle, self.generation


class _Written(msgspec.Struct):
    """The keys that are read. Protocol Buffers write 64-bit integers as text: the decoder is not strict."""

    cycle_number: _Number
    cycle_start_time: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    job_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    attempt_index: _Number = 0
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: _Number = 0


_DECODER = msgspec.json.Decoder(_Written, strict=False)


def read_name(name: str) -> CycleName | None:
    """Read a file's name; None for the ``.current`` link, unfinished (``.tmp``) and other files."""
    match = _NAME.fullmatch(name)
    return None if match is None else CycleName(match[1], int(match[2]), int(match[3]))


def read_cycle(raw: bytes) -> Cycle | None:
    """Read a cycle file; None if it is half written, too long, or no cycle file."""
    if len(raw) > MAX_CYCLE_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
        return Cycle(
            job_id=written.job_id,
            attempt=written.attempt_index,
            cycle=written.cycle_number,
            active=len(expand_hosts(written.active_nodes)),
            standby=len(expand_hosts(written.standby_nodes)),
            generation=written.generation,
        )
    except ValueError:  # msgspec's errors and those of bad UTF-8 are ValueErrors
        return None
