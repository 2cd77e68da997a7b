"""Looks at processes in threads: one that hangs in the kernel costs its own look, and takes the thread with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agent.api import OwnThread
from exporters.evidence.processes import process_files

MAX_THREADS = 4
"""Of looks at the same time, those included that do not come back; none is begun beyond these."""


class ProcessLooks:
    """See the module. ``thread`` makes a thread of its exporter's by its name. Used on the event loop."""

    def __init__(self, thread: Callable[[str], OwnThread]) -> None:
        self._thread = thread
        self._free: list[OwnThread] = []
        self._made = 0

    async def look(self, proc: Path, cgroups: Path, pids: Mapping[str, int]) -> dict[str, bytes]:
        """Return what ``process_files`` does; RuntimeError where too many looks have not come back."""
        if not self._free:
            if self._made >= MAX_THREADS:
                raise RuntimeError(f"{MAX_THREADS} looks at processes have not come back")
            self._made += 1
            self._free.append(self._thread(f"evidence-{self._made}"))
        thread = self._free.pop()
        return await thread.call(partial(self._look, thread, proc, cgroups, dict(pids)))

    def _look(self, thread: OwnThread, proc: Path, cgroups: Path, pids: Mapping[str, int]) -> dict[str, bytes]:
        """In ``thread``, which is free again at the end, also where nobody waits for it any more."""
        try:
            return process_files(proc, cgroups, pids)
        finally:
            self._free.append(thread)
