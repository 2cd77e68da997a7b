"""Finds Slurm's batch scripts on this node and the sruns below them. Their output is the log of their job.

Ranks write their output to pipes of srun, and no ancestor of a rank is the script that started srun. But slurmstepd
runs as root and has its step in its process title: ``slurmstepd: [4711.batch]``, or ``slurmstepd-wlm: [4711.batch]`` on
Debian (tested with Slurm 22.05).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from agent.sdk.system import ProcFS

MAX_BELOW = 512
"""Limit of checked processes per batch step."""
_SERVER, _FORWARDER, ROOT_UID = "slurmstepd", "srun", 0
_TITLE = re.compile(r"slurmstepd[\w-]{0,16}: \[(\d{1,10})\.batch\]")


class BatchProcess(NamedTuple):
    """A process that writes a job's log. ``scheduled_id``: Slurm's job id. ``forwards``: by any descriptor."""

    pid: int
    uid: int
    scheduled_id: str
    forwards: bool


def batch_processes(procfs: ProcFS) -> list[BatchProcess]:
    """Return the batch scripts that run here and the sruns below them. Reads the stat line of every process once."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    try:
        pids = procfs.pids()
    except OSError:
        return []
    for pid in pids:
        stat = None if procfs.is_in_exec(pid) else procfs.stat(pid)
        if stat is not None:
            names[pid] = stat.comm
            children.setdefault(stat.parent_pid, []).append(pid)
    processes = []
    for server in [pid for pid, name in names.items() if name.startswith(_SERVER)]:
        title, status = _TITLE.match(procfs.title(server)), procfs.status(server)
        if title is not None and status is not None and status.uid == ROOT_UID:
            processes += _below(procfs, server, title[1], names, children)
    return processes


def _below(
    procfs: ProcFS, server: int, scheduled_id: str, names: Mapping[int, str], children: Mapping[int, list[int]]
) -> list[BatchProcess]:
    processes = []
    scripts = children.get(server, [])
    waiting = deque(scripts)
    for _ in range(MAX_BELOW):
        if not waiting:
            break
        pid = waiting.popleft()
        waiting.extend(children.get(pid, []))
        forwards = names[pid] == _FORWARDER
        status = procfs.status(pid) if forwards or pid in scripts else None
        if status is not None:
            processes.append(BatchProcess(pid, status.uid, scheduled_id, forwards))
    return processes
