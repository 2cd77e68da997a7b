"""Finds the processes that are ranks (decision 0002); for a known process it reads only a stat line. Blocking."""

import re
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from agent.sdk.exporter import FailureCounter
from agent.sdk.ranks import ProcessKey, WriterKey, is_record_file
from agent.sdk.system import ProcFS, Stat

LOOK_AGAIN_SECONDS = 30.0
"""A process that was no rank is examined again when its number of threads changed, and at this interval."""
NAMED_SECONDS = 2.0  # A process is examined again this long after such a change: threads get names after their start
YOUNG_SECONDS = 600.0
OLD_SECONDS = 10.0
"""A process older than YOUNG_SECONDS is examined only every OLD_SECONDS: ranks initialise NCCL when they are young."""
MAX_ANCESTORS = 64
CLAIMS_SECONDS = 0.05
"""CPU time per scan to read environments of processes without NCCL: a user controls their number and size."""
MAX_CLAIM_CHARACTERS = 128
SETTLED_SECONDS = 60.0
"""With ``without_nccl``, a process without NCCL counts as a rank after this time, or at once if its launcher already
had a rank of the same program."""
INIT_PID = 1
WRAPPERS = frozenset({"sh", "bash", "dash", "zsh", "numactl", "taskset", "env", "nice", "timeout", "nsys", "ncu"})
"""Programs between a launcher and a rank, which inherit the rank's environment."""
SIZES = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "SLURM_NTASKS",
    "PMI_RANK": "PMI_SIZE",
}
"""Variables of PyTorch and MPI for the rank, each with the variable for the number of ranks."""
_JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
_NUMBER = re.compile(r"[0-9]{1,7}", re.ASCII)

# NCCL names its threads only with NCCL_SET_THREAD_NAME=1 (src/debug.cc, default 0). PyTorch always names the threads of
# a process group that uses NCCL (ProcessGroupNCCL.cpp: pt_nccl_watchdg, pt_nccl_heartbt, pt_nccl_runonhk).
# Threads do not survive a fork: a child with such a thread has started that thread itself.
_RANK_THREAD = re.compile(r"^(NCCL |pt_nccl_)")
_LIBRARY = re.compile(rb"/lib(nccl|rccl)[^/\n]*\.so")
_GPU_DEVICE = re.compile(r"^/dev/(nvidia\d+|kfd|dri/renderD\d+)$")

FilesByPid = dict[int, dict[tuple[int, int], int | None]]
"""For each pid in the records (in the writer's pid namespace): the files (device, inode), each with its owner's uid."""


class ClaimedRank(NamedTuple):
    """The rank that an environment names, and the values that tell its job from other jobs."""

    rank: str
    local_rank: str
    job: tuple[str, ...]


def claim_of(environment: Mapping[str, str]) -> ClaimedRank | None:
    """Return the rank in a launcher's variables; None unless they also have the number of ranks."""
    for rank, size in SIZES.items():
        number, ranks = environment.get(rank, ""), environment.get(size, "")
        if _NUMBER.fullmatch(number) and _NUMBER.fullmatch(ranks) and int(number) < int(ranks):
            job = (ranks, *(environment.get(name, "")[:MAX_CLAIM_CHARACTERS] for name in _JOB_VARIABLES))
            return ClaimedRank(number, environment.get("LOCAL_RANK", "")[:MAX_CLAIM_CHARACTERS], job)
    return None


class _Seen(msgspec.Struct):
    """The last examination of a process: its threads' number, the proof that it is a rank, and when it is due again.

    ``inherited``: it may have inherited its GPU and library from an ancestor; this stays True when the ancestor ends.
    ``claims_for_others``: its environment names a rank above or below it, even a rank that has ended. ``launched``: the
    programs of ranks without NCCL that it has launched. ``is_ready``: it counts as a rank without NCCL. ``claim``: the
    rank in the environment of ``program``; None for a wrapper such as a shell. ``is_unread``: the environment is still
    to be read, but not while the main thread is blocked: the read could hang.
    """

    key: ProcessKey
    threads: int
    again_at: float
    parent_pid: int
    kernel: bool
    first_at: float
    due_at: float = float("-inf")
    evidence: str = ""
    uses_gpu: bool = False
    inherited: bool = False
    program: str = ""
    claim: ClaimedRank | None = None
    claims_for_others: bool = False
    launched: frozenset[str] = frozenset()
    is_ready: bool = False
    is_unread: bool = False
    is_blocked: bool = False


