"""Runs in the helper: reads cycle files that jobs name or that lie in configured directories; one thread per user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_inside, open_regular
from exporters.nvrx.cycle import MAX_CYCLE_BYTES, Cycle, CycleName, read_cycle, read_name

GRACE_SECONDS = 1.0
"""A call waits at most this long for all its threads. A healthy file system answers in milliseconds."""
MAX_ENTRIES = 65_536
"""Limit of directory entries per read."""
MAX_FOUND = 256
"""Limit of jobs per directory; the exporter ignores jobs beyond it."""


class CycleRequest(msgspec.Struct, frozen=True):
    """``path``: link to the current cycle, as process ``pid`` of ``proc_root`` sees it; ``pid`` 0: a directory.

    ``uid``: user of the process. The helper ignores a linked file of another user.
    """

    path: str
    proc_root: str = ""
    pid: int = 0
    uid: int = -1


class FoundCycle(msgspec.Struct, frozen=True):
    """A cycle and the owner (uid) of its file."""

    uid: int
    cycle: Cycle


def read_one(request: CycleRequest) -> list[FoundCycle]:
    """Return the requested cycles. Unreadable and half-written files are missing from the result."""
    try:
        if request.pid:
            named = _read(open_inside(f"{request.proc_root}/{request.pid}/root", request.path))
            return [named] if named is not None and named.uid == request.uid else []
        return _read_directory(request.path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []


_readers: ByUser[CycleRequest, list[FoundCycle]] = ByUser(read_one)


def read_cycles(requests: list[CycleRequest], _body: bytes) -> list[list[FoundCycle] | None]:
    """Return one answer per request; None if the file system did not answer in time."""
    return _readers.answers(requests, GRACE_SECONDS)


def _read_directory(path: str) -> list[FoundCycle]:
    """Return the newest cycle of each job, or the previous one while the newest file is half written."""
    newest: dict[str, list[CycleName]] = {}
    with os.scandir(path) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            name = read_name(entry.name)
            if name is not None and (name.job_id in newest or len(newest) < MAX_FOUND):
                newest[name.job_id] = sorted((name, *newest.get(name.job_id, ())), reverse=True)[:2]
    cycles = (next(_readable(path, names), None) for names in newest.values())
    return [cycle for cycle in cycles if cycle is not None]


def _readable(directory: str, names: list[CycleName]) -> Iterator[FoundCycle]:
    for name in names:
        try:
            cycle = _read_name(directory, f"cycle_info.{name.job_id}.{name.attempt}.{name.cycle}")
        except OSError:
            continue
        if cycle is not None:
            yield cycle


def _read_name(directory: str, name: str) -> FoundCycle | None:
    fd = os.open(f"{directory}/{name}", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _read(open_regular(fd))
    finally:
        os.close(fd)


def _read(fd: int) -> FoundCycle | None:
    """Return the cycle in an open file, and close the file."""
    try:
        raw = b""
        while len(raw) <= MAX_CYCLE_BYTES and (piece := os.read(fd, MAX_CYCLE_BYTES + 1 - len(raw))):
            raw += piece
        cycle = read_cycle(raw)
        return None if cycle is None else FoundCycle(os.fstat(fd).st_uid, cycle)
    finally:
        os.close(fd)
