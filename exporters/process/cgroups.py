"""Which processes the OOM killer ended, by the kill counts of their control groups.

A SIGKILL is the OOM killer's where the count of the process' group has grown since shortly before; where that group is
gone, the count of the nearest one above it that is still there. One kill has one victim: a sibling in the same group
that leaves a moment later was not the one that was counted. A group that is killed as a whole takes all with it."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec


class OomKills(NamedTuple):
    """What a group counts: processes that were killed, and groups that were killed as a whole."""

    kills: int
    groups: int = 0


class OomCount(msgspec.Struct, frozen=True):
    """What is known of a process' groups from before any recent kill.

    ``counters``: the files that count OOM kills, its own group's first, with their counts (None: could not be read).
    ``oomd``: the directories of those groups that root alone may write to, with systemd-oomd's counts.
    """

    counters: tuple[tuple[str, OomKills | None], ...] = ()
    oomd: tuple[tuple[str, int], ...] = ()


class OomNow(msgspec.Struct, frozen=True):
    """The nearest counter that could be read after a process left (empty: none), and whether systemd-oomd killed."""

    file: str = ""
    kills: OomKills = OomKills(0)
    by_oomd: bool = False


class OomLedger:
    """Remembers which kills have been assigned to a process. Used from one thread."""

    def __init__(self) -> None:
        self._assigned: dict[str, int] = {}

    def assign(self, before: OomCount | None, now: OomNow | None) -> bool:
        """Return True when the OOM killer killed the process with the count ``before``; the kill is then assigned."""
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
        if now.kills.kills <= self._taken(now.file, known):
            return False
        for file, earlier in counted:  # the groups above count it too
            self._assigned[file] = self._taken(file, earlier) + 1
        return True

    def keep(self, counts: Iterable[OomCount]) -> None:
        """Forget all groups but these: a new group with an old name counts from zero."""
        files = {file for count in counts for file, _ in count.counters}
        self._assigned = {file: kills for file, kills in self._assigned.items() if file in files}

    def _taken(self, file: str, before: OomKills) -> int:
        return max(before.kills, self._assigned.get(file, 0))


MAX_GROUPS = 8  # Of a process' group and those above it, the nearest: a Slurm task has six, a container of a pod five
_OOM_KILL = re.compile(r"^(oom_kill|oom_group_kill) (\d{1,18})$", re.MULTILINE)
_READ_BYTES = 4096
_OOMD_ATTRIBUTES = ("user.oomd_ooms", "user.oomd_kill")
"""What systemd-oomd counts before it kills a group with all below it, and after that the processes that it killed."""
_COUNT = re.compile(rb"\d{1,18}")


def memory_files(paths: Mapping[str, str], sys_root: Path) -> tuple[str, ...]:
    """Return the files that count OOM kills for these cgroup paths, the process' own first; empty where there are none.

    Version 2: memory.events of the unified hierarchy, also of the groups above, which count what happens below them and
    outlive it. Version 1: memory.oom_control (both have an `oom_kill` line, the latter since Linux 4.13), which counts
    the group's own alone.
    """
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return (str(_base(sys_root) / "memory" / path.lstrip("/") / "memory.oom_control"),)
    return tuple(f"{directory}/memory.events" for directory in unified_groups(paths, sys_root))


def unified_groups(paths: Mapping[str, str], sys_root: Path) -> tuple[str, ...]:
    """Return the directories of the process' group and those above it in the unified hierarchy, nearest first."""
    if "" not in paths:
        return ()
    group = PurePosixPath(paths[""].lstrip("/"))
    above = [directory for directory in group.parents if directory != PurePosixPath()]  # the root counts nothing
    return tuple(str(_base(sys_root) / directory) for directory in (group, *above)[:MAX_GROUPS])


def oom_kills(counter_file: str) -> OomKills | None:
    """Return the OOM kills counted; None when they cannot be read (the group may be gone with its process)."""
    try:
        with open(counter_file, encoding="ascii", errors="replace") as file:
            counters = dict(_OOM_KILL.findall(file.read(_READ_BYTES)))
    except OSError:
        return None
    return (
        OomKills(int(counters["oom_kill"]), int(counters.get("oom_group_kill", 0))) if "oom_kill" in counters else None
    )


def oomd_kills(directory: str) -> int | None:
    """What systemd-oomd counted at a group; None where there is no group or another than root may write to it."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    return sum(_attribute(directory, name) for name in _OOMD_ATTRIBUTES)


def oom_now(before: OomCount) -> OomNow:
    """What the groups of a process that has left count now: the nearest one that is still there decides."""
    by_oomd = any((oomd_kills(directory) or 0) > kills for directory, kills in before.oomd)
    for file, known in before.counters:
        if known is not None and (kills := oom_kills(file)) is not None:
            return OomNow(file, kills, by_oomd)
    return OomNow(by_oomd=by_oomd)


def _attribute(directory: str, name: str) -> int:
    try:
        value = os.getxattr(directory, name, follow_symlinks=False)
    except OSError:  # never set, as a rule
        return 0
    return int(value) if _COUNT.fullmatch(value) else 0


def _base(sys_root: Path) -> Path:
    return sys_root / "fs" / "cgroup"
