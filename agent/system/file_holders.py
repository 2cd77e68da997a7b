"""Which files processes of this node write, and for which job of Slurm. Of a file that many nodes see the node of its
writer alone is to read it.
"""

import re
from collections.abc import Mapping

from agent.system.procfs import ProcFS

ROOT_UID = 0
"""Schedulers' daemons write the output of jobs as root."""
MAX_PROCESSES = 65_536
"""Of a node, looked at in one look."""
# Slurm's control groups from the root of the hierarchy on, where no user can make one (plugins cgroup/v2 and /v1).
_JOB = re.compile(
    r"/(?:system\.slice/(?:[^/]+_)?slurmstepd\.scope|slurm(?:_[^/]+)?/uid_[0-9]{1,10})/job_([0-9]{1,10})(?=/|$)",
    re.ASCII,
)


def writers_of(proc: ProcFS, paths: Mapping[str, int]) -> dict[tuple[int, int], str]:
    """Which of ``paths`` (each with the uid of its file) a process of that user, or of root, can write to now.

    Returns device and inode, with the id of the Slurm job whose control group holds that process; empty where there is
    none. Blocking. Takes the right to the processes' descriptors; where that is missing nothing is found.
    """
    writers: dict[tuple[int, int], str] = {}
    users = {*paths.values(), ROOT_UID}
    for pid in proc.pids()[:MAX_PROCESSES] if paths else ():
        status = proc.status(pid)
        if status is None or status.uid not in users:
            continue
        for file in proc.open_files(pid, paths.__contains__) or ():
            is_theirs = paths.get(file.target) == status.uid or status.uid == ROOT_UID
            if file.inode and is_theirs and proc.may_write(pid, file):
                identity = (file.device, file.inode)
                writers[identity] = writers.get(identity) or _job_of(proc, pid)
    return writers


def _job_of(proc: ProcFS, pid: int) -> str:
    jobs = (_JOB.match(path) for path in proc.cgroup(pid).values())
    return next((job[1] for job in jobs if job is not None), "")
