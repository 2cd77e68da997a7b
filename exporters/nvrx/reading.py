"""Runs in the helper: reads cycle files that jobs name or that lie in configured directories; one thread per user.

The launcher of one node writes these files (``cycle_info.JOB.ATTEMPT.CYCLE``): the restart cycle of a job and the
cycle's nodes. Then the launcher sets the link ``cycle_info.JOB.current``. Its first write of a file is not atomic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container
from contextlib import AbstractContextManager, suppress
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec

from agent.helper.by_user import ByUser
from agent.sdk.system import expand_hosts
from agent.system.inside import open_inside, open_named, read_bounded
from agent.tail.shares import in_turns

MAX_CYCLE_BYTES = 256 * 1024  # A file for 10,000 nodes whose names form no ranges has 150 KB
MAX_NUMBER = 1 << 31
_CURRENT = re.compile(r"cycle_info\.([^/\s]{0,128})\.current", re.ASCII)
_NAME = re.compile(r"cycle_info\.[^/\s]{0,128}\.[0-9]{1,9}\.[0-9]{1,9}", re.ASCII)

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
GRACE_SECONDS = 1.0  # A call waits this long for all its threads
MAX_ENTRIES = 65_536  # Limit of directory entries per read
MAX_FOUND = 256  # Limit of jobs per directory, with equal shares for all users


class Cycle(msgspec.Struct, frozen=True):
    """One cycle, begun at ``started`` (UTC). ``active``: number of nodes with ranks; ``standby``: of spare nodes."""

    job_id: str
    attempt: int
    cycle: int
    active: int
    standby: int
    generation: int = 0
    started: str = ""

    @property
    def order(self) -> tuple[int, str, int, int]:
        """Return a sort key: greater for later cycles (a job that starts again counts from 0), and for later writes."""
        return self.attempt, self.started, self.cycle, self.generation


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
            started=written.cycle_start_time.rstrip("Z"),
        )
    except (ValueError, RecursionError):  # msgspec and invalid UTF-8 raise ValueErrors
        return None


class CycleRequest(msgspec.Struct, frozen=True):
    """``path``: link to the current cycle, as process ``pid`` of ``proc_root`` sees it. For ``pid`` 0: a directory.

    ``uid``: user of the process; a linked file of another user is not read. A directory has a negative ``uid`` of its
    own, and so a thread of its own. ``job_ids``: for a directory, the jobs on this node, which come first.
    """

    path: str
    proc_root: str = ""
    pid: int = 0
    uid: int = -1
    job_ids: frozenset[str] = frozenset()


class OwnedCycle(NamedTuple):
    """A cycle and the owner (uid) of its file."""

    uid: int
    cycle: Cycle


def read_one(request: CycleRequest) -> list[OwnedCycle]:
    """Return the requested cycles. Unreadable and half-written files are missing from the result."""
    try:
        if not request.pid:
            return _read_directory(request.path, request.job_ids)
        named = _read(open_inside(f"{request.proc_root}/{request.pid}/root", request.path, request.uid))
        return [] if named is None else [named]
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []


def _read_directory(path: str, job_ids: Container[str]) -> list[OwnedCycle]:
    """Return the cycles of at most MAX_FOUND jobs: ``job_ids`` first, then the newest links; users take turns."""
    links = []
    with os.scandir(path) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if current := _CURRENT.fullmatch(entry.name):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    links.append((current[1] not in job_ids, -status.st_mtime_ns, status.st_uid, entry.name))
    links.sort()  # the newest first: ended jobs leave their links behind
    cycles = []
    for *_, link in in_turns(links, lambda link: link[2], MAX_FOUND):
        with suppress(OSError):
            if _NAME.fullmatch(name := os.readlink(f"{path}/{link}")):
                cycles.append(_read(open_named(f"{path}/{name}")))
    return [cycle for cycle in cycles if cycle is not None]


def _read(file: AbstractContextManager[int]) -> OwnedCycle | None:
    with file as fd:
        cycle = read_cycle(read_bounded(fd, MAX_CYCLE_BYTES))
        return None if cycle is None else OwnedCycle(os.fstat(fd).st_uid, cycle)


_readers: ByUser[CycleRequest, list[OwnedCycle]] = ByUser(read_one)


def read_cycles(requests: list[CycleRequest], _body: bytes) -> list[list[OwnedCycle] | None]:
    """Return one answer per request; None if the file system did not answer in time."""
    return _readers.answers(requests, GRACE_SECONDS)
