"""Leave out what hangs: a call to a hung file system returns only when the file system answers again.

A source is what a call may wait for: a path, a device, or the processes of a user. If a call hangs, only its source is
left out. A user controls paths, links, mounts and descriptors, and must not choose a source of another user. So a path
stands for itself only, and a device is that of an open file.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

HUNG_SECONDS = 15.0
"""A call that takes longer hangs. A call is one open, one read, or the wait for one entry of a directory."""
MAX_HUNG = 8
"""Limit of calls that hang at once and are left out; each keeps a thread and the open files of an exporter's run."""


def device_source(device: int) -> str:
    """Return the source of a file that is open, by its device number."""
    return f"device {os.major(device)}:{os.minor(device)}"


class WaitingCall(NamedTuple):
    """A call for ``path`` that waits for ``source``. ``since``: when the call began, or when it was left out."""

    path: str
    source: str
    since: float


class HungSources:
    """The sources that are left out. Each hung call adds its source. Called from any thread."""

    def __init__(self) -> None:
        self._left_out: list[WaitingCall] = []

    def add(self, call: WaitingCall) -> WaitingCall | None:
        """Leave out a call's source. Return None at the limit, or if the source was left out before the call."""
        was_left_out = any(other.source == call.source and other.since <= call.since for other in self._left_out)
        if was_left_out or len(self._left_out) >= MAX_HUNG:
            return None
        entry = call._replace(since=time.monotonic())
        self._left_out.append(entry)
        return entry

    def remove(self, entry: WaitingCall) -> None:
        """End ``add``: the call has returned."""
        self._left_out.remove(entry)

    def all(self) -> frozenset[str]:
        """Return the sources that are left out now."""
        return frozenset(entry.source for entry in self._left_out)


class HangGuard:
    """Notes the call of an exporter's thread, and refuses calls to sources that hang."""

    def __init__(self, hung: HungSources | None = None) -> None:
        self._hung = hung or HungSources()
        self._closed = False
        self._call: WaitingCall | None = None
        self._hopeless: WaitingCall | None = None
        self._entries: deque[WaitingCall] = deque()
        self._refused = ""

    @contextmanager
    def using(self, path: str, *others: str, source: str = "") -> Iterator[None]:
        """Make a call for ``path`` within the block; blocks can be nested. ``source``: what the call waits for.

        Raise OSError if the path, the source, or one of the ``others`` is left out.
        """
        if self._closed or not self.left_out().isdisjoint((path, source, *others)):
            self._refused = path
            raise OSError(errno.EHOSTDOWN, os.strerror(errno.EHOSTDOWN), path)
        with self.noting(path, source or path):
            yield

    @contextmanager
    def noting(self, path: str, source: str) -> Iterator[None]:
        """Make a call that must be made in any case, such as a close, within the block."""
        outer, self._call = self._call, WaitingCall(path, source, time.monotonic())
        try:
            yield
        finally:
            self._call = outer and outer._replace(since=time.monotonic())
            self._note_return()

    def note_answer(self) -> None:
        """Note that one of several calls in the block has returned."""
        if self._call is not None:
            self._call = self._call._replace(since=time.monotonic())

    def left_out(self) -> frozenset[str]:
        """Return the sources that are left out now."""
        return self._hung.all()

    def hung(self) -> WaitingCall | None:
        """Return the current call if it hangs and ``leave_out`` has not refused it."""
        call = self._call
        is_hung = call is not None and call is not self._hopeless and time.monotonic() - call.since > HUNG_SECONDS
        return call if is_hung else None

    def leave_out(self, call: WaitingCall) -> bool:
        """Leave out the source of a call that hangs, until the call returns; return False if it cannot be left out."""
        entry = self._hung.add(call)
        if entry is None:
            self._hopeless = call
            return False
        self._entries.append(entry)
        if self._call is not call:  # it returned meanwhile
            self._note_return()
        return bool(self._entries)

    def close(self) -> None:
        """Refuse all calls: the exporter's run has ended, and a late update must end soon."""
        self._closed = True

    def why(self) -> str:
        """Return which path was refused last, while sources are left out; else an empty text."""
        path = self._refused if self.left_out() else ""
        return path and f"{path} is not read: a call to its file system does not return"

    def _note_return(self) -> None:
        with suppress(IndexError):  # both the exporter's thread and ``leave_out`` may note it
            self._hung.remove(self._entries.popleft())