class RankSearch:
    """Remembers the result for each process, and examines a process again only when it may have changed."""

    def __init__(self, proc: ProcFS, failures: FailureCounter) -> None:
        self._proc = proc
        self._failures = failures
        self._seen: dict[int, _Seen] = {}

    def stats(
        self, pids: list[int], known: set[int], now: float, *, everyone: bool
    ) -> tuple[dict[int, Stat], set[int]]:
        """Read the stat lines of ranks and young processes, and of others every OLD_SECONDS (no kernel threads).

        Return the lines by pid, and the pids with a malformed or now unreadable line: such a process has not ended.
        """
        stats, unread = {}, set()
        for pid in pids:
            seen = self._seen.get(pid)
            if seen is not None and pid not in known and not everyone and now < seen.due_at:
                continue
            if self._proc.is_in_exec(pid):
                unread.add(pid)
                continue
            read = self._failures.attempt("a process", partial(self._stat, pid), pid=pid)
            if read is None:
                unread.add(pid)
            if read is None or (stat := read[0]) is None:
                continue
            if seen is None or seen.key != stat.key:
                seen = self._seen[pid] = _Seen(stat.key, 0, float("-inf"), stat.parent_pid, stat.kernel_thread, now)
            seen.due_at = now if now - seen.first_at < YOUNG_SECONDS and not seen.kernel else now + OLD_SECONDS
            if not seen.kernel:
                stats[pid] = stat
        return stats, unread

    def _stat(self, pid: int) -> tuple[Stat | None]:
        """Return a process's stat line, None when it has ended; in a tuple, because None alone means unreadable."""
        return (self._proc.stat(pid),)

    def forget(self, present: set[int]) -> None:
        """Forget the processes that are not in ``present``."""
        for pid in [pid for pid in self._seen if pid not in present]:
            del self._seen[pid]

    def count(self) -> int:
        """Return how many processes are remembered, without kernel threads."""
        return sum(not seen.kernel for seen in self._seen.values())

    def descendants(self, ranks: Collection[ProcessKey]) -> dict[ProcessKey, list[ProcessKey]]:
        """Return the processes below each rank, except below another of ``ranks``; omit ranks without descendants.

        A process's parent is read at its first scan: a process that init adopted before this scan is not found.
        """
        above: dict[ProcessKey, ProcessKey | None] = {key: key for key in ranks}
        by_rank: dict[ProcessKey, list[ProcessKey]] = {}
        for seen in self._seen.values():
            path: list[ProcessKey] = []
            here: _Seen | None = seen
            while here is not None and here.key not in above:
                above[here.key] = None  # until its rank is known, or finally if the parents form a ring
                path.append(here.key)
                parent = self._seen.get(here.parent_pid)
                # If the parent is younger, its pid was reused: the real parent is gone.
                here = parent if parent is not None and parent.key.start_ticks <= here.key.start_ticks else None
            rank = None if here is None else above[here.key]
            above.update(dict.fromkeys(path, rank))
            if rank is not None:
                by_rank.setdefault(rank, []).extend(path)
        return by_rank

    def proven(
        self,
        others: Iterable[Stat],
        now: float,
        writer_keys: Mapping[WriterKey, int | None],
        ranks: Container[ProcessKey],
    ) -> list[tuple[ProcessKey, str]]:
        """Return the ranks among ``others``, each with its proof.

        ``writer_keys``: writers to find; ``ranks``: known rank processes, whose children are not ranks.
        """
        candidates = [(stat, self._seen[stat.pid]) for stat in others]
        files: FilesByPid = {}
        for writer_key, uid in writer_keys.items():
            files.setdefault(writer_key.pid, {})[writer_key.device, writer_key.inode] = uid
        for stat, seen in candidates:
            self._failures.attempt("a process", partial(self._inspect, stat, seen, now, files), pid=stat.pid)
        # Only when all were examined: a child can come before its parent.
        reasons = [(stat.key, self._evidence(seen, ranks)) for stat, seen in candidates]
        return [(key, reason) for key, reason in reasons if reason]

    def _inspect(self, stat: Stat, seen: _Seen, now: float, files: FilesByPid) -> None:
        seen.is_blocked = stat.state == "D"
        if files and self._wrote(stat.key, files):
            seen.evidence = "records"
            return
        if seen.threads == stat.threads and now < seen.again_at:
            return
        seen.again_at = now + (LOOK_AGAIN_SECONDS if seen.threads == stat.threads else NAMED_SECONDS)
        seen.threads = stat.threads
        names = (self._proc.thread_name(stat.pid, tid) for tid in self._proc.thread_ids(stat.pid))
        seen.evidence = "thread" if any(_RANK_THREAD.match(name) for name in names) else ""
        seen.uses_gpu = not seen.evidence and self._uses_gpu(stat.pid)
        if seen.program != stat.comm:
            seen.program, seen.claim, seen.is_unread = stat.comm, None, stat.comm not in WRAPPERS
            seen.claims_for_others = False

    def without_nccl(self, ranks: Collection[ProcessKey], now: float) -> tuple[list[ProcessKey], list[ProcessKey]]:
        """Return the processes without NCCL whose environment names a rank, and the ready processes among them.

        Not counted: children that inherit their parent's environment, and launchers of such processes. A process is
        ready if no process of its job has NCCL, and if it is settled (SETTLED_SECONDS).
        """
        self._read_claims()
        proven = {key.pid for key in ranks} | {s.key.pid for s in self._seen.values() if s.evidence or s.uses_gpu}
        named = {seen.key.pid: seen for seen in self._seen.values() if seen.claim is not None}
        first = {pid: seen for pid, seen in named.items() if not self._inherits(seen)}
        for pid in first.keys() & {above for rank_pid in (*first, *proven) for above in self._ancestors(rank_pid)}:
            first.pop(pid).claims_for_others = True
        without = [s for pid, s in first.items() if pid not in proven and not proven.intersection(self._ancestors(pid))]
        with_nccl = {s.claim.job for pid in proven if (s := named.get(pid)) and s.claim and not s.is_ready}
        ready = [s for s in without if s.claim and s.claim.job not in with_nccl and self._is_settled(s, now)]
        for seen in ready:
            seen.is_ready = True
            if launcher := self._launcher(seen):
                launcher.launched |= {seen.program}
        return [seen.key for seen in without], [seen.key for seen in ready]

    def _is_settled(self, seen: _Seen, now: float) -> bool:
        launcher = self._launcher(seen)
        return now - seen.first_at >= SETTLED_SECONDS or (launcher is not None and seen.program in launcher.launched)

    def _launcher(self, seen: _Seen) -> _Seen | None:
        """Return the nearest ancestor that is no wrapper; None if that is init or unknown."""
        above = (self._seen.get(pid) for pid in self._ancestors(seen.key.pid) if pid != INIT_PID)
        return next((ancestor for ancestor in above if ancestor and ancestor.program not in WRAPPERS), None)

    def _read_claims(self) -> None:
        """Read environments for at most CLAIMS_SECONDS of CPU time. The next scans read the other environments."""
        deadline = time.thread_time() + CLAIMS_SECONDS
        for pid, seen in self._seen.items():
            if seen.is_unread and not seen.is_blocked and time.thread_time() < deadline:
                seen.is_unread = False
                environment = self._failures.attempt("a process", partial(self._proc.environment, pid), pid=pid)
                seen.claim = claim_of(environment or {})

    def _inherits(self, seen: _Seen) -> bool:
        launcher = self._launcher(seen)
        seen.claims_for_others |= launcher is not None and launcher.claim == seen.claim
        return seen.claims_for_others

    def _ancestors(self, pid: int) -> Iterator[int]:
        """Yield the pids above a process, up to a pid that a younger process has taken."""
        seen = self._seen.get(pid)
        for _ in range(MAX_ANCESTORS):
            parent = None if seen is None else self._seen.get(seen.parent_pid)
            if seen is None or (parent is not None and parent.key.start_ticks > seen.key.start_ticks):
                return
            yield seen.parent_pid
            seen = parent

    def _evidence(self, seen: _Seen, ranks: Container[ProcessKey]) -> str:
        if seen.evidence or not seen.uses_gpu:
            return seen.evidence
        above = (self._seen.get(pid) for pid in self._ancestors(seen.key.pid))
        seen.inherited |= any(s is not None and (s.uses_gpu or s.evidence or s.key in ranks) for s in above)
        return "" if seen.inherited else "library"

    def _wrote(self, key: ProcessKey, files: FilesByPid) -> bool:
        """Return True when the process is the writer of one of these files.

        A forked child holds the file too, but has another pid. If descriptors are unreadable, the pid alone decides,
        and only outside containers and for files of the process's user.
        """
        status = self._proc.status(key.pid)
        if status is None:
            return False
        inner = status.namespace_pids[-1]
        mine = files.get(inner)
        if not mine:
            return False
        held = self._proc.open_files(key.pid, is_record_file)
        if held is None:
            return inner == key.pid and any(uid in (None, status.uid) for uid in mine.values())
        return any((file.device, file.inode) in mine and self._proc.may_write(key.pid, file) for file in held)

    def _uses_gpu(self, pid: int) -> bool:
        files = self._proc.open_files(pid, is_record_file)
        if not files or not any(_GPU_DEVICE.match(file.target) for file in files):
            return False
        return bool(self._proc.maps_library(pid, _LIBRARY))
