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
from exporters.process.ownership import MAX_ANCESTORS

LOOK_AGAIN_SECONDS = 30.0
"""A process that was no rank is examined again when its number of threads changed, and at this interval."""
NAMED_SECONDS = 2.0  # A process is examined again this long after such a change: threads get names after their start
YOUNG_SECONDS = 600.0
OLD_SECONDS = 10.0
"""A process older than YOUNG_SECONDS is examined only every OLD_SECONDS: ranks initialise NCCL when they are young."""
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


class _Process(msgspec.Struct):
    """The last examination of a process: its threads' number, the proof that it is a rank, and when it is due again.

    ``inherited``: it may have inherited its GPU and library from an ancestor; this stays True when the ancestor ends.
    ``claims_for_others``: its environment names the rank of an ancestor or descendant, even of one that has ended.
    ``launched``: the programs of ranks without NCCL that it has launched. ``is_ready``: it counts as a rank without
    NCCL. ``claim``: the rank in the environment of ``program``; None for a wrapper such as a shell. ``is_unread``: the
    environment is still to be read, but not while the main thread is blocked: the read could hang.
    """

    key: ProcessKey
    parent_pid: int
    kernel: bool
    first_at: float
    threads: int = 0
    again_at: float = float("-inf")
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
        self._processes: dict[int, _Process] = {}

    def stats(
        self, pids: list[int], known: set[int], now: float, *, everyone: bool
    ) -> tuple[dict[int, Stat], set[int]]:
        """Read the stat lines of ranks and young processes, and of others every OLD_SECONDS (no kernel threads).

        Return the lines by pid, and the pids with a malformed or now unreadable line: such a process has not ended.
        """
        stats, unread = {}, set()
        for pid in pids:
            process = self._processes.get(pid)
            if process is not None and pid not in known and not everyone and now < process.due_at:
                continue
            if self._proc.is_in_exec(pid):
                unread.add(pid)
                continue
            read = self._failures.attempt("a process", partial(self._stat, pid), pid=pid)
            if read is None:
                unread.add(pid)
            if read is None or (stat := read[0]) is None:
                continue
            if process is None or process.key != stat.key:
                process = self._processes[pid] = _Process(stat.key, stat.parent_pid, stat.kernel_thread, now)
            process.due_at = now if now - process.first_at < YOUNG_SECONDS and not process.kernel else now + OLD_SECONDS
            if not process.kernel:
                stats[pid] = stat
        return stats, unread

    def _stat(self, pid: int) -> tuple[Stat | None]:
        """Return a process's stat line, None when it has ended; in a tuple, because None alone means unreadable."""
        return (self._proc.stat(pid),)

    def forget(self, present: set[int]) -> None:
        """Forget the processes that are not in ``present``."""
        for pid in [pid for pid in self._processes if pid not in present]:
            del self._processes[pid]

    def count(self) -> int:
        """Return how many processes are remembered, without kernel threads."""
        return sum(not process.kernel for process in self._processes.values())

    def descendants(self, ranks: Collection[ProcessKey]) -> dict[ProcessKey, list[ProcessKey]]:
        """Return the processes below each rank, except below another of ``ranks``; omit ranks without descendants.

        A process's parent is read at its first scan: a process that init adopted before this scan is not found.
        """
        above: dict[ProcessKey, ProcessKey | None] = {key: key for key in ranks}
        by_rank: dict[ProcessKey, list[ProcessKey]] = {}
        for process in self._processes.values():
            path: list[ProcessKey] = []
            ancestor: _Process | None = process
            while ancestor is not None and ancestor.key not in above:
                above[ancestor.key] = None  # until its rank is known; stays None if the parents form a ring
                path.append(ancestor.key)
                parent = self._processes.get(ancestor.parent_pid)
                # If the parent is younger, its pid was reused: the real parent is gone.
                ancestor = parent if parent is not None and parent.key.start_ticks <= ancestor.key.start_ticks else None
            rank = None if ancestor is None else above[ancestor.key]
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
        candidates = [(stat, self._processes[stat.pid]) for stat in others]
        files: FilesByPid = {}
        for writer_key, uid in writer_keys.items():
            files.setdefault(writer_key.pid, {})[writer_key.device, writer_key.inode] = uid
        for stat, process in candidates:
            self._failures.attempt("a process", partial(self._inspect, stat, process, now, files), pid=stat.pid)
        # Only when all were examined: a child can come before its parent.
        reasons = [(stat.key, self._evidence(process, ranks)) for stat, process in candidates]
        return [(key, reason) for key, reason in reasons if reason]

    def _inspect(self, stat: Stat, process: _Process, now: float, files: FilesByPid) -> None:
        process.is_blocked = stat.state == "D"
        if files and self._wrote(stat.key, files):
            process.evidence = "records"
            return
        if process.threads == stat.threads and now < process.again_at:
            return
        process.again_at = now + (LOOK_AGAIN_SECONDS if process.threads == stat.threads else NAMED_SECONDS)
        process.threads = stat.threads
        names = (self._proc.thread_name(stat.pid, tid) for tid in self._proc.thread_ids(stat.pid))
        process.evidence = "thread" if any(_RANK_THREAD.match(name) for name in names) else ""
        process.uses_gpu = not process.evidence and self._uses_gpu(stat.pid)
        if process.program != stat.comm:
            process.program, process.claim, process.is_unread = stat.comm, None, stat.comm not in WRAPPERS
            process.claims_for_others = False

    def without_nccl(self, ranks: Collection[ProcessKey], now: float) -> tuple[int, int, list[ProcessKey]]:
        """Return the number of processes without NCCL whose environment names a rank, and of those in jobs without
        NCCL that are not settled (SETTLED_SECONDS); and the ready processes: the settled ones.

        Not counted: children that inherit their parent's environment, and launchers of such processes.
        """
        self._read_claims()
        proven = {key.pid for key in ranks} | {s.key.pid for s in self._processes.values() if s.evidence or s.uses_gpu}
        named = {process.key.pid: process for process in self._processes.values() if process.claim is not None}
        first = {pid: process for pid, process in named.items() if not self._inherits(process)}
        for pid in first.keys() & {above for rank_pid in (*first, *proven) for above in self._ancestors(rank_pid)}:
            first.pop(pid).claims_for_others = True
        without = [s for pid, s in first.items() if pid not in proven and not proven.intersection(self._ancestors(pid))]
        with_nccl = {s.claim.job for pid in proven if (s := named.get(pid)) and s.claim and not s.is_ready}
        of_others = [s for s in without if s.claim and s.claim.job not in with_nccl]
        ready = [s for s in of_others if self._is_settled(s, now)]
        for process in ready:
            process.is_ready = True
            if launcher := self._launcher(process):
                launcher.launched |= {process.program}
        return len(without), len(of_others) - len(ready), [process.key for process in ready]

    def _is_settled(self, process: _Process, now: float) -> bool:
        launcher = self._launcher(process)
        is_known = launcher is not None and process.program in launcher.launched
        return is_known or now - process.first_at >= SETTLED_SECONDS

    def _launcher(self, process: _Process) -> _Process | None:
        """Return the nearest ancestor that is no wrapper; None if that is init or unknown."""
        above = (self._processes.get(pid) for pid in self._ancestors(process.key.pid) if pid != INIT_PID)
        return next((ancestor for ancestor in above if ancestor and ancestor.program not in WRAPPERS), None)

    def _read_claims(self) -> None:
        """Read environments for at most CLAIMS_SECONDS of CPU time. The next scans read the other environments."""
        deadline = time.thread_time() + CLAIMS_SECONDS
        for pid, process in self._processes.items():
            if process.is_unread and not process.is_blocked and time.thread_time() < deadline:
                process.is_unread = False
                environment = self._failures.attempt("a process", partial(self._proc.environment, pid), pid=pid)
                process.claim = claim_of(environment or {})

    def _inherits(self, process: _Process) -> bool:
        launcher = self._launcher(process)
        process.claims_for_others |= launcher is not None and launcher.claim == process.claim
        return process.claims_for_others

    def _ancestors(self, pid: int) -> Iterator[int]:
        """Yield the pids above a process, up to a pid that a younger process has taken."""
        process = self._processes.get(pid)
        for _ in range(MAX_ANCESTORS):
            parent = None if process is None else self._processes.get(process.parent_pid)
            if process is None or (parent is not None and parent.key.start_ticks > process.key.start_ticks):
                return
            yield process.parent_pid
            process = parent

    def _evidence(self, process: _Process, ranks: Container[ProcessKey]) -> str:
        if process.evidence or not process.uses_gpu:
            return process.evidence
        above = (self._processes.get(pid) for pid in self._ancestors(process.key.pid))
        process.inherited |= any(s is not None and (s.uses_gpu or s.evidence or s.key in ranks) for s in above)
        return "" if process.inherited else "library"

    def _wrote(self, key: ProcessKey, files: FilesByPid) -> bool:
        """Return True when the process is the writer of one of these files.

        A forked child holds the file too, but has another pid. If descriptors are unreadable, the pid alone decides,
        and only outside containers and for files of the process's user.
        """
        status = self._proc.status(key.pid)
        if status is None:
            return False
        inner = status.namespace_pids[-1]
        files_of_pid = files.get(inner)
        if not files_of_pid:
            return False
        held = self._proc.open_files(key.pid, is_record_file)
        if held is None:
            return inner == key.pid and any(uid in (None, status.uid) for uid in files_of_pid.values())
        return any((file.device, file.inode) in files_of_pid and self._proc.may_write(key.pid, file) for file in held)

    def _uses_gpu(self, pid: int) -> bool:
        files = self._proc.open_files(pid, is_record_file)
        if not files or not any(_GPU_DEVICE.match(file.target) for file in files):
            return False
        return bool(self._proc.maps_library(pid, _LIBRARY))
