"""Finds the plugin's files that rank processes hold open for writing, and the process that writes each. Blocking.

Only the descriptors' links are read; no file system can block this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.sdk.files import atoi, strtoll
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS

PLUGIN = "NCCL_PROFILER_PLUGIN"
ENABLE = "NCCL_INSPECTOR_ENABLE"
THREAD = "NCCL_INSPECTOR_DUMP_THREAD_ENABLE"
PROM_DUMP = "NCCL_INSPECTOR_PROM_DUMP"
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
VARIABLES = frozenset({PLUGIN, ENABLE, THREAD, PROM_DUMP, INTERVAL})
LEAST_INTERVAL_SECONDS = 30.0
"""The plugin's shortest interval. The agent does not read nccl.conf and uses this value for a setting there, too."""
MOST_INTERVAL_SECONDS = 3600.0  # A longer setting counts as this: values that are hours old are useless


def asks_for_means(settings: Mapping[str, str]) -> bool:
    """Return True when the environment makes the plugin write such files. A setting in nccl.conf is not seen."""
    return bool(atoi(settings.get(ENABLE, "0"))) and bool(atoi(settings.get(PROM_DUMP, "0")))


def will_write(settings: Mapping[str, str]) -> bool:
    """Return True when the plugin will surely write after an operation: NCCL 2.30 needs an interval, 2.29 does not."""
    has_thread = bool(settings.get(PLUGIN)) and bool(atoi(settings.get(THREAD, "1")))
    return asks_for_means(settings) and has_thread and strtoll(settings.get(INTERVAL, "-1")) >= 0


def interval_seconds(settings: Mapping[str, str]) -> float:
    """Return the least time between two writes of the plugin."""
    seconds = strtoll(settings.get(INTERVAL, "0")) / 1e6
    return min(max(seconds, LEAST_INTERVAL_SECONDS), MOST_INTERVAL_SECONDS)


MAX_PROCESSES = 256  # Rank processes examined in one poll
MAX_FILES = 256  # Limit of files on a node

_NAME = re.compile(r"/nccl_inspector_metrics_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.prom")

FileKey = tuple[ProcessKey, str]


class HeldMeans(NamedTuple):
    """A file that a process holds: its descriptor, the path as the process sees it, and the GPU's UUID in its name."""

    key: ProcessKey
    fd: int
    target: str
    uuid: str

    @property
    def file(self) -> FileKey:
        """Return the key that stays the same when the plugin opens the file again."""
        return self.key, self.target


def held_by(proc: ProcFS, key: ProcessKey) -> list[HeldMeans] | None:
    """Return the files of one process; None if its descriptors are unreadable or it has ended."""
    files = proc.open_files(key.pid, lambda _target: False)
    stat = proc.stat(key.pid)
    if files is None or stat is None or stat.key != key:
        return None
    by_target = {}
    for file in files:
        name = _NAME.search(file.target)
        if name is not None and file.target.endswith(name[0]) and proc.may_write(key.pid, file):
            by_target[file.target] = HeldMeans(key, file.fd, file.target, name[1])
    return list(by_target.values())


MeansHolder = tuple[ProcessKey, int]  # A process that holds a file, and its user


def writers(
    holders: Mapping[tuple[int, int], Iterable[MeansHolder]], owners: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], ProcessKey]:
    """Return by file (device and inode) the process that writes it: the only holder or, of several holders, the only
    process of the file's owner.

    Other files have no writer: two processes on one GPU overwrite each other's file. ``owners``: uids.
    """
    by_file = {}
    for identity, holding in holders.items():
        everyone = set(holding)
        candidates = {(key, uid) for key, uid in everyone if uid == owners.get(identity)} or everyone
        if len(candidates) == 1:
            [(by_file[identity], _)] = candidates
    return by_file
