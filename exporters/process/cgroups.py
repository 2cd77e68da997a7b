"""Counts OOM kills from the control groups of a process. Blocking."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from exporters.process.oom import OomCount, OomKills, OomNow

MAX_GROUPS = 8
"""Of a process' group and those above it, the nearest: a Slurm task has six, a container of a pod five."""
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
    own = PurePosixPath(paths[""].lstrip("/"))
    above = [each for each in own.parents if each != PurePosixPath()]  # the root counts nothing
    return tuple(str(_base(sys_root) / each) for each in (own, *above)[:MAX_GROUPS])


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
