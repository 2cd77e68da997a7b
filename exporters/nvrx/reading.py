"""The helper's side: reads cycle files of paths that jobs name and of a site's directories, a thread for each user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

import msgspec

from agent.system.inside import open_inside, open_regular
from agent.system.per_user import PerUser
from exporters.nvrx.cycle import MAX_CYCLE_BYTES, Cycle, CycleName, read_cycle, read_name

MAX_ENTRIES = 65_536
"""Of a directory, looked at in one look."""
MAX_FOUND = 256
"""Jobs of one directory: those whose files were named last in it are left out."""


class CycleRequest(msgspec.Struct, frozen=True):
    """The link to the current cycle that process ``pid`` of ``proc_root`` names, or (``pid`` 0) a directory of a site.

    ``uid``: the process' user; a file of anybody else is none of its job's.
    """

    path: str
    proc_root: str = ""
    pid: int = 0
    uid: int = -1


class FoundCycle(msgspec.Struct, frozen=True):
    """A cycle, and whose the file is that says so."""

    uid: int
    cycle: Cycle


def read_cycles(requests: list[CycleRequest], _body: bytes) -> list[list[FoundCycle] | None]:
    """Answer each request, None for one whose file system did not."""
    return _USERS.ask(requests)


def read_one(request: CycleRequest) -> list[FoundCycle]:
    """Read what is asked for; what cannot be read, or is half written, is not there."""
    try:
        if request.pid:
            named = _read(open_inside(f"{request.proc_root}/{request.pid}/root", request.path))
            return [named] if named is not None and named.uid == request.uid else []
        return _read_directory(request.path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []


def _read_directory(path: str) -> list[FoundCycle]:
    """The newest cycle of each job; while that is half written, the one before it."""
    newest: dict[str, list[CycleName]] = {}
    with os.scandir(path) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            name = read_name(entry.name)
            if name is not None and (name.job_id in newest or len(newest) < MAX_FOUND):
                newest[name.job_id] = sorted((name, *newest.get(name.job_id, ())), reverse=True)[:2]
    found = (next(_readable(path, names), None) for names in newest.values())
    return [cycle for cycle in found if cycle is not None]


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
    """What an open file says, which is closed."""
    try:
        raw = b""
        while len(raw) <= MAX_CYCLE_BYTES and (piece := os.read(fd, MAX_CYCLE_BYTES + 1 - len(raw))):
            raw += piece
        cycle = read_cycle(raw)
        return None if cycle is None else FoundCycle(os.fstat(fd).st_uid, cycle)
    finally:
        os.close(fd)


_USERS: PerUser[CycleRequest, list[FoundCycle]] = PerUser(lambda request: request.uid, read_one)
