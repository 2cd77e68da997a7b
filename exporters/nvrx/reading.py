"""Runs in the helper: reads the cycle files that ranks name; one thread per user.

The launcher of one node writes these files: the restart cycle of a job and its nodes. The first write is not atomic,
so a reader may see half a file.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from agent.helper.by_user import ByUser
from agent.sdk.system import expand_hosts
from agent.system.inside import open_inside, read_bounded

MAX_CYCLE_BYTES = 256 * 1024  # A file for 10,000 nodes whose names form no ranges has 150 KB
MAX_NUMBER = 1 << 31

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
GRACE_SECONDS = 1.0
"""A call waits at most this long for all its threads. A healthy file system answers in milliseconds."""


class Cycle(msgspec.Struct, frozen=True):
    """One cycle. ``active``: number of nodes with ranks; ``standby``: number of spare nodes without ranks."""

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
    attempt_index: _Number = 0
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: _Number = 0


_DECODER = msgspec.json.Decoder(_Written, strict=False)


def read_cycle(raw: bytes) -> Cycle | None:
    """Return the cycle in the file's content; None if it is half written, too long, or not a cycle file."""
    if len(raw) > MAX_CYCLE_BYTES:
        return None
    try:
        written = _DECODER.decode(raw)
        return Cycle(
            attempt=written.attempt_index,
            cycle=written.cycle_number,
            active=len(expand_hosts(written.active_nodes)),
            standby=len(expand_hosts(written.standby_nodes)),
            generation=written.generation,
        )
    except ValueError:  # msgspec and invalid UTF-8 raise ValueErrors
        return None


class CycleRequest(msgspec.Struct, frozen=True):
    """``path``: link to the current cycle, as process ``pid`` (of user ``uid``) of ``proc_root`` sees it."""

    path: str
    proc_root: str
    pid: int
    uid: int


def read_one(request: CycleRequest) -> Cycle | None:
    """Return the cycle in a file of the process's user; None for another user's, or if it is unreadable."""
    try:
        fd = open_inside(f"{request.proc_root}/{request.pid}/root", request.path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    try:
        return read_cycle(read_bounded(fd, MAX_CYCLE_BYTES)) if os.fstat(fd).st_uid == request.uid else None
    except OSError:
        return None
    finally:
        os.close(fd)


_readers: ByUser[CycleRequest, Cycle | None] = ByUser(read_one)


def read_cycles(requests: list[CycleRequest], _body: bytes) -> list[Cycle | None]:
    """Return one answer per request; None also if the file system did not answer in time."""
    return _readers.answers(requests, GRACE_SECONDS)
