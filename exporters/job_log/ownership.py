"""Maps a log to its job. Blocking: reads /proc.

A log belongs to a job if a rank of the job, an ancestor of the rank, or the job's batch script writes its output to the
log. It also belongs to a job if its name has the job id, or if it lies in the pod folder of a rank. In each case a user
of the job or root must own the log.

NVRx's cycle file names the log of a restart cycle (cycle_info_writer.py: cycle_log_file). A rank's environment names
the cycle file. A job's user controls both paths and the content. So both files must be regular files of the rank's
user, as the rank's process sees them, and nothing else is opened.

Under Slurm ranks write their output to pipes of srun, and no ancestor of a rank is the script that started srun. So the
exporter finds the script below root's slurmstepd, whose process title names its step: ``slurmstepd: [4711.batch]``, or
``slurmstepd-wlm: [4711.batch]`` on Debian (tested with Slurm 22.05).
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from agent.helper.by_user import ByUser
from agent.sdk.exporter import Outputs
from agent.sdk.files import in_turns
from agent.sdk.ranks import UNKNOWN_RANK, RankView
from agent.sdk.system import OpenFile, ProcFS
from agent.system.inside import open_inside, read_bounded, stat_inside
from exporters.job_log.jobs import LoggedJob, rank_of

MAX_BELOW = 512  # Limit of checked processes per batch step
_SERVER, _FORWARDER = "slurmstepd", "srun"
_TITLE = re.compile(r"slurmstepd[\w-]{0,16}: \[(\d{1,10})\.batch\]")
MAX_ANCESTORS = 6
"""Limit of checked ancestors per rank: launcher, script shell, first process of a container. Their output is used."""
ROOT_UID = 0
SHARED_FILE_SYSTEMS = frozenset(
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "pvfs2", "orangefs", "afs",
     "9p", "virtiofs", "glusterfs"]
)  # fmt: skip
"""File system types that several nodes share. All ``fuse.`` types count, because some of them are shared."""
_POD_UID = re.compile(r"[_/-]([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:/|$)")
_MOUNT = re.compile(rb"^\d{1,10} \d{1,10} (\d{1,10}):(\d{1,10}) [^\n]*? - ([^ \n]{1,64}) ", re.MULTILINE)

Identity = tuple[int, int]


class BatchProcess(NamedTuple):
    """A process that writes a job's log. ``scheduled_id``: Slurm's job id; ``forwards``: srun, which may write the log
    through any descriptor."""

    pid: int
    uid: int
    scheduled_id: str
    forwards: bool


def batch_processes(procfs: ProcFS) -> list[BatchProcess]:
    """Return the running batch scripts and the sruns below them. Reads the stat line of every process once."""
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


class ClaimedLog(NamedTuple):
    """A log and its job. ``rank``: the only rank that writes the log, else UNKNOWN_RANK.

    ``path``: empty if only the log's name or pod folder shows its job. ``has_ranks``: each line begins with its rank.
    """

    job_id: str
    rank: str = UNKNOWN_RANK
    path: str = ""
    has_ranks: bool = False


def by_any_id(jobs: Iterable[LoggedJob]) -> dict[str, list[LoggedJob]]:
    """Return for each id the jobs that have this id."""
    by_id: dict[str, list[LoggedJob]] = {}
    for job in jobs:
        for name in job.ids:
            by_id.setdefault(name, []).append(job)
    return by_id


def job_outputs(
    outputs: Outputs, procfs: ProcFS, jobs: Collection[LoggedJob], batch: Iterable[BatchProcess] = ()
) -> dict[Identity, ClaimedLog]:
    """Return the regular files that running ranks of ``jobs`` and their ancestors write their output to.

    ``batch``: batch scripts and their sruns, of any job. A file that two jobs write is left out. Blocking.
    """
    claims: dict[Identity, ClaimedLog] = {}
    doubtful: set[Identity] = set()

    def add(job: LoggedJob, pid: int, rank: str, *, forwards: bool = False) -> None:
        for file in outputs.of(pid, forwards=forwards):
            path = outputs.path_of(pid, file)
            identity = (file.device, file.inode)
            known = claims.get(identity)
            if known is not None and known.job_id != job.job_id:
                doubtful.add(identity)
            elif path is not None:
                same = known is None or known.rank == rank
                claims[identity] = ClaimedLog(job.job_id, rank if same else UNKNOWN_RANK, path)

    by_id = by_any_id(jobs)
    for job in jobs:
        for pid, rank in _writers(procfs, job).items():
            add(job, pid, rank)
    for process in batch:
        fitting = [job for job in by_id.get(process.scheduled_id, []) if process.uid in job.uids]
        status = procfs.status(process.pid) if len(fitting) == 1 else None
        if status is not None and status.uid == process.uid:  # else another process has this pid now
            add(fitting[0], process.pid, UNKNOWN_RANK, forwards=process.forwards)
    return {identity: claim for identity, claim in claims.items() if identity not in doubtful}


def _writers(procfs: ProcFS, job: LoggedJob) -> dict[int, str]:
    """Return the pids of the job's running ranks, and of ancestors that the job's users own, each with its rank."""
    running = [view for view in job.ranks if view.process.exited_at is None]
    ranks = {view.process.key.pid: rank_of(view) for view in running}
    above: dict[int, str] = {}
    for view in running:
        parent = view.process.facts.parent_pid
        for _ in range(MAX_ANCESTORS):
            if parent <= 1 or parent in ranks or parent in above:
                break
            status, stat = procfs.status(parent), procfs.stat(parent)
            if status is None or stat is None or status.uid not in job.uids or status.uid == ROOT_UID:
                break
            above[parent] = UNKNOWN_RANK
            parent = stat.parent_pid
    return above | ranks


def claimed(
    path: str,
    uid: int,
    job_id: str | None,
    output: ClaimedLog | None,
    jobs: Mapping[str, LoggedJob],
    by_id: Mapping[str, list[LoggedJob]],
) -> ClaimedLog | None:
    """Return the job of a log; None without proof. ``uid``: the log's owner; ``job_id``: the id in the log's name."""
    if output is not None and (job := jobs.get(output.job_id)) is not None and may_be_of(uid, job):
        return output
    named = by_id.get(job_id, []) if job_id is not None else []
    if uid == ROOT_UID and (pod := _POD_UID.search(path)) is not None:
        named = [job for job in jobs.values() if pod[1] in job.pods]
    fitting = [job for job in named if may_be_of(uid, job)]
    return ClaimedLog(fitting[0].job_id) if len(fitting) == 1 else None


def may_be_of(uid: int, job: LoggedJob) -> bool:
    """Return True if a job's log can belong to this user."""
    return uid == ROOT_UID or uid in job.uids


