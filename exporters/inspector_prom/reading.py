"""Checks files that ranks hold open, and reads the files that have not changed since the last poll. Runs in the helper.

The plugin empties a file and writes it again in several pieces, in place. So contents are used only if they have not
changed between two polls. The helper opens files through the rank's descriptors: the directory does not matter.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_named, read_bounded
from exporters.inspector_prom.text import MAX_TEXT_BYTES

GRACE_SECONDS = 1.0  # A call waits this long for all its threads; a healthy file system answers in milliseconds
FileVersion = tuple[int, int, int, int]
"""Identity of a file's content: device, inode, size, and time of the last change in nanoseconds."""


class MeansRequest(msgspec.Struct, frozen=True):
    """Descriptor ``fd`` of process ``pid`` (of user ``uid``) under ``proc_root``; its link must still be ``target``.

    ``at_rest``: read the file if this is still its identity; None: do not read it. ``at_once``: read it in any case.
    """

    proc_root: str
    pid: int
    uid: int
    fd: int
    target: bytes
    at_rest: FileVersion | None = None
    at_once: bool = False


class FileMeans(msgspec.Struct, frozen=True):
    """A file's identity, its owner, and its contents (at most MAX_TEXT_BYTES + 1 bytes) if it was read."""

    identity: FileVersion
    owner_uid: Annotated[int, msgspec.Meta(ge=0)]
    raw: bytes | None = None


def look(requests: list[MeansRequest], _body: bytes) -> list[FileMeans | None]:
    """Answer each request; None if the file is unreadable or its file system does not answer."""
    return _readers.answers(requests, GRACE_SECONDS)


def look_at(request: MeansRequest) -> FileMeans | None:
    """Check one file, and read it if requested; None when it is unreadable."""
    link = f"{request.proc_root}/{request.pid}/fd/{request.fd}"
    try:
        if os.readlink(os.fsencode(link)) != request.target:
            return None
        with open_named(link, is_link=True) as fd:
            return _read(fd, request)
    except OSError:
        return None


def _read(fd: int, request: MeansRequest) -> FileMeans:
    identity, owner = _version(fd)
    if not request.at_once and identity != request.at_rest:
        return FileMeans(identity, owner)
    raw = read_bounded(fd, MAX_TEXT_BYTES)
    after, _ = _version(fd)
    return FileMeans(identity, owner, raw) if after == identity else FileMeans(after, owner)


def _version(fd: int) -> tuple[FileVersion, int]:
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns), status.st_uid


_readers: ByUser[MeansRequest, FileMeans | None] = ByUser(look_at)
