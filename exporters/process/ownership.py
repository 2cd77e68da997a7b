"""Finds the owner of a process from facts that its user cannot forge: root's control groups, and ancestors. Blocking.

A user can make control groups of any name below `user@N.service`. So a path counts only if it has a known form from the
top of its hierarchy, and if uid 0 owns its directory. Sources of the forms: Slurm's cgroup/v1 and cgroup/v2 plugins,
OpenPBS' cgroups hook, LSF, kubelet with both of its drivers, Docker, Podman, containerd, CRI-O.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from agent.sdk.exporter import Roots
from agent.sdk.ranks import Owner, OwnerKind, Proof
from agent.sdk.system import ProcFS, Stat

MAX_ANCESTORS = 64
ROOT_UID = 0
MAX_NAME = 253  # Limit of the length of a pod's name in Kubernetes (RFC 1123)
MAX_PODS = 4096  # Entries of the folder of pods' logs that are searched for a pod's name

_UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_ID = r"[0-9a-f]{64}"
_KUBEPODS = r"/(?:kubelet-)?kubepods(?:\.slice)?"
_QUALITY = r"/(?:burstable|besteffort|(?:kubelet-)?kubepods-(?:burstable|besteffort)\.slice)"
_POD = rf"/(?:(?:kubelet-)?kubepods-(?:[a-z]+-)?)?pod(?P<name>{_UID})(?:\.slice)?"

# The kind of a path (for a job: its scheduler), and the path's form from the root of the hierarchy on.
_FORMS = [
    (names, re.compile(form + "(?=/|$)"))
    for names, form in (
        ("pod", rf"(?:/kubelet(?:\.slice)?)?{_KUBEPODS}(?:{_QUALITY})?{_POD}"),
        ("slurm", r"/system\.slice/(?:[^/]+_)?slurmstepd\.scope/job_(?P<name>[0-9]{1,10})"),
        ("slurm", r"/slurm(?:_[^/]+)?/uid_[0-9]{1,10}/job_(?P<name>[0-9]{1,10})"),
        ("pbs", r"/(?:pbs_jobs|pbspro)\.service/jobid/(?P<name>[0-9][^/]{0,127})"),
        ("pbs", r"/pbspro(?:/|\.slice/pbspro-)(?P<name>[0-9][^/]{0,120}?)(?:\.slice)?"),
        ("lsf", r"/lsf/[^/]+/job\.(?P<name>[0-9]{1,10})\.[0-9.]+"),
        ("container", rf"/(?:docker|default|libpod_parent/libpod)[/-](?P<name>{_ID})"),
        ("container", rf"/(?:system|machine)\.slice/[a-z]+(?:-[a-z]+)*-(?P<name>{_ID})\.scope"),
    )
]
# Forms after a leading `/..`, which the kernel shows for groups outside of the agent's cgroup namespace.
_FORMS_BESIDE = [
    *_FORMS,
    ("pod", re.compile(rf"(?:{_KUBEPODS})?(?:{_QUALITY})?{_POD}(?=/|$)")),
    ("slurm", re.compile(r"/(?:[^/]+_)?slurmstepd\.scope/job_(?P<name>[0-9]{1,10})(?=/|$)")),
    ("container", re.compile(rf"/(?:[a-z]+(?:-[a-z]+)*-)?(?P<name>{_ID})(?:\.scope)?(?=/|$)")),
]
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_UPWARDS = re.compile(r"(?:/\.\.)+(?=/)")
_CONTAINER_OF_POD = re.compile(rf"/(?:[a-z]+(?:-[a-z]+)*-)?({_ID})(?:\.scope)?(?=/|$)")
_SCHEDULERS = frozenset({"slurm", "pbs", "lsf"})
_STEP_DAEMON = re.compile(r"slurmstepd(?:-[\w.-]+)?: \[(\d{1,10})\.\w+\]")
_USERS_GROUP = re.compile(r"(?:/\.\.)*/user\.slice(/|$)")


class Group(NamedTuple):
    """A control group that a path names. ``directory``: its path below the mount; empty when unknown.

    ``container``: the container in a pod's group, empty without one.
    """

    names: str
    name: str
    container: str
    directory: str


def group_of(path: str) -> Group | None:
    """Return the group that a path names; None for an unknown form. Pure."""
    upwards = _UPWARDS.match(path)
    below = path[upwards.end() :] if upwards else path
    for names, form in _FORMS_BESIDE if upwards else _FORMS:
        if match := form.match(below):
            inner = _CONTAINER_OF_POD.match(below, match.end()) if names == "pod" else None
            directory = "" if upwards else below[: match.end()]
            return Group(names, _plain_name(names, match["name"]), inner[1] if inner else "", directory)
    return None


def _plain_name(names: str, written: str) -> str:
    """Return a name as the scheduler writes it: kubelet's systemd driver puts underscores in a pod's uid, PBS uses
    escapes."""
    if names == "pod":
        return written.replace("_", "-")
    return _ESCAPED.sub(lambda byte: chr(int(byte[1], 16)), written) if names == "pbs" else written


def ancestors(proc: ProcFS, stat: Stat) -> Iterator[Stat]:
    """Yield a process's ancestors below init, the nearest first, at most MAX_ANCESTORS."""
    for _ in range(MAX_ANCESTORS):
        parent = proc.stat(stat.parent_pid) if stat.parent_pid > 1 else None
        if parent is None:
            return
        yield parent
        stat = parent


