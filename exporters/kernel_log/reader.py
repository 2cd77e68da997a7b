"""One look at the log: its events, with equal events grouped, and the state of mounts. Blocking; for one thread."""

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import NamedTuple

from agent.sdk.exporter import Guard, Roots
from agent.sdk.system import sysfs
from exporters.kernel_log.classify import KernelEvent, categories, classify
from exporters.kernel_log.follower import Batch, KernelLogFollower, KernelRecord
from exporters.kernel_log.lines import DRIVER, KernelLines
from exporters.kernel_log.mounts import read_mounted

MAX_AGE_SECONDS = 600.0
"""At a first start, lines that are older than the newest line by more than this are only counted.

The problem may be repaired since. Only the log's own timestamps are compared: printk's clock and CLOCK_MONOTONIC drift
apart.
"""
MAX_BACKLOG_READS = 50
"""Reads of the follower at the first look: a million records, more than any log has. Later records count as new."""
MAX_AHEAD = 4  # Reads between two looks. A bundle beyond this limit has the lines of the last read.
MAX_ALIKE = 512  # Texts of lines whose meaning is cached: a storm of lines has few different texts

LAST_RECORDS = 200  # Records of the kernel that are kept for an evidence bundle. Records that users wrote are not kept.
AUDIT = "audit: "
"""The beginning of audit records, which appear here without auditd. They have command lines (EXECVE, PROCTITLE)."""

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


class Look(NamedTuple):
    """The result of one look.

    ``mounted``: by block device, whether it is mounted read-only; None without such a device or without mountinfo.
    """

    groups: list[EventGroup]
    lost: int
    mounted: dict[str, bool] | None


class LogReader:
    """Reads events from the records of a follower. ``last``: the last records of the kernel.

    ``settled``: the number of the last record that a restarted agent need not read again.
    """

    def __init__(self, follower: KernelLogFollower, roots: Roots, guard: Guard) -> None:
        self._follower = follower
        self._roots = roots
        self._guard = guard
        self._lines = KernelLines()
        self._ahead: list[Batch] = []
        self.last: deque[KernelRecord] = deque(maxlen=LAST_RECORDS)

    @property
    def settled(self) -> int:
        """Return the number of the record; see the class."""
        return self._lines.settled

    def look(self, read_only: Iterable[str], *, is_backlog: bool) -> Look:
        """Return new events, lost records and the state of mounts. Only records that the kernel wrote are events.

        ``read_only``: file systems that were read-only; their mounts are checked. ``is_backlog``: the first look.
        """
        is_first_start = is_backlog and self._follower.last < 0
        events: list[tuple[KernelEvent, float]] = []
        processes: dict[int, tuple[int, int]] = {}
        lost, newest = 0, 0.0
        ahead, self._ahead = self._ahead, []
        for number in range(len(ahead) + (MAX_BACKLOG_READS if is_backlog else 1)):
            batch = ahead[number] if number < len(ahead) else self._read()
            lost += batch.lost
            newest = max(newest, *(record.seconds for record in batch.records), 0.0)
            lines, doubtful = self._lines.select(batch.records, self._follower.last, wait=not is_backlog)
            lost += doubtful
            for record in lines:
                read = partial(self._event, record, processes)
                event = self._guard.attempt("a kernel record", read, sequence=record.sequence)
                if event is not None:
                    events.append((event, record.seconds))
            if batch.is_all and number >= len(ahead):
                break
        groups = [EventGroup(event, at, is_first_start and newest - at > MAX_AGE_SECONDS, 1) for event, at in events]
        asked = tuple(read_only)
        return Look(grouped(groups), lost, read_mounted(self._roots, asked) if asked else None)

    def catch_up(self) -> None:
        """Read new records into ``last``; the next look has their events."""
        if len(self._ahead) < MAX_AHEAD:
            self._ahead.append(self._read())

    def _read(self) -> Batch:
        batch = self._follower.read()
        last = self.last[-1].sequence if self.last else -1
        new = [record for record in (*batch.known, *batch.records) if record.sequence > last]
        self.last.extend([record for record in new if _is_kept(record)])
        return batch

    def _event(self, record: KernelRecord, processes: dict[int, tuple[int, int]]) -> KernelEvent | None:
        """Return the event of a line of the kernel; None for most lines."""
        event = remembered(record.text)
        if event is None:
            return None
        if event.pid not in processes:
            processes[event.pid] = _process_of(self._roots, event.pid)
        pid, user = processes[event.pid]
        return event._replace(pid=pid, user=user)


def _is_kept(record: KernelRecord) -> bool:
    """Return True for a record of a bundle: the kernel's, and no text of a user's at its beginning."""
    is_own = record.writer == "kernel" or (record.writer == "fragment" and record.text.startswith(DRIVER))
    return is_own and not record.text.startswith(AUDIT)


def grouped(groups: Iterable[EventGroup]) -> list[EventGroup]:
    """Group equal events. Events before a recovery and events after it stay in different groups."""
    merged: list[EventGroup] = []
    places: dict[tuple[KernelEvent, bool], int] = {}
    for group in groups:
        key = (group.event, group.is_old)
        if key in places:
            before = merged[places[key]]
            merged[places[key]] = group._replace(times=before.times + group.times)
            continue
        if categories()[group.event.category].heals:
            places.clear()
        places[key] = len(merged)
        merged.append(group)
    return merged


def _process_of(roots: Roots, thread: int) -> tuple[int, int]:
    """Return the pid of a thread's process and its real user id (-1: unknown).

    For a thread that has ended, return the thread's own number as pid.
    """
    status = (sysfs.read_text(roots.proc / str(thread) / "status") if thread else None) or ""
    group, user = _THREAD_GROUP.search(status), _USER.search(status)
    return int(group[1]) if group else thread, int(user[1]) if user else -1
