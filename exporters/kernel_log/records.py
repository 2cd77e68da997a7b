"""Records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg of the kernel). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_TEXT = 1024
"""Of a record's text; the kernel's own limit is about that."""
MAX_SEQUENCE = 1 << 62
"""No log gets so long: a record with a greater number is none."""

_FRAGMENTS = (b"c", b"+")
"""Flags of a record that goes on with a line; a kernel before 4.9 has "c" for the first one too, which costs no line of
a driver's: those are printed whole."""
_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;,\n]{0,16})[^;\n]{0,256};([^\n]{0,8192})")


class KernelRecord(NamedTuple):
    """A record: its number since the boot, when it was made (seconds after the boot), its text.

    ``from_kernel``: the kernel's own, and from its line's beginning. A fragment, which lost its line to another's that
    came in between, may begin with a user's word: the name of a control group, for one.
    """

    sequence: int
    seconds: float
    text: str
    from_kernel: bool


def parse_records(read: bytes) -> list[KernelRecord]:
    """The records in what was read; lines of a record's dictionary begin with a blank and are left out."""
    found = []
    for line in read.split(b"\n"):
        match = _RECORD.match(line)
        if match is not None and int(match[2]) <= MAX_SEQUENCE:
            facility = int(match[1]) >> 3
            text = match[5][:MAX_TEXT].decode("utf-8", "replace")
            is_own = facility == 0 and match[4] not in _FRAGMENTS
            found.append(KernelRecord(int(match[2]), int(match[3]) / 1e6, text, is_own))
    return found