class OwnerSearch:
    """Finds the owners of processes. Reads a few small files for each new rank process; used from one thread."""

    def __init__(self, roots: Roots, proc: ProcFS) -> None:
        self._proc = proc
        self._groups = roots.sys / "fs" / "cgroup"
        self._pods = roots.log / "pods"

    def look(self, stat: Stat, uid: int | None, paths: Mapping[str, str]) -> tuple[Owner, str]:
        """Return the owner of a process and its container (empty: unknown).

        ``uid``: its real uid, None when unknown; ``paths``: its control groups by controllers.
        """
        groups = {group.names: group for group in reversed(list(self._proven(paths)))}
        pod = groups.get("pod")
        container = pod.container if pod else groups["container"].name if "container" in groups else ""
        scheduler, job_id, proof = self._job(stat, groups)
        kind: OwnerKind = "user"
        name = "" if uid is None else str(uid)
        namespace = ""
        if pod is not None:
            kind, name = "pod", pod.name
            namespace = self._namespace(pod.name)
        elif scheduler:
            kind, name = "job", f"{scheduler}/{job_id}"
        elif container:
            kind, name = "container", container
        return Owner(kind, name, namespace, scheduler, job_id, proof), container

    def _proven(self, paths: Mapping[str, str]) -> Iterator[Group]:
        for controllers, path in paths.items():
            group = group_of(path)
            if group is not None and (not group.directory or self._is_roots(controllers, group.directory)):
                yield group

    def _is_roots(self, controllers: str, directory: str) -> bool:
        """Return True when root owns the group's directory; a mixed hierarchy has version 2 in `unified`."""
        mounts = [self._groups / controllers] if controllers else [self._groups, self._groups / "unified"]
        for mount in mounts:
            try:
                return (mount / directory.lstrip("/")).lstat().st_uid == ROOT_UID
            except OSError:
                continue
        return False

    def _job(self, stat: Stat, groups: Mapping[str, Group]) -> tuple[str, str, Proof]:
        for scheduler in _SCHEDULERS & groups.keys():
            return scheduler, groups[scheduler].name, "cgroup"
        job_id = self._job_of_parents(stat)
        return ("slurm", job_id, "parent") if job_id else ("", "", "none")

    def _job_of_parents(self, stat: Stat) -> str:
        """Return the job of the slurmstepd that the process descends from; empty without one.

        Any user can set a process title. So the slurmstepd and all its ancestors must belong to root, outside of login
        sessions, and outside of containers, where the first process can be root with any title.
        """
        job_id = ""
        parents = list(ancestors(self._proc, stat))
        for parent in parents if len(parents) < MAX_ANCESTORS else ():
            if not job_id:
                daemon = _STEP_DAEMON.fullmatch(self._proc.title(parent.pid).strip())
                job_id = daemon[1] if daemon and not self._is_a_users(parent.pid) else ""
            status = self._proc.status(parent.pid)
            if job_id and (status is None or not status.root):
                return ""
        return job_id

    def _is_a_users(self, pid: int) -> bool:
        """Return True for a process in a login session, pod or container."""
        for path in self._proc.cgroup(pid).values():
            group = group_of(path)
            if _USERS_GROUP.match(path) or (group is not None and group.names in ("pod", "container")):
                return True
        return False

    def _namespace(self, uid: str) -> str:
        """Return the namespace of a pod from kubelet's log folder (`namespace_name_uid`); empty if unknown."""
        try:
            for folder in islice(self._pods.iterdir(), MAX_PODS):
                namespace, _, rest = folder.name.partition("_")
                if rest.partition("_")[2] == uid and folder.lstat().st_uid == ROOT_UID:
                    return namespace[:MAX_NAME]
        except OSError:
            pass
        return ""
