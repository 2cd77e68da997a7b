"""Looks at the processes that use GPUs and are no ranks, and counts those that are foreign to a rank there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent.sdk.exporter import Context, OwnThread
from agent.sdk.metrics import Metric, Rows
from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS, Stat
from exporters.process.foreign import FOREIGN, GpuUser, foreign
from exporters.process.ownership import OwnerSearch

INTERVAL_SECONDS = 10.0
"""Shortest time between two queries for the processes of GPUs."""
MAX_PROCESSES = 512
"""Maximum number of remembered processes; those beyond it are not shown."""
MAX_NEW = 64
"""Looked at in one turn; the others are in the next ones."""
MAX_ANCESTORS = 64

Shown = tuple[tuple[str, str, str, int], ...]
"""GPU, its UUID, user, processes."""


class Strangers:
    """What is known of processes that are no ranks; each is looked at once. Blocking, used from one thread.

    Ancestors are those of the first look: a child whose parent has left since still descends from it.
    """

    def __init__(self, proc: ProcFS, owners: OwnerSearch) -> None:
        self._proc = proc
        self._owners = owners
        self._known: dict[ProcessKey, GpuUser] = {}

    def look(self, pids: Iterable[int]) -> dict[int, GpuUser]:
        """What is known of those that run, by pid."""
        found: dict[ProcessKey, GpuUser] = {}
        new = 0
        for pid in pids:
            stat = self._proc.stat(pid)
            if stat is None or stat.over:
                continue
            known = self._known.get(stat.key)
            if known is None and new < MAX_NEW and len(found) < MAX_PROCESSES:
                known = self._describe(stat)
                new += 1
            if known is not None:
                found[stat.key] = known
        self._known = found
        return {key.pid: user for key, user in found.items()}

    def _describe(self, stat: Stat) -> GpuUser | None:
        status = self._proc.status(stat.pid)
        if status is None:
            return None
        owner, _ = self._owners.look(stat, status.uid, self._proc.cgroup(stat.pid))
        return GpuUser(stat.comm, status.uid, owner, stat.session, frozenset(self._ancestors(stat)))

    def _ancestors(self, stat: Stat) -> Iterable[int]:
        parent: Stat | None = stat
        for _ in range(MAX_ANCESTORS):
            parent = self._proc.stat(parent.parent_pid) if parent is not None and parent.parent_pid > 1 else None
            if parent is None:
                return
            yield parent.pid


class GpuUsers:
    """On the event loop, but for the looks themselves."""

    def __init__(self, ctx: Context, thread: OwnThread, name_of: Callable[[int], str]) -> None:
        self._ctx = ctx
        self._thread = thread
        self._name_of = name_of
        proc = ProcFS(ctx.roots.proc)
        self._strangers = Strangers(proc, OwnerSearch(ctx.roots, proc))
        self._looked_at = float("-inf")
        self.shown: Shown = ()

    async def update(self) -> None:
        """Look, if it is time to."""
        now = self._ctx.clock.monotonic()
        if now - self._looked_at < INTERVAL_SECONDS:
            return
        self._looked_at = now
        users = self._ctx.hardware.gpu_users()
        ranks = self._ranks()
        pids = sorted(users.keys() - ranks.keys())
        strangers = await self._thread.call(lambda: self._strangers.look(pids)) if pids else {}
        names = {gpu.uuid: str(gpu.index) for gpu in self._ctx.hardware.gpus()}
        self.shown = tuple(
            (names.get(uuid, ""), uuid, "" if uid is None else self._name_of(uid), count)
            for uuid, uid, count in foreign(users, {**strangers, **ranks})
        )

    def _ranks(self) -> dict[int, GpuUser]:
        found = {}
        for key, process in self._ctx.ranks.processes().items():
            facts, job_ids = process.facts, {label.job_id for label in self._ctx.ranks.labels_of(key)}
            if facts is not None and job_ids:
                found[key.pid] = GpuUser("", facts.uid, facts.owner, facts.session, job_ids=frozenset(job_ids))
        return found


def render(shown: Shown) -> Metric:
    """Return the family; pure."""
    rows: Rows = FOREIGN.rows()
    for *labels, count in shown:
        rows.add(tuple(labels), count)
    return rows.metric
