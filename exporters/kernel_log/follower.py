"""Reads /dev/kmsg without waiting: every record once, also over restarts of the agent. Blocking; for one thread."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from exporters.kernel_log.records import KernelRecord, parse_records

MAX_RECORD_BYTES = 16 * 1024
"""One read gives one record, and fails where it would not fit; the kernel's are below 9 KiB (PRINTK_MESSAGE_MAX)."""
MAX_RECORDS = 20_000
"""At one look: a flood is read over several, or is overwritten and counted as lost."""


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
