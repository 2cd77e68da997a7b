"""One look at /proc: which processes are ranks, how the known ones stand, whose files are whose. Blocking."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.api import (
    KEPT_VARIABLES,
    RECORDING_VARIABLES,
    OpenFile,
    Origin,
    ProcessFacts,
    ProcessKey,
    ProcFS,
    Roots,
    Stat,
)
from exporters.process.cgroups import memory_path, oom_kills, pod_and_container

MAX_RANK_PROCESSES = 1024
LOOK_AGAIN_SECONDS = 30.0
"""A process that was no rank is looked at again when its number of threads changed, and this often anyway."""
YOUNG_SECONDS = 600.0
OLD_SECONDS = 10.0
"""A process seen for longer than the first is looked at only this often: ranks initialise NCCL when they are young."""
MAX_ANCESTORS = 64
FORGET_SECONDS = 60.0
"""A rank that left is remembered this long: its exit may still be asked about."""
THREADS_SECONDS = 5.0
"""How often the threads of a rank are looked at for being blocked."""

# NCCL names its threads only with NCCL_SET_THREAD_NAME=1 (src/debug.cc, default 0); PyTorch always names those of a
# process group that uses NCCL (ProcessGroupNCCL.cpp: pt_nccl_watchdg, pt_nccl_heartbt, pt_nccl_runonhk).
# Threads do not survive a fork: a child that has one made it itself.
_RANK_THREAD = re.compile(r"^(NCCL |pt_nccl_)")
# Threads without which no collective moves: NCCL's, CUDA's ("cuda-EvtHandlr", "cuda00001400006").
_VITAL_THREAD = re.compile(r"^(NCCL |pt_nccl_|cuda)")
_LIBRARY = re.compile(rb"/lib(nccl|rccl)[^/\n]*\.so")
_GPU_DEVICE = re.compile(r"^/dev/(nvidia\d+|kfd|dri/renderD\d+)$")


class Standing(msgspec.Struct, frozen=True):
    """How one rank process stands: see ``RankTable.observe_state``."""

    state: str
    blocked_since: float | None
    kill_pending: bool
    finalized: bool


class Found(msgspec.Struct, frozen=True):
    """What one look found. ``gone``: asked-for processes that are not there any more, or only as zombies."""

    new: tuple[ProcessFacts, ...]
    standing: dict[ProcessKey, Standing]
    gone: tuple[ProcessKey, ...]
    links: tuple[tuple[Origin, ProcessKey], ...]
    held: frozenset[tuple[int, int]]
    processes: int
    unreadable: int


class _Seen(msgspec.Struct):
    """A process looked at before: when, with how many threads, and what was found.

    ``inherited``: its GPU and library may be an ancestor's. It stays so when the ancestor dies and init adopts it.
    """

    key: ProcessKey
    threads: int
    looked_at: float
    parent_pid: int
    kernel: bool
    first_at: float
    due_at: float = float("-inf")
    evidence: str = ""
    uses_gpu: bool = False
    inherited: bool = False


class _Rank(msgspec.Struct):
    """What the scanner keeps of a rank process between looks."""

    namespace_pid: int
    vital: dict[int, tuple[str, int, float | None]] = {}
    threads_at: float = float("-inf")
    logs: dict[int, OpenFile] = {}
    logs_at: float = float("-inf")
    finalized: bool = False
    kill_pending: bool = False
    blocked_since: float | None = None
    oom_file: str = ""
    oom_kills: int = 0
    oom_kills_before: int = 0
    missing_since: float | None = None


class Scanner:
    """Keeps between looks what makes the next one cheap; used from one thread.

    Cost on a quiet node: one directory listing, one stat line per young process, and a handful of files per rank.
    """

    def __init__(self, roots: Roots) -> None:
        self._proc = ProcFS(roots.proc)
        self._sys = roots.sys
        self._boot_seconds = self._proc.boot_seconds()
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._seen: dict[int, _Seen] = {}
        self._ranks: dict[ProcessKey, _Rank] = {}
        self._strikes: dict[str, int] = {}

    def look(self, now: float, known: Iterable[ProcessKey], origins: tuple[Origin, ...]) -> Found:
        """Look once. ``known``: the rank processes the table holds as running; ``origins``: writers to find."""
        known = set(known)
        pids = self._proc.pids()
        stats = self._stats(pids, {key.pid for key in known}, now, everyone=bool(origins))
        gone = tuple(key for key in known if not _runs(stats.get(key.pid), key))
        self._forget(set(pids), known, now)
        strangers = [stat for stat in stats.values() if stat.key not in known and stat.state not in "ZX"]
        for stat in strangers:
            self._inspect(stat, self._seen[stat.pid], now, origins)
        new: list[ProcessFacts] = []
        for stat in strangers:
            evidence = self._evidence(self._seen[stat.pid])
            if evidence and len(known) + len(new) < MAX_RANK_PROCESSES:
                new.append(self._facts(stat.key, evidence))
        running = [key for key in known if key not in gone] + [facts.key for facts in new]
        standing = {key: self._standing(key, stats[key.pid].state, now) for key in running}
        return Found(
            new=tuple(new),
            standing=standing,
            gone=gone,
            links=self._links(origins, running),
            held=frozenset(_identity(file) for key in running for file in self._ranks[key].logs.values()),
            processes=sum(not seen.kernel for seen in self._seen.values()),
            unreadable=sum(facts.environment is None for facts in new),
        )

    def oom_killed(self, key: ProcessKey) -> bool:
        """True when the OOM killer struck in the cgroup of a process that has just left; takes that strike.

        Compared with the count of the look before last: the last one may have come after the strike. One strike has
        one victim: a sibling of the same group cannot claim it too.
        """
        rank = self._ranks.get(key)
        kills = oom_kills(rank.oom_file) if rank is not None else None
        if rank is None or kills is None:
            return False
        accounted = max(rank.oom_kills_before, self._strikes.get(rank.oom_file, 0))
        if kills <= accounted:
            return False
        self._strikes[rank.oom_file] = accounted + 1
        return True

    # -- is it a rank? ---------------------------------------------------------------------------------------------

    def _stats(self, pids: list[int], known: set[int], now: float, *, everyone: bool) -> dict[int, Stat]:
        """Read the stat lines of ranks, of young processes, and now and then of the others (but for kernel threads)."""
        stats = {}
        for pid in pids:
            seen = self._seen.get(pid)
            if seen is not None and pid not in known and not everyone and now < seen.due_at:
                continue
            stat = self._proc.stat(pid)
            if stat is None:
                continue
            if seen is None or seen.key != stat.key:
                seen = self._seen[pid] = _Seen(stat.key, 0, float("-inf"), stat.parent_pid, stat.kernel_thread, now)
            seen.due_at = now if now - seen.first_at < YOUNG_SECONDS and not seen.kernel else now + OLD_SECONDS
            if not seen.kernel:
                stats[pid] = stat
        return stats

    def _inspect(self, stat: Stat, seen: _Seen, now: float, origins: tuple[Origin, ...]) -> None:
        """Look at a process closely, when something may have changed since the last time."""
        if origins and self._wrote(stat.key, origins):
            seen.evidence = "records"
            return
        if seen.threads == stat.threads and now - seen.looked_at < LOOK_AGAIN_SECONDS:
            return
        seen.threads, seen.looked_at = stat.threads, now
        names = (self._proc.thread_name(stat.pid, tid) for tid in self._proc.thread_ids(stat.pid))
        seen.evidence = "thread" if any(_RANK_THREAD.match(name) for name in names) else ""
        seen.uses_gpu = not seen.evidence and self._uses_gpu(stat.pid)

    def _evidence(self, seen: _Seen) -> str:
        """Why a process is a rank, or nothing."""
        if seen.evidence or not seen.uses_gpu:
            return seen.evidence
        seen.inherited = seen.inherited or self._ancestor_uses_gpu(seen.parent_pid)
        return "" if seen.inherited else "library"

    def _wrote(self, key: ProcessKey, origins: tuple[Origin, ...]) -> bool:
        """True when the process is the writer of one of ``origins``.

        A forked child holds the file too, but has another pid. Where descriptors may not be read, the pid alone
        decides, and only outside containers.
        """
        status = self._proc.status(key.pid)
        if status is None:
            return False
        inner = status.namespace_pids[-1]
        mine = {(origin.device, origin.inode) for origin in origins if origin.pid == inner}
        if not mine:
            return False
        files = self._proc.open_files(key.pid)
        if files is None:
            return inner == key.pid
        return any((file.device, file.inode) in mine for file in files)

    def _uses_gpu(self, pid: int) -> bool:
        files = self._proc.open_files(pid)
        if not files or not any(_GPU_DEVICE.match(file.target) for file in files):
            return False
        return bool(self._proc.maps_library(pid, _LIBRARY))

    def _ancestor_uses_gpu(self, pid: int) -> bool:
        for _ in range(MAX_ANCESTORS):
            seen = self._seen.get(pid)
            if seen is None:
                return False
            if seen.uses_gpu or seen.evidence or seen.key in self._ranks:
                return True
            pid = seen.parent_pid
        return False

    def _facts(self, key: ProcessKey, evidence: str) -> ProcessFacts:
        pid = key.pid
        status = self._proc.status(pid)
        environment = self._proc.environment(pid)
        groups = self._proc.cgroup(pid)
        pod, container = pod_and_container(groups)
        oom_file = memory_path(groups, self._sys)
        inner = status.namespace_pids[-1] if status is not None else pid
        kills = oom_kills(oom_file) or 0
        self._ranks[key] = _Rank(inner, oom_file=oom_file, oom_kills=kills, oom_kills_before=kills)
        return ProcessFacts(
            key=key,
            start_seconds=self._boot_seconds + key.start_ticks / self._ticks_per_second,
            namespace_pid=inner,
            user=_user_name(status.uid) if status is not None else "",
            evidence=evidence,
            environment=None if environment is None else _kept(environment),
            cgroup=groups.get("", ""),
            pod=pod,
            container=container,
            network_namespace=self._proc.namespace(pid, "net"),
            directory=self._proc.directory(pid),
        )

    # -- how does it stand? ----------------------------------------------------------------------------------------

    def _standing(self, key: ProcessKey, state: str, now: float) -> Standing:
        rank = self._ranks.get(key)
        if rank is None:  # known from before a restart of the agent
            self._facts(key, "")
            rank = self._ranks[key]
        status = self._proc.status(key.pid)
        rank.kill_pending = status is not None and status.kill_pending
        rank.oom_kills_before, rank.oom_kills = rank.oom_kills, oom_kills(rank.oom_file) or rank.oom_kills
        if now - rank.threads_at >= THREADS_SECONDS:
            rank.threads_at = now
            self._look_at_threads(key, rank, now)
        self._look_at_logs(key, rank, now)
        return Standing(state, rank.blocked_since, rank.kill_pending, rank.finalized)

    def _look_at_threads(self, key: ProcessKey, rank: _Rank, now: float) -> None:
        """Find since when a vital thread sits in D without a context switch."""
        vital: dict[int, tuple[str, int, float | None]] = {}
        for tid in self._proc.thread_ids(key.pid):
            if tid != key.pid and not _VITAL_THREAD.match(self._proc.thread_name(key.pid, tid)):
                continue
            stat = self._proc.thread_stat(key.pid, tid)
            if stat is None or stat.state != "D":
                continue
            status = self._proc.thread_status(key.pid, tid)
            switches = status.context_switches if status is not None else -1
            before = rank.vital.get(tid)
            since = before[2] if before is not None and before[1] == switches else now
            vital[tid] = (stat.state, switches, since)
        rank.vital = vital
        rank.blocked_since = min((since for _, _, since in vital.values() if since is not None), default=None)

    def _look_at_logs(self, key: ProcessKey, rank: _Rank, now: float) -> None:
        """Note the record files it holds open; one that it closed while it runs means its communicators are gone."""
        for fd, file in list(rank.logs.items()):
            if self._proc.holds(key.pid, file) is False:
                stat = self._proc.stat(key.pid)
                if stat is None or stat.exiting or stat.state in "ZX" or stat.key != key:
                    return  # the kernel closed it: that is its death, not an orderly end
                del rank.logs[fd]
                rank.finalized = not rank.logs
        if now - rank.logs_at < (LOOK_AGAIN_SECONDS if rank.logs else THREADS_SECONDS):
            return
        rank.logs_at = now
        files = self._proc.open_files(key.pid) or []
        rank.logs = {file.fd: file for file in files if file.inode}
        if rank.logs:
            rank.finalized = False

    def _links(self, origins: tuple[Origin, ...], running: list[ProcessKey]) -> tuple[tuple[Origin, ProcessKey], ...]:
        """Match writers with processes: the pid they give themselves, and the file held open where that can be seen."""
        links = []
        for origin in origins:
            same_pid = [key for key in running if self._ranks[key].namespace_pid == origin.pid]
            holders = [
                k for k in same_pid if (origin.device, origin.inode) in map(_identity, self._ranks[k].logs.values())
            ]
            blind = [k for k in same_pid if k.pid == origin.pid and self._proc.open_files(k.pid) is None]
            if matches := holders or blind:
                links.append((origin, matches[0]))
        return tuple(links)

    def _forget(self, present: set[int], known: set[ProcessKey], now: float) -> None:
        for pid in [pid for pid in self._seen if pid not in present]:
            del self._seen[pid]
        for key, rank in list(self._ranks.items()):
            if key in known:
                continue
            rank.missing_since = now if rank.missing_since is None else rank.missing_since
            if now - rank.missing_since > FORGET_SECONDS:
                del self._ranks[key]
        # A control group made anew under an old name counts from zero.
        groups = {rank.oom_file for rank in self._ranks.values()}
        for file in [file for file in list(self._strikes) if file not in groups]:
            del self._strikes[file]


def _runs(stat: Stat | None, key: ProcessKey) -> bool:
    return stat is not None and stat.key == key and not stat.over


def _identity(file: OpenFile) -> tuple[int, int]:
    return file.device, file.inode


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in KEPT_VARIABLES | RECORDING_VARIABLES}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
