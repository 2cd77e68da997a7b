"""Runs in the helper: finds the ranks' dumps at the paths that the ranks' processes see, and reads new dumps.

Searching and reading may wait for file systems, so each user has its own thread. Decoding takes one file at a time.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_inside, open_named, read_bounded
from exporters.flight_recorder.dump import DumpSummary, read_dump
from exporters.flight_recorder.pickled import Reason, RefusedError

MAX_DUMP_BYTES = 24 * 1024 * 1024  # 2,000 operations with their stacks take 2 to 4 MB, 20,000 operations about 20 MB
GRACE_SECONDS = 1.0  # A call waits at most this long for the search, and at most this long for the read of each file
DECODING_SECONDS = 1.0  # After this time a call begins no further file. A file of 20 MB takes 5 s

FileVersion = tuple[int, int, int, int]
"""Identity of a file's content: device, inode, size in bytes, and modification time in nanoseconds."""
Result = Literal[
    "none", "unchanged", "pending", "read", Reason, "other_rank", "other_job", "other_user", "earlier_process"
]
SETTLED: tuple[Result, ...] = (
    "read", "incomplete", "malformed", "too_large", "other_rank", "other_job", "other_user", "earlier_process"
)  # fmt: skip
"""Final results. The exporter counts them once per file."""


class DumpRequest(msgspec.Struct, frozen=True):
    """Possible ``paths`` of a rank's dump, as process ``pid`` of ``proc_root`` sees them; the newest file is used.

    ``pid`` 0: as the helper itself sees them. ``uid``: the rank's user. ``started``: start of the rank's process, in
    seconds since the epoch. ``known``: the file that was read before.
    """

    job_id: str
    rank: int
    uid: int
    paths: list[str]
    started: float = 0.0
    world_size: int | None = None
    known: FileVersion | None = None
    proc_root: str = ""
    pid: int = 0


class DumpAnswer(msgspec.Struct, frozen=True):
    """``result``: none (no file), unchanged, pending (new, but not read in this call), read, or the reason of refusal.

    ``summary``: set if the result is read.
    """

    result: Result
    identity: FileVersion | None = None
    summary: DumpSummary | None = None


class _DumpFile(msgspec.Struct, frozen=True):
    """The newest dump file of a rank."""

    path: str
    identity: FileVersion
    uid: int


def read_dumps(requests: list[DumpRequest], _body: bytes) -> list[DumpAnswer | None]:
    """Return one answer per request; None if the file system did not answer. Read new files in request order."""
    looks = _lookers.answers(requests, GRACE_SECONDS)
    claims: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for request, look in zip(requests, looks, strict=True):
        for dump_file in look or ():
            if dump_file.uid == request.uid:  # a request of another user cannot take the file
                claims[dump_file.identity[:2]].add(request.job_id)
    until = time.monotonic() + DECODING_SECONDS
    answers: list[DumpAnswer | None] = []
    for request, look in zip(requests, looks, strict=True):
        if look is None or not look:
            answers.append(None if look is None else DumpAnswer("none"))
            continue
        [file] = look
        result = _judge(request, file, len(claims[file.identity[:2]]))
        if result == "pending" and time.monotonic() < until:
            answers.append(_read(msgspec.structs.replace(request, paths=[file.path]), file.identity))
        else:
            answers.append(DumpAnswer(result, file.identity))
    return answers


def _judge(request: DumpRequest, file: _DumpFile, jobs: int) -> Result:
    """Return the result for a file without reading it. ``jobs``: number of the owner's jobs that name the file."""
    if file.uid != request.uid:
        return "other_user"
    if jobs > 1:  # unknown which job wrote it last
        return "other_job"
    if file.identity[3] / 1e9 < request.started:
        return "earlier_process"
    return "unchanged" if file.identity == request.known else "pending"


def _look(request: DumpRequest) -> list[_DumpFile]:
    """Return at most one file: the newest file of the rank's user, else the newest file of another user."""
    files = []
    for path in request.paths:
        try:
            with _open(request, path) as fd:
                status = os.fstat(fd)
        except (OSError, ValueError):  # ValueError: a NUL in the path
            continue
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        files.append(_DumpFile(path, identity, status.st_uid))
    return sorted(files, key=lambda file: (file.uid == request.uid, file.identity[3]))[-1:]


def _open(request: DumpRequest, path: str) -> AbstractContextManager[int]:
    """Open a regular file. Raise OSError if it cannot be opened."""
    if request.pid:
        return open_inside(f"{request.proc_root}/{request.pid}/root", path)
    return open_named(path)


def _read(request: DumpRequest, identity: FileVersion) -> DumpAnswer | None:
    """Read and decode a file; return None if its file system does not answer."""
    [raw] = _readers.answers([msgspec.structs.replace(request, known=identity)], GRACE_SECONDS)
    if raw is None:
        return None
    if len(raw) > MAX_DUMP_BYTES:
        return DumpAnswer("too_large", identity)
    try:
        summary = read_dump(raw, request.rank)
    except RefusedError as refused:
        return DumpAnswer(refused.reason, identity)
    except MemoryError:
        return DumpAnswer("too_large", identity)
    return _believed(request, summary, identity)


def _believed(request: DumpRequest, summary: DumpSummary | None, identity: FileVersion) -> DumpAnswer:
    if summary is None:
        return DumpAnswer("other_rank", identity)
    if None not in (summary.world_size, request.world_size) and summary.world_size != request.world_size:
        return DumpAnswer("other_job", identity)
    if 0 < summary.last_created < request.started:
        return DumpAnswer("earlier_process", identity)
    return DumpAnswer("read", identity, summary)


def _content(request: DumpRequest) -> bytes:
    """Return at most MAX_DUMP_BYTES + 1 bytes of the request's one file; b"" if another file replaced it.

    The next search finds the new file.
    """
    try:
        with _open(request, request.paths[0]) as fd:
            status = os.fstat(fd)
            is_known = (status.st_dev, status.st_ino) == (request.known or ())[:2] and status.st_uid == request.uid
            return read_bounded(fd, MAX_DUMP_BYTES) if is_known else b""
    except (OSError, ValueError):
        return b""


_lookers: ByUser[DumpRequest, list[_DumpFile]] = ByUser(_look)
_readers: ByUser[DumpRequest, bytes] = ByUser(_content)
