"""One look at /proc: which processes are ranks, how the known ones stand, whose files are whose. Blocking."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping

import msgspec

from agent.api import (
    KEPT_VARIABLES,
    RECORDING_VARIABLES,
    OpenFile,
    ProcessFacts,
    ProcessKey,
    ProcFS,
    Roots,
    Stat,
    WriterKey,
)
from exporters.process.cgroups import memory_path, oom_kills, pod_and_container
from exporters.process.rank_search import RankSearch
from exporters.process.standing import KnownRank, ProcessStanding, standing

MAX_RANK_PROCESSES = 1024
FORGET_SECONDS = 60.0
"""A rank that left is remembered this long: its exit may still be asked about."""


class Found(msgspec.Struct, frozen=True):
    """What one look found. ``gone``: asked-for processes that are not there any more, or only as zombies."""

    new: tuple[ProcessFacts, ...]
    standing: dict[ProcessKey, ProcessStanding]
    gone: tuple[ProcessKey, ...]
    links: tuple[tuple[WriterKey, ProcessKey], ...]
    held: frozenset[tuple[int, int]]
    processes: int
    unreadable: int


class Scanner:
    """Keeps between looks what makes the next one cheap; used from one thread.

    Cost on a quiet node: one directory listing, one stat line per young process, and a handful of files per rank.
    """

    def __init__(self, roots: Roots) -> None:
        self._proc = ProcFS(roots.proc)
        self._sys = roots.sys
        self._boot_seconds = self._proc.boot_seconds()
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._search = RankSearch(self._proc)
        self._ranks: dict[ProcessKey, KnownRank] = {}
        self._strikes: dict[str, int] = {}

    def look(self, now: float, known: Iterable[ProcessKey], writer_keys: tuple[WriterKey, ...]) -> Found:
        """Look once. ``known``: the rank processes the table holds as running; ``writer_keys``: writers to find."""
        known = set(known)
        pids = self._proc.pids()
        stats = self._search.stats(pids, {key.pid for key in known}, now, everyone=bool(writer_keys))
        gone = tuple(key for key in known if not _runs(stats.get(key.pid), key))
        self._search.forget(set(pids))
        self._forget(known, now)
        strangers = [stat for stat in stats.values() if stat.key not in known and stat.state not in "ZX"]
        new: list[ProcessFacts] = []
        for key, evidence in self._search.proven(strangers, now, writer_keys, known | self._ranks.keys()):
            if len(known) + len(new) < MAX_RANK_PROCESSES:
                new.append(self._facts(key, evidence))
        running = [key for key in known if key not in gone] + [facts.key for facts in new]
        standings = {key: self._standing(key, stats[key.pid].state, now) for key in running}
        return Found(
            new=tuple(new),
            standing=standings,
            gone=gone,
            links=self._links(writer_keys, running),
            held=frozenset(_identity(file) for key in running for file in self._ranks[key].logs.values()),
            processes=self._search.count(),
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

    def _facts(self, key: ProcessKey, evidence: str) -> ProcessFacts:
        pid = key.pid
        status = self._proc.status(pid)
        environment = self._proc.environment(pid)
        groups = self._proc.cgroup(pid)
        pod, container = pod_and_container(groups)
        oom_file = memory_path(groups, self._sys)
        inner = status.namespace_pids[-1] if status is not None else pid
        kills = oom_kills(oom_file) or 0
        self._ranks[key] = KnownRank(inner, oom_file=oom_file, oom_kills=kills, oom_kills_before=kills)
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

    def _standing(self, key: ProcessKey, state: str, now: float) -> ProcessStanding:
        if key not in self._ranks:  # known from before a restart of the agent
            self._facts(key, "")
        return standing(self._proc, key, self._ranks[key], state, now)

    def _links(
        self, writer_keys: tuple[WriterKey, ...], running: list[ProcessKey]
    ) -> tuple[tuple[WriterKey, ProcessKey], ...]:
        """Match writers with processes: the pid they give themselves, and the file held open where that can be seen."""
        links = []
        for writer_key in writer_keys:
            same_pid = [key for key in running if self._ranks[key].namespace_pid == writer_key.pid]
            holders = [
                k
                for k in same_pid
                if (writer_key.device, writer_key.inode) in map(_identity, self._ranks[k].logs.values())
            ]
            blind = [k for k in same_pid if k.pid == writer_key.pid and self._proc.open_files(k.pid) is None]
            if matches := holders or blind:
                links.append((writer_key, matches[0]))
        return tuple(links)

    def _forget(self, known: set[ProcessKey], now: float) -> None:
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
