"""Finds the processes that the OOM killer ended, from the kill counts of their control groups.

A SIGKILL came from the OOM killer if the kill count of the process's group has just risen. If that group is gone, the
count of the nearest existing group above it decides. One kill has one victim: it does not explain the SIGKILL of a
sibling in the same group a moment later. If the kernel kills a group as a whole, all its processes are victims.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.sdk.system import sysfs
from exporters.process.usage.groups import levels


class OomKills(NamedTuple):
    """The counts of a group: killed processes, and groups killed as a whole."""

    kills: int
    groups: int = 0


class OomCount(msgspec.Struct, frozen=True):
    """The counts of a process's groups as they were before any recent kill.

    ``counters``: the files that count OOM kills, the process's own group first, with their counts (None: unreadable).
    ``oomd``: the directories of those groups that only root may write to, with systemd-oomd's counts.
    """

    counters: tuple[tuple[str, OomKills | None], ...] = ()
    oomd: tuple[tuple[str, int], ...] = ()


class OomNow(msgspec.Struct, frozen=True):
    """An ended process's nearest readable counter of kills (empty: none), and whether systemd-oomd killed it."""

    file: str = ""
    kills: OomKills = OomKills(0)
    by_oomd: bool = False


class OomLedger:
    """Remembers which kills were assigned to a process. Used from one thread."""

    def __init__(self) -> None:
        self._assigned: dict[str, int] = {}

    def assign(self, before: OomCount | None, now: OomNow | None) -> bool:
        """Return True when the OOM killer ended the process (``before``: its earlier counts); then assign the kill."""
        if before is None or now is None:
            return False
        if now.by_oomd:
            return True
        files = [file for file, _ in before.counters]
        if now.file not in files:
            return False
        counted = [(file, known) for file, known in before.counters[files.index(now.file) :] if known is not None]
        known = counted[0][1]
        if now.kills.groups > known.groups:
            return True
        if now.kills.kills <= self._explained(now.file, known):
            return False
        for file, earlier in counted:  # the groups above count the kill too
            self._assigned[file] = self._explained(file, earlier) + 1
        return True

    def keep(self, counts: Iterable[OomCount]) -> None:
        """Forget the groups without ``counts``: a new group with an old name counts from zero."""
        files = {file for count in counts for file, _ in count.counters}
        self._assigned = {file: kills for file, kills in self._assigned.items() if file in files}

    def _explained(self, file: str, before: OomKills) -> int:
        return max(before.kills, self._assigned.get(file, 0))


_OOM_KILL = re.compile(r"^(oom_kill|oom_group_kill) (\d{1,18})$", re.MULTILINE)
_OOMD_ATTRIBUTES = ("user.oomd_ooms", "user.oomd_kill")
"""systemd-oomd raises the first attribute before it kills a group; the second counts the processes that it killed."""
_COUNT = re.compile(rb"\d{1,18}")


def memory_files(paths: Mapping[str, str], sys_root: Path) -> tuple[str, ...]:
    """Return the files that count OOM kills for these cgroup paths, the process's own group first; can be empty.

    Version 2: memory.events of the group and of the groups above, which count kills below them and outlive the group.
    Version 1: memory.oom_control, which counts only the group's own kills. Both have an `oom_kill` line, version 1
    since Linux 4.13.
    """
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return (f"{sys_root}/fs/cgroup/memory/{path.lstrip('/')}/memory.oom_control",)
    return tuple(f"{directory}/memory.events" for directory in unified_groups(paths, sys_root))


def unified_groups(paths: Mapping[str, str], sys_root: Path) -> tuple[str, ...]:
    """Return the directories of the process's group and of the groups above it in the unified hierarchy, nearest first.

    "/" is the group of a container that has its own control group namespace; the true root has no counters.
    """
    path, base = paths.get(""), sys_root / "fs" / "cgroup"
    if path is None:
        return ()
    return levels(path, base) or ((str(base),) if path == "/" else ())


def oom_kills(counter_file: str) -> OomKills | None:
    """Return the counted OOM kills; None when unreadable (the group may be gone with its process)."""
    counters = dict(_OOM_KILL.findall(sysfs.read_text(Path(counter_file)) or ""))
    kills, groups = counters.get("oom_kill"), counters.get("oom_group_kill", 0)
    return None if kills is None else OomKills(int(kills), int(groups))


def oomd_kills(directory: str) -> int | None:
    """Return systemd-oomd's count at a group; None without the group, or if a user other than root may write to it."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    return sum(_attribute(directory, name) for name in _OOMD_ATTRIBUTES)


def oom_now(before: OomCount) -> OomNow:
    """Return the present counts of an ended process's groups; the nearest existing group decides."""
    by_oomd = any((oomd_kills(directory) or 0) > kills for directory, kills in before.oomd)
    for file, known in before.counters:
        if known is not None and (kills := oom_kills(file)) is not None:
            return OomNow(file, kills, by_oomd)
    return OomNow(by_oomd=by_oomd)


def _attribute(directory: str, name: str) -> int:
    try:
        value = os.getxattr(directory, name, follow_symlinks=False)
    except OSError:  # usually the attribute was never set
        return 0
    return int(value) if _COUNT.fullmatch(value) else 0
