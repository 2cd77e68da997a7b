"""The helper's side: looks at files that ranks hold open, and reads those that were at rest since the last look.

The plugin empties a file and writes it again in several pieces, in place. So what it holds is taken once it has stood
still from one look to the next. A file is opened by way of the descriptor that the rank has, whatever its directory.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_named, read_bounded
from exporters.inspector_prom.text import MAX_TEXT_BYTES

GRACE_SECONDS = 1.0  # A call waits this long for its threads, in all; a healthy file system answers in milliseconds
Place = tuple[int, int, int, int]
"""Which file it was and when: device, inode, size, and time of the last change in nanoseconds."""


class MeansRequest(msgspec.Struct, frozen=True):
    """Descriptor ``fd`` of process ``pid`` under ``proc_root``, whose user is ``uid`` and which was ``target`` before.

    ``at_rest``: read it if it still is in this place; None: do not. ``at_once``: read it in any case.
    """

    proc_root: str
    pid: int
    uid: int
    fd: int
    target: str
    at_rest: Place | None = None
    at_once: bool = False


class FoundMeans(msgspec.Struct, frozen=True):
    """Where a file is now, whose it is, and what it holds (MAX_TEXT_BYTES + 1 at most), if it was read."""

    identity: Place
    owner_uid: Annotated[int, msgspec.Meta(ge=0)]
    raw: bytes | None = None


def look(requests: list[MeansRequest], _body: bytes) -> list[FoundMeans | None]:
    """Answer each request, None for a file that cannot be read, or whose file system does not answer."""
    return _readers.answers(requests, GRACE_SECONDS)


def look_at(request: MeansRequest) -> FoundMeans | None:
    """Look at one file; None where it is none that can be read."""
    link = f"{request.proc_root}/{request.pid}/fd/{request.fd}"
    try:
        if os.readlink(link) != request.target:
            return None
        fd = open_named(link, is_link=True)
    except OSError:
        return None
    try:
        return _read(fd, request)
    except OSError:
        return None
    finally:
        os.close(fd)


def _read(fd: int, request: MeansRequest) -> FoundMeans:
    identity, owner = _place(fd)
    if not request.at_once and identity != request.at_rest:
        return FoundMeans(identity, owner)
    raw = read_bounded(fd, MAX_TEXT_BYTES)
    after, _ = _place(fd)
    return FoundMeans(identity, owner, raw) if after == identity else FoundMeans(after, owner)


def _place(fd: int) -> tuple[Place, int]:
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), status.st_uid


_readers: ByUser[MeansRequest, FoundMeans | None] = ByUser(look_at)