def shared_devices(mountinfo: bytes) -> frozenset[int]:
    """Return the device numbers of mounted file systems that other nodes share (/proc/self/mountinfo)."""
    devices = set()
    for major, minor, kind in _MOUNT.findall(mountinfo):
        name = kind.decode("ascii", "replace")
        if name in SHARED_FILE_SYSTEMS or name.startswith("fuse."):
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)


CYCLE_FILE = "NVRX_CURRENT_CYCLE_INFO"  # NVRx's variable for the path of the job's current cycle file
MAX_CYCLE_BYTES = 256 * 1024  # A cycle file for 10,000 nodes whose names form no ranges has 150 KB
MAX_PATH = 1024
MAX_CYCLE_FILES = 64  # Limit of cycle files per search
GRACE_SECONDS = 0.2  # A search waits this long for all files together. A file system that hangs affects only its user.


class _CycleFile(msgspec.Struct):
    cycle_log_file: Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*\Z", max_length=MAX_PATH)]


class CycleLogs:
    """Finds the logs of current cycles. Used from one thread."""

    def __init__(self, proc: Path) -> None:
        self._root = proc
        self._outputs = Outputs(proc)
        self._readers: ByUser[RankView, tuple[Identity, ClaimedLog] | None] = ByUser(self._read)

    def of(self, jobs: Iterable[LoggedJob]) -> dict[Identity, ClaimedLog]:
        """Return the log of each job's current cycle, at most MAX_CYCLE_FILES. A log that two jobs name is left out."""
        first = {view.label.job_id: view for job in jobs for view in reversed(job.ranks) if _cycle_file(view)}
        views = in_turns(list(first.values()), lambda view: view.uid, MAX_CYCLE_FILES)
        logs = [log for log in self._readers.answers(views, GRACE_SECONDS) if log is not None]
        names = Counter(identity for identity, _ in logs)
        return {identity: claim for identity, claim in logs if names[identity] == 1}

    def _read(self, view: RankView) -> tuple[Identity, ClaimedLog] | None:
        """Return the log that a rank's cycle file names; None without a file of the rank's user."""
        pid, uid = view.pid, view.uid
        root = f"{self._root}/{pid}/root"
        try:
            with open_inside(root, _cycle_file(view), uid) as fd:
                raw = read_bounded(fd, MAX_CYCLE_BYTES)
            named = msgspec.json.decode(raw if len(raw) <= MAX_CYCLE_BYTES else b"", type=_CycleFile).cycle_log_file
            status = stat_inside(root, named)
        except (OSError, ValueError, RecursionError):  # ValueError: a NUL in the path; msgspec's errors are ValueErrors
            return None
        path = self._outputs.path_of(pid, OpenFile(0, named, status.st_dev, status.st_ino))
        if path is None or status.st_uid != uid or not stat.S_ISREG(status.st_mode):
            return None
        return (status.st_dev, status.st_ino), ClaimedLog(view.label.job_id, path=path, has_ranks=True)


def _cycle_file(view: RankView) -> str:
    """Return the path that a running rank's environment names; empty if none."""
    is_known = view.process.exited_at is None and view.uid is not None
    return (view.process.facts.environment or {}).get(CYCLE_FILE, "") if is_known else ""
