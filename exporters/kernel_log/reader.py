"""Reads the log, each record once, even across restarts of the agent, and groups equal events. For one thread.

The reads block, but never wait for records.
"""

import errno
import os
import re
from collections import Counter, deque
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from agent.sdk.exporter import FailureCounter, Roots
from agent.sdk.system import sysfs
from exporters.kernel_log.classify import KernelEvent, classify
from exporters.kernel_log.lines import DRIVER, KernelLines, KernelRecord, parse_records
from exporters.kernel_log.mounts import read_mounted

MAX_RECORD_BYTES = 16 * 1024
"""One read returns one record, and fails if the record is larger. The kernel's limit is 9 KiB (PRINTK_MESSAGE_MAX)."""
MAX_RECORDS = 20_000
"""Limit of records per poll. A flood of records takes several polls, or is overwritten and counted as lost."""
MAX_AGE_SECONDS = 600.0
"""At the first start after a boot, a line that is older than the newest line by more than this is only counted.

The problem may be repaired by now. Only the log's timestamps are compared: other clocks drift apart from printk's.
"""
MAX_BACKLOG_READS = 50
"""Limit of reads at the first poll: a million records, more than any log has. Later records count as new."""
MAX_AHEAD = 4  # Limit of reads for bundles between two polls. Further bundles get the lines of the last read.
MAX_ALIKE = 512  # Limit of texts whose meaning is cached: a storm of lines has few different texts

LAST_RECORDS = 200  # Limit of records that are kept for evidence bundles. Records that users wrote are not kept.
AUDIT = "audit: "
"""The beginning of audit records (in this log only without auditd). They show command lines (EXECVE, PROCTITLE)."""

remembered = lru_cache(MAX_ALIKE)(classify)  # Returns the event of a line, by its text

_THREAD_GROUP = re.compile(r"^Tgid:\s*(\d{1,10})$", re.MULTILINE)
_USER = re.compile(r"^Uid:\s*(\d{1,10})\s", re.MULTILINE)


class EventGroup(NamedTuple):
    """An event of the log, the time of its last line (seconds after the boot), and the number of its lines.

    ``is_old``: the event is too old to fail a check.
    """

    event: KernelEvent
    seconds: float
    is_old: bool
    times: int


class LookResult(NamedTuple):
    """The result of one poll.

    ``mounted``: by device or server, whether it is mounted read-only; None without such a part or without mountinfo.
    """

    groups: list[EventGroup]
    lost: int
    mounted: dict[str, bool] | None


class KernelLog:
    """The log at ``path``, or a recorded file.

    ``last``: the number of the last record that was read, even by an earlier agent; -1 if there is none.
    ``last_records``: the last records that the kernel wrote. ``lost``: new losses, by the last lost record's number.
    """

    def __init__(self, path: Path, last: int, roots: Roots, failures: FailureCounter) -> None:
        self._path = path
        self.last = last
        self._roots = roots
        self._failures = failures
        self._fd: int | None = None
        self._newest = -1
        self._ahead: list[tuple[list[KernelRecord], bool]] = []
        self.lines = KernelLines()
        self.lost: Counter[int] = Counter()
        self.last_records: deque[KernelRecord] = deque(maxlen=LAST_RECORDS)

    def look(self, parts: Iterable[str], *, is_backlog: bool) -> LookResult:
        """Return new events, lost records and the state of mounts. Only records that the kernel wrote are events.

        ``parts``: file systems and servers that failed; their mounts are checked. ``is_backlog``: the first poll.
        """
        is_first_start = is_backlog and self.last < 0
        events: list[tuple[KernelEvent, float]] = []
        processes: dict[int, tuple[int, int]] = {}
        newest = 0.0
        for _ in range(MAX_BACKLOG_READS if is_backlog else 1):
            self._ahead.append(self.read())  # after an error, the records that were read ahead stay for the next poll
            batches, self._ahead = self._ahead, []
            records = [record for batch, _ in batches for record in batch]
            newest = max(newest, *(record.seconds for record in records), 0.0)
            lines, doubtful = self.lines.select(records, self.last, wait=not is_backlog)
            self.lost[self.lines.settled] += doubtful
            for record in lines:
                read = partial(self._event, record, processes)
                event = self._failures.attempt("a kernel record", read, sequence=record.sequence)
                if event is not None:
                    events.append((event, record.seconds))
            if batches[-1][1]:
                break
        groups = [EventGroup(event, at, is_first_start and newest - at > MAX_AGE_SECONDS, 1) for event, at in events]
        devices, counted = tuple(parts), [number for number in self.lost if number <= self.lines.settled]
        lost = sum(map(self.lost.pop, counted))
        return LookResult(grouped(groups), lost, read_mounted(self._roots, devices) if devices else None)

    def catch_up(self) -> None:
        """Read new records early, so that a bundle contains them; the next poll returns their events."""
        if len(self._ahead) < MAX_AHEAD:
            self._ahead.append(self.read())

    def read(self) -> tuple[list[KernelRecord], bool]:
        """Return new records, and whether the log is read to its end. Raise OSError if no record can be read."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        records: list[KernelRecord] = []
        for _ in range(MAX_RECORDS):
            try:
                raw = os.read(self._fd, MAX_RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten: the next read returns the oldest one
                    continue
                if error.errno != errno.EAGAIN:
                    self.close()
                    if not records:
                        raise
                raw = b""
            if not raw:
                return records, True
            records += [record for record in parse_records(raw) if self._is_new(record)]
        return records, False

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _is_new(self, record: KernelRecord) -> bool:
        """Keep a record for bundles. Return False if it was read before: the log may have been opened again."""
        if record.sequence > self._newest:
            self._newest = record.sequence
            if _is_for_bundles(record):
                self.last_records.append(record)
        if record.sequence <= self.last:
            return False
        if 0 <= self.last < record.sequence - 1:
            self.lost[record.sequence - 1] = record.sequence - self.last - 1
        self.last = record.sequence
        return True

    def _event(self, record: KernelRecord, processes: dict[int, tuple[int, int]]) -> KernelEvent | None:
        """Return the event of a line of the kernel; None for most lines."""
        event = remembered(record.text)
        if event is None:
            return None
        if event.pid not in processes:
            processes[event.pid] = _process_of(self._roots, event.pid)
        pid, user = processes[event.pid]
        return event._replace(pid=pid, user=user)


def _is_for_bundles(record: KernelRecord) -> bool:
    """Return True for a record to keep: the kernel wrote it, and it does not begin with a user's text."""
    is_own = record.writer == "kernel" or (record.writer == "fragment" and record.text.startswith(DRIVER))
    return is_own and not record.text.startswith(AUDIT)


def grouped(groups: Iterable[EventGroup]) -> list[EventGroup]:
    """Group equal events, in the order of their last lines: this order shows which problems came after a recovery."""
    merged: dict[tuple[KernelEvent, bool], EventGroup] = {}
    for group in groups:
        before = merged.pop((group.event, group.is_old), None)
        times = group.times + (0 if before is None else before.times)
        merged[group.event, group.is_old] = group._replace(times=times)
    return list(merged.values())


def _process_of(roots: Roots, thread: int) -> tuple[int, int]:
    """Return the pid of a thread's process and its real user id (-1: unknown).

    For a thread that has ended, return the thread's own number as pid.
    """
    status = (sysfs.read_text(roots.proc / str(thread) / "status") if thread else None) or ""
    group, user = _THREAD_GROUP.search(status), _USER.search(status)
    return int(group[1]) if group else thread, int(user[1]) if user else -1
