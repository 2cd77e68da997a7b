"""One scan of /proc: new rank processes, the state of known rank processes, and their open record files. Blocking."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from operator import itemgetter

import msgspec

from agent.sdk.exporter import FailureCounter, Roots
from agent.sdk.files import in_turns
from agent.sdk.ranks import ProcessFacts, ProcessKey, WriterKey, is_record_file
from agent.sdk.system import OpenFile, ProcFS, Stat
from exporters.process.observation import THREADS_SECONDS, KnownRank, ProcessObservation, observe
from exporters.process.oom_kills import OomKills, memory_files, oom_kills, oomd_kills, unified_groups
from exporters.process.ownership import OwnerSearch
from exporters.process.rank_search import RankSearch
from exporters.process.usage.reader import RankStat, UsageReader, Usages

MAX_NEW = 256  # New rank processes of one scan, users in turn; other processes follow in the next scan


class ScanRequest(msgspec.Struct, frozen=True):
    """The rank table's input to a scan.

    ``now``: monotonic; ``known``: the rank processes that run according to the table; ``refused``: processes that the
    full table refused; ``writer_keys``: writers whose process is unknown, each with the uid of its file; ``variables``:
    the environment variables to read from new ranks. ``without_nccl``: ranks need not have loaded NCCL.
    """

    now: float
    known: tuple[ProcessKey, ...] = ()
    refused: frozenset[ProcessKey] = frozenset()
    writer_keys: Mapping[WriterKey, int | None] = {}
    variables: frozenset[str] = frozenset()
    without_nccl: bool = False


class ScanResult(msgspec.Struct, frozen=True):
    """The result of one scan. ``gone``: known processes that have ended, even if they are still zombies.

    ``held``: the record files that ranks hold open, see ``held_files``. ``usages``: those of all ranks, in one scan per
    THREADS_SECONDS; in the other scans None.
    """

    new: tuple[ProcessFacts, ...]
    observed: dict[ProcessKey, ProcessObservation]
    gone: tuple[ProcessKey, ...]
    links: tuple[tuple[WriterKey, ProcessKey], ...]
    held: dict[tuple[int, int], str]
    processes: int
    unreadable: int
    without_nccl: int = 0
    usages: Usages | None = None


class Scanner:
    """Keeps data between scans, so that the next scan is cheap; used from one thread.

    Cost on a quiet node: one directory listing, one stat line per young process, and a handful of files per rank.
    """

    def __init__(self, roots: Roots, failures: FailureCounter) -> None:
        self._failures = failures
        self._proc = ProcFS(roots.proc)
        self._sys = roots.sys
        self._boot_seconds: float | None = self._proc.boot_seconds()  # raises where there is no /proc
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._search = RankSearch(self._proc, failures)
        self._owners = OwnerSearch(roots, self._proc)
        self._usage = UsageReader(self._proc, roots.sys, failures)
        self._threads_at = float("-inf")
        self._searched: Counter[int | None] = Counter()
        self._threads: dict[ProcessKey, RankStat] = {}
        self._ranks: dict[ProcessKey, KnownRank] = {}

    def look(self, request: ScanRequest) -> ScanResult:
        """Scan once."""
        now, writer_keys, known = request.now, request.writer_keys, set(request.known)
        self._boot_seconds = None  # the boot time changes when the clock is set
        pids = self._proc.pids()
        stats, unread = self._search.stats(pids, {key.pid for key in known}, now, everyone=bool(writer_keys))
        gone = {key for key in known if key.pid not in unread and not _runs(stats.get(key.pid), key)}
        self._search.forget(set(pids))
        self._ranks = {key: rank for key, rank in self._ranks.items() if key in known}
        others = [stat for stat in stats.values() if stat.key not in known and stat.state not in "ZX"]
        new, without_nccl = self._new_ranks(request, others, known)
        running = [key for key in known if _runs(stats.get(key.pid), key)] + [facts.key for facts in new]
        self._make_listing_due(writer_keys, running)
        is_due = now - self._threads_at >= THREADS_SECONDS
        self._threads.clear()
        observed = self._observe_all([stats[key.pid] for key in running], now, threads_are_due=is_due)
        usages = None
        if is_due:
            self._threads_at = now
            usages = self._usage.look(self._threads, self._search.descendants(running))
        return ScanResult(
            new=tuple(new),
            observed=observed,
            gone=tuple(gone),
            links=self._links(writer_keys, list(observed)),
            held=held_files(self._proc, {key: self._ranks[key].logs.values() for key in observed}),
            processes=self._search.count(),
            unreadable=sum(facts.environment is None for facts in new),
            without_nccl=without_nccl,
            usages=usages,
        )

    def _new_ranks(
        self, request: ScanRequest, others: list[Stat], known: set[ProcessKey]
    ) -> tuple[list[ProcessFacts], int]:
        """Return the facts of at most MAX_NEW new ranks, and the number of processes without NCCL that are no ranks, or
        no ranks yet."""
        proven = self._search.proven(others, request.now, request.writer_keys, known)
        without, waiting, ready = self._search.without_nccl(known, request.now)  # uses results of the search for proof
        if request.without_nccl:
            is_read = {stat.key for stat in others}  # other old processes become ranks in a later scan
            proven = [*proven, *((key, "environment") for key in ready if key in is_read)]
        proven = [candidate for candidate in proven if candidate[0] not in request.refused]
        if len(proven) > MAX_NEW:  # no user delays other users
            proven = in_turns(proven, lambda candidate: self._uid(candidate[0]), MAX_NEW)
        new = []
        for key, evidence in proven:
            read = partial(self._read_facts, key, evidence, request.variables)
            if (facts := self._failures.attempt("a process", read, pid=key.pid)) is not None:
                new.append(facts)
        return new, waiting if request.without_nccl else without

    def _make_listing_due(self, writer_keys: Collection[WriterKey], running: list[ProcessKey]) -> None:
        """List the record files of ranks in this scan already, if a rank's pid (in its namespace) is one of these
        writers' pids."""
        pids = {writer_key.pid for writer_key in writer_keys}
        for key in running:
            rank = self._ranks.get(key)
            if rank is not None and rank.namespace_pid in pids:
                rank.logs_at = float("-inf")

    def _read_facts(self, key: ProcessKey, evidence: str, variables: frozenset[str]) -> ProcessFacts | None:
        """Return the facts of a new rank; None if it has ended since its proof."""
        pid = key.pid
        rank, groups = self._remember(key)
        uid = rank.uid
        environment = self._proc.environment(pid)
        stat = self._proc.stat(pid)
        if stat is None or not _runs(stat, key):
            return None
        owner, container = self._owners.look(stat, uid, groups)
        if self._boot_seconds is None:
            self._boot_seconds = self._proc.boot_seconds()
        return ProcessFacts(
            key=key,
            start_seconds=self._boot_seconds + key.start_ticks / self._ticks_per_second,
            namespace_pid=rank.namespace_pid,
            user="" if uid is None else str(uid),
            evidence=evidence,
            environment=None if environment is None else {n: environment[n] for n in variables & environment.keys()},
            cgroup=groups.get("", ""),
            pod=owner.name if owner.kind == "pod" else "",
            container=container,
            network_namespace=self._proc.namespace(pid, "net"),
            directory=self._proc.directory(pid),
            uid=uid,
            owner=owner,
            parent_pid=stat.parent_pid,
            session=stat.session,
            title=self._proc.title(pid),
        )

    def _remember(self, key: ProcessKey) -> tuple[KnownRank, Mapping[str, str]]:
        """Begin the data about a rank process; return them, and the paths of its control groups by controllers."""
        status, groups = self._proc.status(key.pid), self._proc.cgroup(key.pid)
        files = memory_files(groups, self._sys)
        kills = tuple(map(oom_kills, files))
        kills_by_group = [(directory, oomd_kills(directory)) for directory in unified_groups(groups, self._sys)]
        rank = self._ranks[key] = KnownRank(
            namespace_pid=key.pid if status is None else status.namespace_pids[-1],
            uid=None if status is None else status.uid,
            oom_files=files,
            oom_kills=kills,
            oom_kills_before=kills,
            oomd=tuple((directory, count) for directory, count in kills_by_group if count is not None),
        )
        return rank, groups

    def _observe_all(
        self, stats: list[Stat], now: float, *, threads_are_due: bool
    ) -> dict[ProcessKey, ProcessObservation]:
        kills: dict[str, OomKills | None] = {}
        self._searched.clear()
        observed = {}
        for stat in stats:
            work = partial(self._observe, stat, now, kills, threads_are_due=threads_are_due)
            if (observation := self._failures.attempt("a process", work, pid=stat.pid)) is not None:
                observed[stat.key] = observation
        return observed

    def _observe(
        self, stat: Stat, now: float, kills: dict[str, OomKills | None], *, threads_are_due: bool
    ) -> ProcessObservation:
        """Return the state of one rank process; ``kills``: counts of OOM kills read in this scan, by file."""
        if stat.key not in self._ranks:  # known from before a restart of the agent
            self._remember(stat.key)
        rank = self._ranks[stat.key]
        for file in rank.oom_files:
            if file not in kills:  # ranks of a job usually share groups
                kills[file] = oom_kills(file)
        threads = self._proc.threads(stat.pid) if threads_are_due or not rank.threads_seen else None
        rank.threads_seen = True
        if threads is not None and threads_are_due:
            self._threads[stat.key] = RankStat(stat, threads)
        counts = tuple(kills[file] for file in rank.oom_files)
        return observe(self._proc, rank, stat, now, counts, threads, self._searched)

    def _links(
        self, writer_keys: Mapping[WriterKey, int | None], running: list[ProcessKey]
    ) -> tuple[tuple[WriterKey, ProcessKey], ...]:
        """Match writers with processes: by the pid in the records, and by the file held open for writing.

        If several processes match (namespaces repeat pids), a process of the file's user is preferred. If descriptors
        are unreadable, the pid suffices, but the file must belong to the process's user.
        """
        if not writer_keys:
            return ()
        by_pid = {key.pid: key for key in running}
        holders: dict[tuple[int, tuple[int, int]], list[ProcessKey]] = {}
        for key in running:
            for file in self._ranks[key].logs.values():
                if self._proc.may_write(key.pid, file):
                    holders.setdefault((self._ranks[key].namespace_pid, _identity(file)), []).append(key)
        links = []
        for writer_key, uid in writer_keys.items():
            keys = holders.get((writer_key.pid, (writer_key.device, writer_key.inode)), [])
            if not keys:
                named = by_pid.get(writer_key.pid)
                is_its = named is not None and self._is_blind(named) and uid in (None, self._uid(named))
                keys = [named] if named is not None and is_its else []
            links += [(writer_key, key) for key in sorted(keys, key=lambda key: self._uid(key) != uid)[:1]]
        return tuple(links)

    def _uid(self, key: ProcessKey) -> int | None:
        status = self._proc.status(key.pid)
        return None if status is None else status.uid

    def _is_blind(self, key: ProcessKey) -> bool:
        """Return True for a process outside containers whose descriptors are unreadable: its pid names its file."""
        is_outside = self._ranks[key].namespace_pid == key.pid
        return is_outside and self._proc.open_files(key.pid, is_record_file) is None


def _runs(stat: Stat | None, key: ProcessKey) -> bool:
    return stat is not None and stat.key == key and not stat.over


def held_files(proc: ProcFS, files: Mapping[ProcessKey, Iterable[OpenFile]]) -> dict[tuple[int, int], str]:
    """Return the paths of the record files that ranks hold, by device and inode: the first file of each rank, then each
    rank's second.

    If ranks have several paths to a file, the path of a rank with write access is used: any user may read the file.
    """
    held: dict[tuple[int, int], str] = {}
    for key, file in in_turns(((key, file) for key, of_rank in files.items() for file in of_rank), itemgetter(0)):
        path = held.setdefault(_identity(file), file.target)
        if path != file.target and proc.may_write(key.pid, file):
            held[_identity(file)] = file.target
    return held


def _identity(file: OpenFile) -> tuple[int, int]:
    return file.device, file.inode
