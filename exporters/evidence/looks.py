"""Looks at processes in threads: one that hangs in the kernel costs its own rank, and takes the thread with it.

A process that waits in exec, for a file system to close a file, holds a lock that reading most of its files waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agent.sdk.exporter import OwnThread
from exporters.evidence.processes import node_files, rank_files

MAX_THREADS = 4
"""Of looks at the same time, those included that do not come back; none is begun beyond these."""
MAX_RANKS = 64
"""Ranks of a job on a node whose processes are looked at."""
RANK_SECONDS = 1.0
"""For one rank's process: its files take milliseconds, and with 512 threads a tenth of a second on a busy node."""
UNREAD = "ranks/unread.txt"

_Files = dict[str, bytes]


class ProcessLooks:
    """See the module. ``thread`` makes a thread of its exporter's by its name. Used on the event loop."""

    def __init__(self, thread: Callable[[str], OwnThread]) -> None:
        self._thread = thread
        self._free: list[OwnThread] = []
        self._made = 0

    async def look(self, proc: Path, cgroups: Path, pids: Mapping[str, int]) -> _Files:
        """Return what there is of the node and of these ranks' processes, by name in the bundle.

        ``pids``: by rank. Ranks about which the kernel does not answer are named in UNREAD. RuntimeError where too
        many looks have not come back.
        """
        found = await self._on_a_thread(partial(node_files, proc))
        unread = []
        for rank, pid in list(pids.items())[:MAX_RANKS]:
            try:
                async with asyncio.timeout(RANK_SECONDS):
                    found |= await self._on_a_thread(partial(rank_files, proc, cgroups, rank, pid))
            except TimeoutError:
                unread.append(f"rank {rank}, pid {pid}: no answer within {RANK_SECONDS:g} s\n")
            except RuntimeError as error:
                unread.append(f"rank {rank}, pid {pid}: {error}\n")
        if unread:
            found[UNREAD] = "".join(unread).encode()
        return found

    async def _on_a_thread(self, look: Callable[[], _Files]) -> _Files:
        if not self._free:
            if self._made >= MAX_THREADS:
                raise RuntimeError(f"{MAX_THREADS} looks at processes have not come back")
            self._made += 1
            self._free.append(self._thread(f"evidence-{self._made}"))
        thread = self._free.pop()
        return await thread.call(partial(self._look, thread, look))

    def _look(self, thread: OwnThread, look: Callable[[], _Files]) -> _Files:
        """Run ``look`` in ``thread``, which is free again afterwards, also when its caller has given up."""
        try:
            return look()
        finally:
            self._free.append(thread)
