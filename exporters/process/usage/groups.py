"""Waits of the control groups of rank processes (PSI, and throttling in both cgroup versions), and each job's sum."""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from agent.sdk.system import sysfs
from exporters.process.usage.totals import GroupTotals

MAX_LEVELS = 8  # The nearest groups, from a process's own upwards: a Slurm task has six levels, a pod's container five
MAX_GROUPS = 512  # Groups read in one scan; the next scan reads the next groups
_PRESSURE = re.compile(r"^some [^\n]*\btotal=(\d{1,18})$", re.MULTILINE)
_THROTTLED = re.compile(r"^throttled_(usec|time) (\d{1,18})$", re.MULTILINE)


class GroupPaths(msgspec.Struct, frozen=True):
    """``own``: a process's group of cgroup version 2, which has PSI, or empty. ``throttling``: its groups that can have
    a quota."""

    own: str = ""
    throttling: tuple[str, ...] = ()


def group_paths(paths: Mapping[str, str], sys_root: Path) -> GroupPaths:
    """Return the directories of a process's cgroup paths (by controllers; '' is version 2).

    The root group belongs to no job, and a path outside of the agent's cgroup namespace has no directory.
    """
    base = sys_root / "fs" / "cgroup"
    unified = base if (base / "cgroup.controllers").exists() else base / "unified"
    own = levels(paths.get("", "/"), unified)
    version1 = next((path for controllers, path in paths.items() if "cpu" in controllers.split(",")), "/")
    return GroupPaths(own[0] if own else "", own + levels(version1, base / "cpu"))


def levels(path: str, mount: Path) -> tuple[str, ...]:
    """Return the directories of a group and of the groups above, nearest first; () for a root or a path upwards."""
    group = PurePosixPath(path.lstrip("/"))
    if ".." in group.parts:
        return ()
    groups = [level for level in (group, *group.parents) if level != PurePosixPath()]
    return tuple(str(mount / level) for level in groups[:MAX_LEVELS])


class GroupReader:
    """Reads the groups of all ranks, MAX_GROUPS at each scan; used from one thread."""

    def __init__(self) -> None:
        self._known: dict[str, GroupTotals] = {}
        self._next = 0

    def read(self, ranks: Iterable[GroupPaths]) -> dict[str, GroupTotals]:
        """Return the waits of these groups at their last read, by directory; forget other groups."""
        with_pressure: dict[str, bool] = {}
        for paths in ranks:
            for directory in paths.throttling:
                with_pressure[directory] = with_pressure.get(directory, False) or directory == paths.own
        directories = list(with_pressure)
        start = self._next % max(len(directories), 1)
        due = (directories[start:] + directories[:start])[:MAX_GROUPS]
        self._next = start + len(due)
        self._known = {directory: totals for directory, totals in self._known.items() if directory in with_pressure}
        for directory in due:
            self._read(directory, pressure=with_pressure[directory])
        return dict(self._known)

    def _read(self, directory: str, *, pressure: bool) -> None:
        throttled = _throttled(sysfs.read_text(Path(directory, "cpu.stat")) or "")
        if not pressure:
            self._known[directory] = GroupTotals(throttled=throttled)
            return
        files = (Path(directory, f"{name}.pressure") for name in ("cpu", "memory", "io"))
        pressures = [_PRESSURE.search(sysfs.read_text(file) or "") for file in files]
        cpu, memory, io = (0 if match is None else int(match[1]) for match in pressures)
        self._known[directory] = GroupTotals(cpu, memory, io, throttled)


def _throttled(text: str) -> int:
    """Return throttled microseconds (version 1 has nanoseconds); 0 for a group without a limit."""
    match = _THROTTLED.search(text)
    if match is None:
        return 0
    return int(match[2]) if match[1] == "usec" else int(match[2]) // 1000


class JobTotals:
    """The waits of each job with live ranks on the node. Totals begin at 0 with the first reading of a group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, GroupTotals]] = {}
        self.waited: dict[str, GroupTotals] = {}

    def note(self, directories: Mapping[str, Collection[str]], totals: Mapping[str, GroupTotals]) -> None:
        """Add a reading: the groups of each job's live ranks, and the groups' totals. Forget other jobs."""
        groups = {
            job_id: {directory: totals[directory] for directory in of_job if directory in totals}
            for job_id, of_job in directories.items()
        }
        waited = {}
        for job_id, now in groups.items():
            before = self._groups.get(job_id, {})
            waited[job_id] = self.waited.get(job_id, GroupTotals())
            for directory, reading in now.items():
                if directory in before:
                    waited[job_id] = _added(waited[job_id], before[directory], reading)
        self._groups, self.waited = groups, waited


def _added(total: GroupTotals, before: GroupTotals, now: GroupTotals) -> GroupTotals:
    """Return the total plus the increase; a smaller number means a new group with the old name.

    After a 0, which also stands for a missing value, nothing is added: a group's whole past would count as new.
    """
    increases = ((new - old if new >= old else new) if old else 0 for old, new in zip(before, now, strict=True))
    return GroupTotals(*(sum(pair) for pair in zip(total, increases, strict=True)))
