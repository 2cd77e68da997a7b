"""The version of NCCL or RCCL in the text of its library. Blocking; standard library alone."""

from __future__ import annotations

import os
import re
import struct

MAX_SECTIONS = 1_024
MAX_SECTION_BYTES = 64 * 1024 * 1024
"""Of .rodata; that of 2.32.3 has 0.9 MB."""

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
