"""Reads files that jobs name, in the helper process: their file system may hang. Each user has a thread of its own.

At start NCCL takes settings from its own files (src/misc/param.cc: setEnvFile), which /proc/PID/environ does not show:
first NCCL_CONF_FILE or, if unset, ~/.nccl.conf; then /etc/nccl.conf. A file changes no setting that is already set.
"""

import errno
import os
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.helper.by_user import ByUser
from agent.system.inside import open_inside, open_named

MAX_FILE_BYTES = 64 * 1024
MAX_LINE = 4096
MAX_VERSIONS = 256  # Remembered versions; if users make more files, all versions are forgotten and read again
GRACE_SECONDS = 1.0  # A call waits this long for all its threads; a healthy file system answers in milliseconds
Version = tuple[int, int, int]
SETTINGS = ("NCCL_RAS_ADDR", "NCCL_RAS_TIMEOUT_FACTOR")
_SYSTEM_FILE = "/etc/nccl.conf"
_ERRORS_THAT_END = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


def files_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings files that a process with this environment reads; empty if all of SETTINGS are set."""
    if all(name in environment for name in SETTINGS):
        return ()
    user_file = environment.get("NCCL_CONF_FILE") or f"{environment.get('HOME', '')}/.nccl.conf"
    return tuple(path for path in (user_file, _SYSTEM_FILE) if os.path.isabs(path))


def read_conf(root: str, paths: tuple[str, ...]) -> dict[str, str]:
    """Return RAS's settings from files under ``root``: each from the first file that has it. Skip unreadable files."""
    settings: dict[str, str] = {}
    for path in paths:
        settings = parse(_read(root, path)) | settings
    return settings


def parse(text: str) -> dict[str, str]:
    """Return RAS's settings in the text of a settings file: lines NAME=VALUE; comments begin with #."""
    settings: dict[str, str] = {}
    for line in text.split("\n"):
        name, is_set, value = line[:MAX_LINE].rstrip("\r").partition("=")
        if is_set and name in SETTINGS:
            settings.setdefault(name, value)
    return settings


def _read(root: str, path: str) -> str:
    """Return the text of a file; "" if its size is 0, as in /proc: reading such a file can have effects."""
    try:
        with open_inside(root, path) as fd:
            return os.read(fd, MAX_FILE_BYTES).decode("utf-8", "replace") if os.fstat(fd).st_size else ""
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""


class FileRequest(msgspec.Struct, frozen=True):
    """What to read for process ``pid`` of ``proc_root``: settings files, and libraries (see NcclLibrary.files).

    ``uid``: the user who owns the files, -1 when unknown. Paths of libraries are bytes: they can be no UTF-8.
    """

    proc_root: str
    pid: int
    uid: int
    conf: tuple[str, ...] = ()
    libraries: tuple[bytes, ...] = ()


class FileFacts(msgspec.Struct, frozen=True):
    """``settings``: RAS's settings in the files; ``version``: of the oldest library, None if a library's is unknown."""

    settings: dict[str, str]
    version: Version | None


def read_files(requests: list[FileRequest], _body: bytes) -> list[FileFacts | None]:
    """Return the facts for each request; None if its file system fails or does not answer: repeat the request."""
    return _readers.answers(requests, GRACE_SECONDS)


def read_one(request: FileRequest) -> FileFacts | None:
    """Read the requested files; an unreadable file counts as missing. Return None if a library's error can go away."""
    folder = f"{request.proc_root}/{request.pid}"
    settings = read_conf(f"{folder}/root", request.conf)
    try:
        return FileFacts(settings, oldest([_version(folder, os.fsdecode(name)) for name in request.libraries]))
    except (OSError, ValueError, struct.error) as error:  # the job owns path and file: both can be anything, and change
        return None if getattr(error, "errno", None) in _ERRORS_THAT_END else FileFacts(settings, None)


def oldest(versions: Iterable[Version | None]) -> Version | None:
    """Return the oldest version; None if there is no version, or a version is unknown."""
    known = list(versions)
    return min((version for version in known if version is not None), default=None) if None not in known else None


