"""Reads /dev/kmsg without waiting: every record once, also over restarts of the agent. Blocking; for one thread.

Records are those of Documentation/ABI/testing/dev-kmsg of the kernel.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NamedTuple

MAX_RECORD_BYTES = 16 * 1024
"""One read gives one record, and fails where it would not fit; the kernel's are below 9 KiB (PRINTK_MESSAGE_MAX)."""
MAX_RECORDS = 20_000
"""Of one look; a flood takes several, or is overwritten and counted as lost."""


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


class Batch(NamedTuple):
    """New records, how many the kernel had overwritten before they were read, and whether these were all there are.

    ``known``: records that come up again because the log was opened anew.
    """

    records: list[KernelRecord]
    lost: int
    is_all: bool
    known: list[KernelRecord]


class KernelLogFollower:
    """``last``: the number of the last record that was read before, -1 when there is none.

    A recorded file in the place of the device is read whole.
    """

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        self._last = last
        self._fd: int | None = None

    @property
    def last(self) -> int:
        """The number of the last record that was read."""
        return self._last

    def read(self) -> Batch:
        """What is new; OSError when the log cannot be opened."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found: list[KernelRecord] = []
        known: list[KernelRecord] = []
        lost, is_all = 0, False
        for _ in range(MAX_RECORDS):
            try:
                raw = os.read(self._fd, MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read goes on with the oldest there is
                    continue
                if error.errno != errno.EAGAIN:
                    self.close()
                    raise
                raw = b""
            if not raw:
                is_all = True
                break
            for record in parse_records(raw):
                if record.sequence <= self._last:
                    known.append(record)
                    continue
                lost += record.sequence - self._last - 1 if self._last >= 0 else 0
                self._last = record.sequence
                found.append(record)
        return Batch(found, lost, is_all, known)

    def close(self) -> None:
        """Let go of the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
