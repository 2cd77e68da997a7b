"""NVRx's cycle files: the restart cycle of a job and its nodes. Pure.

The launcher of one node writes these files (``cycle_info.JOB.ATTEMPT.CYCLE``). The first write is not atomic, so a
reader may see half a file.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.system import expand_hosts

MAX_CYCLE_BYTES = 256 * 1024
"""A file for 10,000 nodes whose names form no ranges has 150 KB."""
MAX_NUMBER = 1 << 31
_NAME = re.compile(r"cycle_info\.([^./\s]{0,128})\.([0-9]{1,9})\.([0-9]{1,9})", re.ASCII)

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]


class CycleName(NamedTuple):
    """The name of a cycle file. ``job_id``: Slurm's job id, the first one of a job array, or empty without Slurm."""

    job_id: str
    attempt: int
    cycle: int


class Cycle(msgspec.Struct, frozen=True):
    """One cycle. ``active``: number of nodes with ranks; ``standby``: number of spare nodes without ranks."""

    job_id: str
    attempt: int
    cycle: int
    active: int
    standby: int
    generation: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Return a sort key: greater for later cycles, and for later writes of the same cycle."""
        return self.attempt, self.cycle, self.generation


class _Written(msgspec.Struct):
    """The keys that are read. Protocol Buffers write 64-bit integers as text, so the decoder is not strict."""

    cycle_number: _Number
    cycle_start_time: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    job_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    attempt_index: _Number = 0
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: _Number = 0


_DECODER = msgspec.json.Decoder(_Written, strict=False)


def read_name(name: str) -> CycleName | None:
    """Return the parsed name of a cycle file; None for the ``.current`` link, ``.tmp`` files and other files."""
    match = _NAME.fullmatch(name)
    return None if match is None else CycleName(match[1], int(match[2]), int(match[3]))


def read_cycle(raw: bytes) -> Cycle | None:
    """Return the cycle in the file's content; None if it is half written, too long, or not a cycle file."""
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
    except ValueError:  # msgspec and invalid UTF-8 raise ValueErrors
        return None
