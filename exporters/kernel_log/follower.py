"""Reads /dev/kmsg: each record once, also across restarts of the agent. Blocking, but never waits for records.

For one thread. Documentation/ABI/testing/dev-kmsg of the kernel describes the records.
"""

import errno
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

MAX_RECORD_BYTES = 16 * 1024
"""One read returns one record, and fails if the record is larger. The kernel's limit is 9 KiB (PRINTK_MESSAGE_MAX)."""
MAX_RECORDS = 20_000
"""Records of one look. A flood of records takes several looks, or is overwritten and counted as lost."""


MAX_TEXT = 1024  # Characters of a record's text. The kernel's own limit is about the same.
MAX_SEQUENCE = 1 << 62  # The greatest plausible number of a record. A line with a greater number is not a record.

_FRAGMENTS = (b"c", b"+")
"""Flags of a record that continues a line, or that its writer calls a continuation (KERN_CONT)."""
_RECORD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;,\n]{0,16})[^;\n]{0,256};([^\n]{0,8192})")


class KernelRecord(NamedTuple):
    """A record: its number since the boot, its time (seconds after the boot), its text.

    ``writer``: a user, or the kernel. A fragment is the kernel's, too: the rest of a line that another line
    interrupted, which can begin with a user's text, such as the name of a control group; or a whole line of a driver
    that marks it so (see lines.py).
    """

    sequence: int
    seconds: float
    text: str
    writer: Literal["user", "kernel", "fragment"]


def parse_records(read: bytes) -> list[KernelRecord]:
    """Return the records in ``read``. Lines of a record's dictionary (they begin with a blank) are left out."""
    records = []
    for line in read.split(b"\n"):
        match = _RECORD.match(line)
        if match is not None and int(match[2]) <= MAX_SEQUENCE:
            text = match[5][:MAX_TEXT].decode("utf-8", "replace")
            by_kernel: Literal["kernel", "fragment"] = "fragment" if match[4] in _FRAGMENTS else "kernel"
            writer = by_kernel if int(match[1]) >> 3 == 0 else "user"
            records.append(KernelRecord(int(match[2]), int(match[3]) / 1e6, text, writer))
    return records


class Batch(NamedTuple):
    """New records, the number of records that the kernel overwrote unread, and whether the log is read to its end.

    ``known``: records that appear again because the log was opened again.
    """

    records: list[KernelRecord]
    lost: int
    is_all: bool
    known: list[KernelRecord]


class KernelLogFollower:
    """``last``: the number of the last record that was read, also by an earlier agent; -1 if there is none.

    ``path`` may also be a recorded file; it is read whole.
    """

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        self.last = last
        self._fd: int | None = None

    def read(self) -> Batch:
        """Return the new records. Raise OSError if the log cannot be opened or read."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        records: list[KernelRecord] = []
        known: list[KernelRecord] = []
        lost, is_all = 0, False
        for _ in range(MAX_RECORDS):
            try:
                raw = os.read(self._fd, MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read returns the oldest record
                    continue
                if error.errno != errno.EAGAIN:
                    self.close()
                    raise
                raw = b""
            if not raw:
                is_all = True
                break
            for record in parse_records(raw):
                if record.sequence <= self.last:
                    known.append(record)
                    continue
                lost += record.sequence - self.last - 1 if self.last >= 0 else 0
                self.last = record.sequence
                records.append(record)
        return Batch(records, lost, is_all, known)

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
