"""Finds processes on a rank's GPU that do not belong to the rank's job. Pure.

A process belongs to a job if it descends from a rank of the job, or is in the scheduler job, pod, container or session
of such a rank. Any other process on the GPU takes time, memory and power from the rank: a notebook, another job, or a
leftover of an earlier run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.sdk.exporter import Context, OwnThread
from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family
from agent.sdk.ranks import Owner, ProcessKey
from agent.sdk.system import ProcFS, Stat
from exporters.process.ownership import ROOT_UID, OwnerSearch, ancestors

MPS_SERVER = "nvidia-cuda-mps"
"""The kernel's name for nvidia-cuda-mps-server. The driver also lists the clients for which this server computes."""
MAX_USERS = 8  # Named per GPU; the processes of further users are one series

# fmt: off
FOREIGN = Family("rankwatch_gpu_foreign_processes", "gauge",
    "Processes that compute on a rank's GPU and do not belong to that rank's job, by user (the uid while the name is "
    "unknown; empty: all users beyond eight); absent while there are none. On a GPU with ranks of two jobs the "
    "processes of both jobs count. GPUs with MIG have no series, since users do not share an instance.",
    (*gpu_families.GPU_LABELS, "user"), "1 per GPU and user of such processes, up to 9 per GPU")
# fmt: on


class GpuUser(msgspec.Struct, frozen=True):
    """A process that uses a GPU. ``job_ids``: jobs of the ranks in the process, empty if it is not a rank.

    ``session``: id of its session, 0 when unknown. ``ancestors``: pids of its ancestors.
    """

    name: str
    uid: int | None
    owner: Owner = Owner()
    session: int = 0
    ancestors: frozenset[int] = frozenset()
    job_ids: frozenset[str] = frozenset()


Count = tuple[str, int | None, int]  # A GPU's UUID, a user's uid (None: all further users), the number of processes


def foreign(users: Mapping[int, Iterable[str]], processes: Mapping[int, GpuUser]) -> tuple[Count, ...]:
    """Count foreign processes by GPU and user. ``users``: the GPUs (UUIDs) that each pid uses.

    ``processes``: facts about these pids, and about their ancestors that are ranks. A pid without facts does not count.
    """
    by_gpu: dict[str, list[int]] = {}
    for pid, uuids in users.items():
        for uuid in uuids if pid in processes else ():
            by_gpu.setdefault(uuid, []).append(pid)
    counted: list[Count] = []
    for uuid, pids in sorted(by_gpu.items()):
        ranks = [pid for pid in pids if processes[pid].job_ids]
        counts = Counter(processes[pid].uid for pid in pids if _is_foreign(pid, ranks, processes))
        counted += [(uuid, uid, count) for uid, count in _bounded(counts)]
    return tuple(counted)


def _is_foreign(pid: int, ranks: Iterable[int], processes: Mapping[int, GpuUser]) -> bool:
    return any(rank != pid and not _belongs(processes[pid], processes[rank], processes) for rank in ranks)


def _belongs(process: GpuUser, rank: GpuUser, processes: Mapping[int, GpuUser]) -> bool:
    if process.name == MPS_SERVER and process.uid in (ROOT_UID, rank.uid):
        return True
    above = (processes[pid] for pid in process.ancestors if pid in processes)
    return any(
        _is_of_one_job(candidate, rank)
        for candidate in (process, *(candidate for candidate in above if candidate.job_ids))
    )


def _is_of_one_job(process: GpuUser, rank: GpuUser) -> bool:
    owner, of_rank = process.owner, rank.owner
    if process.job_ids & rank.job_ids:
        return True
    if not process.job_ids and process.session and process.session == rank.session:
        return True
    if owner.job_id and (owner.scheduler, owner.job_id) == (of_rank.scheduler, of_rank.job_id):
        return True
    return owner.kind != "user" and owner.name != "" and (owner.kind, owner.name) == (of_rank.kind, of_rank.name)


def _bounded(counts: Counter[int | None]) -> Iterable[tuple[int | None, int]]:
    """Return by uid the counts of the users with the most processes, and last the count of all other users together."""
    named = [(uid, count) for uid, count in counts.most_common() if uid is not None][:MAX_USERS]
    further = counts.total() - sum(count for _, count in named)
    return [*named, (None, further)] if further else named


INTERVAL_SECONDS = 10.0  # Shortest time between two queries for the processes of GPUs
MAX_PROCESSES = 512  # Remembered processes; further processes are not shown
MAX_NEW = 64  # New processes examined in one turn; other processes follow in the next turns

Shown = tuple[tuple[str, str, str, int], ...]  # GPU, its UUID, user, processes


class OtherProcesses:
    """Facts about processes that are not ranks; each is examined once. Blocking, used from one thread.

    A process's ancestors are read only once: a child still counts as their descendant after they have ended.
    """

    def __init__(self, proc: ProcFS, owners: OwnerSearch) -> None:
        self._proc = proc
        self._owners = owners
        self._known: dict[ProcessKey, GpuUser] = {}

    def look(self, pids: Iterable[int]) -> dict[int, GpuUser]:
        """Return the facts of the running processes, by pid."""
        users: dict[ProcessKey, GpuUser] = {}
        new = 0
        for pid in pids:
            stat = self._proc.stat(pid)
            if stat is None or stat.over:
                continue
            known = self._known.get(stat.key)
            if known is None and new < MAX_NEW and len(users) < MAX_PROCESSES:
                known = self._describe(stat)
                new += 1
            if known is not None:
                users[stat.key] = known
        self._known = users
        return {key.pid: user for key, user in users.items()}

    def _describe(self, stat: Stat) -> GpuUser | None:
        status = self._proc.status(stat.pid)
        if status is None:
            return None
        owner, _ = self._owners.look(stat, status.uid, self._proc.cgroup(stat.pid))
        above = frozenset(parent.pid for parent in ancestors(self._proc, stat))
        return GpuUser(stat.comm, status.uid, owner, stat.session, above)


class GpuUsers:
    """Finds foreign processes on GPUs. Runs on the event loop, except the reads of /proc."""

    def __init__(self, ctx: Context, thread: OwnThread, name_of: Callable[[int], str]) -> None:
        self._ctx = ctx
        self._thread = thread
        self._name_of = name_of
        proc = ProcFS(ctx.roots.proc)
        self._others = OtherProcesses(proc, OwnerSearch(ctx.roots, proc))
        self._looked_at = float("-inf")
        self.shown: Shown = ()

    async def update(self) -> None:
        """If INTERVAL_SECONDS have passed, query again which processes use GPUs."""
        now = self._ctx.clock.monotonic()
        if now - self._looked_at < INTERVAL_SECONDS:
            return
        self._looked_at = now
        users = self._ctx.hardware.gpu_users()
        ranks = self._ranks()
        pids = sorted(users.keys() - ranks.keys())
        others = await self._thread.call(lambda: self._others.look(pids)) if pids else {}
        names = {gpu.uuid: str(gpu.index) for gpu in self._ctx.hardware.gpus()}
        self.shown = tuple(
            (names.get(uuid, ""), uuid, "" if uid is None else self._name_of(uid), count)
            for uuid, uid, count in foreign(users, {**others, **ranks})
        )

    def _ranks(self) -> dict[int, GpuUser]:
        ranks = {}
        for process in self._ctx.ranks.snapshot().running.values():
            if job_ids := frozenset(label.job_id for label in process.labels):
                facts = process.facts
                ranks[facts.key.pid] = GpuUser("", facts.uid, facts.owner, facts.session, job_ids=job_ids)
        return ranks
