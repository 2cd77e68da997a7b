"""Which NCCL or RCCL a process runs, learnt from the library that it maps. Blocking; standard library alone."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

Version = tuple[int, int, int]

MAX_MAPS_BYTES = 8 * 1024 * 1024

_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) [^/\n]*(/[^\n]*/lib(?:nccl|rccl)\.so[.0-9]{0,32})( \(deleted\))?$", re.MULTILINE
)
"""Of the plugins, whose names begin alike, none is the library."""
_NAME = re.compile(r"/libnccl\.so\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$")  # RCCL's carries the version of ROCm


class NcclLibrary(NamedTuple):
    """What a process maps: nccl or rccl (empty: neither is seen), and the version, None where the name has none.

    Then it is in the text of the file: at ``path`` as the process sees it, or, as that was replaced since, ``mapping``.
    """

    flavor: str
    version: Version | None = None
    path: str = ""
    mapping: str = ""


def mapped_library(proc_root: Path, pid: int) -> NcclLibrary:
    """What a process runs."""
    try:
        with (proc_root / f"{pid}/maps").open("rb") as file:
            mapped = _MAPPED.search(file.read(MAX_MAPS_BYTES))
    except OSError:
        return NcclLibrary("")
    if mapped is None:
        return NcclLibrary("")
    path = os.fsdecode(mapped[2])
    flavor = "rccl" if "/librccl" in path else "nccl"
    if named := _NAME.search(path):
        return NcclLibrary(flavor, (int(named[1]), int(named[2]), int(named[3])))
    if mapped[3]:
        return NcclLibrary(flavor, mapping=mapped[1].decode())
    return NcclLibrary(flavor, path=path)


MAX_SECTIONS = 1_024
MAX_SECTION_BYTES = 64 * 1024 * 1024  # Of .rodata; that of 2.32.3 has 0.9 MB

_TEXT = re.compile(rb"[NR]CCL version (?:: )?(\d{1,3})\.(\d{1,3})\.(\d{1,3})[+\0 -]")
_HEADER_BYTES = 64
_SECTION_BYTES = 64


def version_in(fd: int) -> tuple[int, int, int] | None:
    """Return the version in the read-only text of an ELF library (elf(5)); struct.error when it is cut short."""
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
