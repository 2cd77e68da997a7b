"""Reads the kernel's files about ranks' processes for a bundle. The reads block, so they have threads of their own.

The reads avoid files that need the lock of the process's memory (environment, command line, maps): such a read can hang
with the process. A process that waits in exec for a file system holds a lock that most of its files in /proc need. Then
the bundle has no files of this rank, and the thread stays blocked.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agent.sdk.exporter import OwnThread

FILES = ("status", "wchan", "syscall", "stack", "stat", "schedstat", "io", "limits", "cgroup", "oom_score")
GROUP_FILES = (
    *("cpu.stat", "cpu.max", "cpu.pressure", "memory.current", "memory.max", "memory.events", "memory.pressure"),
    *("io.stat", "io.pressure", "pids.current", "pids.max", "cgroup.events"),
)
PRESSURE = ("cpu", "memory", "io")
MAX_FILE_BYTES = 64 * 1024
MAX_RANK_THREADS = 512  # Limit of threads per rank, the first ones: NCCL and PyTorch make their threads early
MAX_PER_OWNER = 2  # Limit of simultaneous reads per owner, including reads that hang
MAX_THREADS = 40 * MAX_PER_OWNER  # Limit of simultaneous reads for all owners
MAX_RANKS = 64  # Limit of ranks per job on this node whose processes are read
RANK_SECONDS = 1.0
"""Time limit for a rank's files. Reading takes milliseconds, or a tenth of a second with 512 threads on a busy node."""
UNREAD = "ranks/unread.txt"
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_Files = dict[str, bytes]


def rank_files(proc: Path, cgroups: Path, rank: str, pid: int) -> dict[str, bytes]:
    """Return the files about a rank's process, by name in the bundle; missing and unreadable files are left out.

    ``proc``, ``cgroups``: /proc and the mount of version 2 of control groups.
    """
    files: dict[str, bytes] = {}
    home = proc / str(pid)
    folder = f"ranks/{rank}"
    for name in FILES:
        _put(files, f"{folder}/{name}", home / name)
    if threads := _threads(home / "task"):
        files[f"{folder}/threads.tsv"] = threads
    group = _group(files.get(f"{folder}/cgroup", b""))
    for name in GROUP_FILES if group else ():
        _put(files, f"{folder}/group/{name}", cgroups / group / name)
    return files


def node_files(proc: Path) -> dict[str, bytes]:
    """Return the files about the node, by name in the bundle."""
    files: dict[str, bytes] = {}
    for name in PRESSURE:
        _put(files, f"node/pressure/{name}", proc / "pressure" / name)
    for name in ("loadavg", "meminfo", "uptime"):
        _put(files, f"node/{name}", proc / name)
    return files


def _threads(tasks: Path) -> bytes:
    """Return a line for each thread: id, name, state, wait channel in the kernel, CPU ticks in user and system mode."""
    lines = []
    try:
        ids = sorted((task.name for task in tasks.iterdir()), key=int)[:MAX_RANK_THREADS]
    except (OSError, ValueError):
        return b""
    for tid in ids:
        stat = _read(tasks / tid / "stat")
        fields = stat.rpartition(b")")[2].split()
        name = _CONTROL.sub(b" ", _read(tasks / tid / "comm").strip())
        if len(fields) > 12:
            row = (tid.encode(), name, fields[0], _read(tasks / tid / "wchan").strip(), fields[11], fields[12])
            lines.append(b"\t".join(row))
    return b"\n".join((b"tid\tname\tstate\twait channel\tuser ticks\tsystem ticks", *lines, b"")) if lines else b""


def _group(cgroup: bytes) -> str:
    """Return the path of a process's control group (version 2), without the leading slash; empty without one."""
    for line in cgroup.decode(errors="replace").split("\n"):
        number, _, path = line.partition("::")
        if number == "0" and path.startswith("/") and ".." not in path.split("/"):
            return path.lstrip("/")
    return ""


def _put(files: dict[str, bytes], name: str, path: Path) -> None:
    if data := _read(path):
        files[name] = data


def _read(path: Path) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(MAX_FILE_BYTES) or b""
    except OSError:
        return b""


class ProcessFiles:
    """Reads files about processes in threads. ``thread`` creates a thread with a name. Used on the event loop."""

    def __init__(self, thread: Callable[[str], OwnThread]) -> None:
        self._thread = thread
        self._free: list[OwnThread] = []
        self._made = 0
        self._reading: list[str | None] = []

    async def look(self, proc: Path, cgroups: Path, share: str, pids: Mapping[str, int], seconds: float) -> _Files:
        """Within ``seconds``, return the files about the node and these ranks' processes, by name in the bundle.

        ``pids``: by rank. ``share``: their owner (RankProcess.share). The file UNREAD names the ranks whose files could
        not be read. RuntimeError if no thread is free.
        """
        clock = asyncio.get_running_loop().time
        last_start = clock() + seconds / 2
        files = await self._on_a_thread(None, partial(node_files, proc))
        unread = []
        for rank, pid in list(pids.items())[:MAX_RANKS]:
            try:
                if clock() > last_start:
                    raise RuntimeError("no time left")
                async with asyncio.timeout(RANK_SECONDS):
                    files |= await self._on_a_thread(share, partial(rank_files, proc, cgroups, rank, pid))
            except TimeoutError:
                unread.append(f"rank {rank}, pid {pid}: no answer within {RANK_SECONDS:g} s\n")
            except RuntimeError as error:
                unread.append(f"rank {rank}, pid {pid}: {error}\n")
        if unread:
            files[UNREAD] = "".join(unread).encode()
        return files

    async def _on_a_thread(self, share: str | None, look: Callable[[], _Files]) -> _Files:
        if share is not None and self._reading.count(share) >= MAX_PER_OWNER:
            raise RuntimeError(f"{MAX_PER_OWNER} reads of this owner's processes have not returned")
        if not self._free:
            if self._made >= MAX_THREADS:
                raise RuntimeError(f"{MAX_THREADS} reads of processes have not returned")
            self._made += 1
            self._free.append(self._thread(f"evidence-{self._made}"))
        thread = self._free.pop()
        self._reading.append(share)
        try:
            read = thread.submit(self._look, thread, share, look)
        except RuntimeError:  # the thread does not start
            self._reading.remove(share)
            self._made -= 1
            raise
        return await asyncio.wrap_future(read)

    def _look(self, thread: OwnThread, share: str | None, look: Callable[[], _Files]) -> _Files:
        """Run ``look`` in ``thread``, and free the thread afterwards, even if the caller has stopped waiting."""
        try:
            return look()
        finally:
            self._reading.remove(share)
            self._free.append(thread)
