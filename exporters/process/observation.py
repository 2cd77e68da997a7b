"""The state of a rank process: blocked threads, a pending kill, closed record files. Blocking."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from agent.sdk.ranks import ProcessKey, is_record_file
from agent.sdk.system import OpenFile, ProcFS, Stat
from exporters.process.oom_kills import OomCount, OomKills

THREADS_SECONDS = 5.0
"""Interval for reading the threads and the usage of ranks, and for searching record files of ranks that hold none."""
NEW_RANK_SECONDS = 60.0  # For this long after a rank's discovery, each scan searches for its first record file
MAX_NEW_PER_USER = 64  # New ranks of one user in each scan's search; further ranks wait THREADS_SECONDS
MAX_LOGS = 64  # Record files of a rank that each scan checks; NCCL's Inspector writes one file per process
LOGS_SECONDS = 30.0  # Interval between searches for further record files of a rank that holds one

# Threads that a collective needs to make progress: NCCL's, CUDA's ("cuda-EvtHandlr", "cuda00001400006").
_VITAL_THREAD = re.compile(r"^(NCCL |pt_nccl_|cuda)")


class ProcessObservation(msgspec.Struct, frozen=True):
    """The state of one rank process: see ``RankWriter.observe_state``."""

    state: str
    blocked_since: float | None
    kill_pending: bool
    finalized: bool | None
    oom: OomCount


class KnownRank(msgspec.Struct):
    """The scanner's data about a rank process between scans.

    ``oom_kills``: the OOM kills that its groups (``oom_files``) had counted at the last scan. ``oom_kills_before``: at
    the scan before that. Both stay the same once the process is dying. ``oomd``: see ``OomCount``. ``blocked``: for
    each vital thread in state D, its number of context switches, and since when this number is unchanged.
    ``finalized`` None: the scanner has seen no record file of the process.
    """

    namespace_pid: int
    uid: int | None = None
    threads_seen: bool = False
    blocked: dict[int, tuple[int, float]] = {}
    logs: dict[int, OpenFile] = {}
    logs_at: float = float("-inf")
    first_look_at: float = float("inf")
    finalized: bool | None = None
    kill_pending: bool = False
    blocked_since: float | None = None
    oom_files: tuple[str, ...] = ()
    oom_kills: tuple[OomKills | None, ...] = ()
    oom_kills_before: tuple[OomKills | None, ...] = ()
    oomd: tuple[tuple[str, int], ...] = ()


def observe(
    proc: ProcFS,
    rank: KnownRank,
    stat: Stat,
    now: float,
    oom_kills: tuple[OomKills | None, ...],
    threads: Sequence[Stat] | None,
    searched: Counter[int | None],
) -> ProcessObservation:
    """Examine a running rank process; ``rank`` keeps the data for the next scan.

    ``stat``: its stat line of this scan; ``oom_kills``: present counts of its control groups, None when unknown;
    ``threads``: stat lines of its threads, None when not due. ``searched``: new ranks searched in this scan, by user.
    """
    key = stat.key
    status = proc.status(key.pid)
    # The kernel counts an OOM kill, then sends SIGKILL, which cannot be taken back; large memory takes seconds to free.
    rank.kill_pending |= status is not None and status.kill_pending
    if not (rank.kill_pending or stat.exiting or stat.state in "ZX"):
        known = tuple(new or old for new, old in zip(oom_kills, rank.oom_kills, strict=True))
        rank.oom_kills_before, rank.oom_kills = rank.oom_kills, known
    if threads is not None:
        _note_threads(proc, key, rank, threads, now)
    _look_at_logs(proc, key, rank, now, searched)
    oom = OomCount(tuple(zip(rank.oom_files, rank.oom_kills_before, strict=True)), rank.oomd)
    return ProcessObservation(stat.state, rank.blocked_since, rank.kill_pending, rank.finalized, oom)


def _note_threads(proc: ProcFS, key: ProcessKey, rank: KnownRank, threads: Sequence[Stat], now: float) -> None:
    """Find since when any vital thread has been in state D without a context switch."""
    blocked: dict[int, tuple[int, float]] = {}
    for stat in threads:
        tid = stat.pid
        if stat.state != "D" or (tid != key.pid and not _VITAL_THREAD.match(stat.comm)):
            continue
        status = proc.thread_status(key.pid, tid)
        switches = status.context_switches if status is not None else -1
        before, since = rank.blocked.get(tid, (None, now))
        blocked[tid] = (switches, since if before == switches else now)
    rank.blocked = blocked
    rank.blocked_since = min((since for _, since in blocked.values()), default=None)


def _look_at_logs(proc: ProcFS, key: ProcessKey, rank: KnownRank, now: float, searched: Counter[int | None]) -> None:
    """Note the record files that the process holds open. If it closed the last one, its communicators are gone."""
    for fd, file in list(rank.logs.items()):
        if proc.holds(key.pid, file) is False:
            stat = proc.stat(key.pid)
            if stat is None or stat.exiting or stat.state in "ZX" or stat.key != key:
                return  # the kernel closed the file at the process's death: no orderly end
            del rank.logs[fd]
            rank.finalized = not rank.logs
    rank.first_look_at = min(rank.first_look_at, now)
    is_new = now - rank.first_look_at < NEW_RANK_SECONDS and searched[rank.uid] < MAX_NEW_PER_USER
    if now - rank.logs_at < (LOGS_SECONDS if rank.logs else 0.0 if is_new else THREADS_SECONDS):
        return
    searched[rank.uid] += is_new
    rank.logs_at = now
    files = proc.open_files(key.pid, is_record_file) or []
    rank.logs = {file.fd: file for file in [file for file in files if file.inode][:MAX_LOGS]}
    if rank.logs:
        rank.finalized = False