def _version(folder: str, name: str) -> Version | None:
    mapping = f"{folder}/map_files/{name}"
    with open_inside(f"{folder}/root", name) if "/" in name else open_named(mapping, is_link=True) as fd:
        info = os.fstat(fd)
        version = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if version not in _versions:
            if len(_versions) >= MAX_VERSIONS:
                _versions.clear()
            _versions[version] = version_in(fd)
        return _versions.get(version)


_readers: ByUser[FileRequest, FileFacts | None] = ByUser(read_one)
_versions: dict[tuple[int, ...], Version | None] = {}


MAX_LIBRARIES = 4  # If a process maps more libraries, the version is unknown
MAX_MAPS_BYTES = 8 * 1024 * 1024

_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) [^/\n]*(/[^\n]*/lib(?:nccl|rccl)\.so[.0-9]{0,32})( \(deleted\))?$", re.MULTILINE
)
"""Matches the library's name, not its plugins' names, which begin with the same letters."""
_NAME = re.compile(r"/libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$")  # RCCL's file name has the version of ROCm


class NcclLibrary(NamedTuple):
    """The library that a process maps. ``flavor``: nccl, rccl or "" (neither). ``version``: the version in the file
    name, or None.

    ``files``: libraries without a version in the name: the path or, if the file was replaced, the mapping (as in
    /proc/PID/map_files). A process can map several libraries: a preloaded library and its framework's own library. Only
    the first loaded library serves RAS. The maps do not show the order, so the oldest version is used.
    """

    flavor: str
    version: Version | None = None
    files: tuple[bytes, ...] = ()


def mapped_library(proc_root: Path, pid: int) -> NcclLibrary:
    """Return the library that a process maps."""
    try:
        with (proc_root / f"{pid}/maps").open("rb") as file:
            mapped = {match[2]: match for match in _MAPPED.finditer(file.read(MAX_MAPS_BYTES))}
    except OSError:
        return NcclLibrary("")
    if not mapped:
        return NcclLibrary("")
    flavor = "rccl" if b"/librccl" in next(iter(mapped)) else "nccl"
    if len(mapped) > MAX_LIBRARIES:
        return NcclLibrary(flavor)
    versions, files = [], []
    for path, match in mapped.items():
        if named := _NAME.search(os.fsdecode(path)):
            versions.append((int(named[1]), int(named[2]), int(named[3])))
        else:
            files.append(match[1] if match[3] else path)
    return NcclLibrary(flavor, oldest(versions), tuple(files))


MAX_SECTIONS = 1_024
MAX_SECTION_BYTES = 64 * 1024 * 1024  # Limit of .rodata, which has 0.9 MB in 2.32.3

_TEXT = re.compile(rb"[NR]CCL version (?:: )?(\d{1,3})\.(\d{1,3})\.(\d{1,3})[+\0 -]")
_HEADER_BYTES = 64
_SECTION_BYTES = 64


def version_in(fd: int) -> Version | None:
    """Return the version in the read-only text of an ELF library (elf(5)); struct.error when the file is cut short."""
    header = os.pread(fd, _HEADER_BYTES, 0)
    if header[:5] != b"\x7fELF\x02" or header[5:6] != b"\x01":  # 64 bits, little-endian
        return None
    (offset,) = struct.unpack_from("<Q", header, 40)
    size, count, names_index = struct.unpack_from("<HHH", header, 58)
    if size != _SECTION_BYTES or not names_index < count <= MAX_SECTIONS or offset >= 2**62:
        return None
    table = os.pread(fd, size * count, offset)
    sections = [struct.unpack_from("<I20xQQ", table, size * number) for number in range(count)]
    names = _section(fd, *sections[names_index][1:])
    texts = ((start, length) for name, start, length in sections if names[name : name + 8] == b".rodata\0")
    match = _TEXT.search(_section(fd, *next(texts, (0, 0))))  # the first match is used; a job's file may have others
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _section(fd: int, start: int, length: int) -> bytes:
    return os.pread(fd, length, start) if start < 2**62 and length <= MAX_SECTION_BYTES else b""
