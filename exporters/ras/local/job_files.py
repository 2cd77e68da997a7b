"""The helper's side: reads files that jobs name, on whatever file system they are. One thread for each user's.

NCCL sets what its own files of settings hold as it starts (src/misc/param.cc: setEnvFile), which /proc/PID/environ does
not show: first the file of NCCL_CONF_FILE, or ~/.nccl.conf without it, then /etc/nccl.conf; what is set already stays.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_inside, open_regular
from exporters.ras.local.library import version_in

MAX_FILE_BYTES = 64 * 1024
MAX_LINE = 4096
MAX_VERSIONS = 256  # remembered at a time; a user who makes more files has them read again
GRACE_SECONDS = 1.0  # a call waits this long for its threads, in all; a healthy file system answers in milliseconds
WANTED = ("NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR")
_SYSTEM_FILE = "/etc/nccl.conf"


def files_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files that a process with this environment reads, none where they can add nothing."""
    if all(name in environment for name in WANTED):
        return ()
    user_file = environment.get("NCCL_CONF_FILE") or f"{environment.get('HOME', '')}/.nccl.conf"
    return tuple(path for path in (user_file, _SYSTEM_FILE) if os.path.isabs(path))


def read_conf(root: str, paths: tuple[str, ...]) -> dict[str, str]:
    """RAS's settings in files under ``root``, the first that has one counts; what cannot be read is left out."""
    found: dict[str, str] = {}
    for path in paths:
        found = parse(_read(root, path)) | found
    return found


def parse(text: str) -> dict[str, str]:
    """RAS's settings in such a file: NAME=VALUE, a line each; comments begin with #."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, is_set, value = line[:MAX_LINE].rstrip("\r").partition("=")
        if is_set and name in WANTED:
            found.setdefault(name, value)
    return found


def _read(root: str, path: str) -> str:
    """The text of a file; of one that says it is empty nothing: the kernel's own (/proc) have effects when read."""
    try:
        fd = open_inside(root, path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""
    try:
        return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace") if os.fstat(fd).st_size else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


class FileRequest(msgspec.Struct, frozen=True):
    """What to read for process ``pid`` of ``proc_root``: files of settings, and the library at a path or mapping.

    ``uid``: whose files they are, -1 where that is not known.
    """

    proc_root: str
    pid: int
    uid: int
    conf: tuple[str, ...] = ()
    library: str = ""
    mapping: str = ""


class FileFacts(msgspec.Struct, frozen=True):
    """RAS's settings in the files, and the version of the library, None where there is none."""

    settings: dict[str, str]
    version: tuple[int, int, int] | None


def read_files(requests: list[FileRequest], _body: bytes) -> list[FileFacts | None]:
    """Answer each request, None for one whose file system did not: it may be made again."""
    return _readers.answers(requests, GRACE_SECONDS)


def read_one(request: FileRequest) -> FileFacts:
    """Read the requested files; one that cannot be read counts as missing."""
    folder = f"{request.proc_root}/{request.pid}"
    settings = read_conf(f"{folder}/root", request.conf)
    return FileFacts(settings, _version(folder, request) if request.library or request.mapping else None)


def _version(folder: str, request: FileRequest) -> tuple[int, int, int] | None:
    try:
        if request.library:
            fd = open_inside(f"{folder}/root", request.library)
        else:
            fd = _open_mapping(f"{folder}/map_files/{request.mapping}")
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    try:
        info = os.fstat(fd)
        version = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if version not in _versions:
            if len(_versions) >= MAX_VERSIONS:
                _versions.clear()
            _versions[version] = version_in(fd)
        return _versions.get(version)
    except (OSError, struct.error):  # the file is the job's: it may be anything, and change
        return None
    finally:
        os.close(fd)


def _open_mapping(path: str) -> int:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return open_regular(fd)
    finally:
        os.close(fd)


_readers: ByUser[FileRequest, FileFacts] = ByUser(read_one)
_versions: dict[tuple[int, ...], tuple[int, int, int] | None] = {}
