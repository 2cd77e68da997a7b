"""Which NCCL or RCCL a process runs, learnt without asking it: from the library's name or its text. Blocking."""

from __future__ import annotations

import os
import re
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from agent.api import ProcessKey

Version = tuple[int, int, int]

MAX_MAPS_BYTES = 8 * 1024 * 1024
MAX_FILES = 256
"""Remembered at a time; a user who makes more has them read again."""
MAX_SECTIONS = 1_024
MAX_SECTION_BYTES = 64 * 1024 * 1024
"""Of .rodata; that of 2.32.3 has 0.9 MB."""

_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) [^/\n]*(/[^\n]*/lib(?:nccl|rccl)\.so[.0-9]{0,32})( \(deleted\))?$", re.MULTILINE
)
"""Of the plugins, whose names begin alike, none is the library."""
_NAME = re.compile(r"/libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$")  # RCCL's carries the version of ROCm
_TEXT = re.compile(rb"[NR]CCL version (?:: )?(\d{1,3})\.(\d{1,3})\.(\d{1,3})[+\0 -]")
_HEADER_BYTES = 64
_SECTION_BYTES = 64


class NcclLibrary(NamedTuple):
    """What a process maps: nccl or rccl (empty: neither is seen), and the version, None where it cannot be told."""

    flavor: str
    version: Version | None


_NONE = NcclLibrary("", None)


class Libraries:
    """Versions by library file, so that one file is read once for all the processes that map it."""

    def __init__(self, proc_root: Path) -> None:
        self._root = proc_root
        self._versions: dict[tuple[int, ...], Version | None] = {}

    def of(self, key: ProcessKey) -> NcclLibrary:
        """What a process runs."""
        folder = self._root / str(key.pid)
        try:
            with (folder / "maps").open("rb") as file:
                mapped = _MAPPED.search(file.read(MAX_MAPS_BYTES))
        except OSError:
            return _NONE
        if mapped is None:
            return _NONE
        path = os.fsdecode(mapped[2])
        flavor = "rccl" if "/librccl" in path else "nccl"
        if named := _NAME.search(path):
            return NcclLibrary(flavor, (int(named[1]), int(named[2]), int(named[3])))
        if mapped[3]:  # what is at the path now is another file
            return NcclLibrary(flavor, self._read(f"{folder}/map_files/{mapped[1].decode()}", os.O_RDONLY))
        return NcclLibrary(flavor, self._read(f"{folder}/root{path}", os.O_RDONLY | os.O_NOFOLLOW))

    def _read(self, path: str, flags: int) -> Version | None:
        try:
            fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            info = os.fstat(fd)
            place = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
            if stat.S_ISREG(info.st_mode) and place not in self._versions:
                if len(self._versions) >= MAX_FILES:
                    self._versions.clear()
                self._versions[place] = version_in(fd)
            return self._versions.get(place)
        except (OSError, struct.error):  # the file is the job's: it may be anything, and change
            return None
        finally:
            os.close(fd)


def version_in(fd: int) -> Version | None:
    """The version in the read-only text of an ELF library (elf(5)); struct.error when it is cut short."""
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
    match = _TEXT.search(_section(fd, *next(texts, (0, 0))))  # of a file that names more the first alone: it is a job's
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _section(fd: int, start: int, length: int) -> bytes:
    return os.pread(fd, length, start) if start < 2**62 and length <= MAX_SECTION_BYTES else b""
