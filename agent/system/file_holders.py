"""Which files processes of this node write: of a file that many nodes see, only the node of its writer reads it."""

from __future__ import annotations

from collections.abc import Mapping

from agent.system.procfs import ProcFS

ROOT_UID = 0
"""Schedulers' daemons write the output of jobs as root."""
MAX_PROCESSES = 65_536
"""Of a node, looked at in one look."""


def held_for_writing(proc: ProcFS, paths: Mapping[str, int]) -> frozenset[tuple[int, int]]:
    """Which of ``paths`` (each with the uid of its file) a process of that user, or of root, can write to now.

    Returns devices and inodes. Blocking. Takes the right to the processes' descriptors; where that is missing nothing
    is found.
    """
    found: set[tuple[int, int]] = set()
    users = {*paths.values(), ROOT_UID}
    for pid in proc.pids()[:MAX_PROCESSES] if paths else ():
        status = proc.status(pid)
        if status is None or status.uid not in users:
            continue
        for file in proc.open_files(pid, paths.__contains__) or ():
            is_theirs = paths.get(file.target) == status.uid or status.uid == ROOT_UID
            if file.inode and is_theirs and proc.may_write(pid, file):
                found.add((file.device, file.inode))
    return frozenset(found)
