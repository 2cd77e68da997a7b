"""Which processes on a rank's GPU are neither ranks of its job nor belong to it. Pure.

A process belongs to a job when it is of the same scheduler's job, pod or container, descends from one of its ranks, or
is of the session of one. All else on the GPU takes time, memory and power from the rank: a notebook, another job, or
what an earlier run of the job left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family
from agent.sdk.ranks import Owner

MPS_SERVER = "nvidia-cuda-mps"
"""The name that the kernel shows of nvidia-cuda-mps-server; the clients that it computes for are listed as well."""
ROOT_UID = 0
MAX_USERS = 8
"""Named of one GPU; the processes of all further ones are one series."""

# fmt: off
FOREIGN = Family("rankwatch_gpu_foreign_processes", "gauge",
    "Processes that compute on a GPU that a rank uses and are not of that rank's job, by user (the uid while the name "
    "is not known; empty: all users beyond eight); absent while there are none. On a GPU with ranks of two jobs those "
    "of both count. Not of a GPU in parts (MIG), whose users do not share.",
    (*gpu_families.GPU_LABELS, "user"), "1 per GPU and user of such processes, up to 9 per GPU")
# fmt: on


class GpuUser(msgspec.Struct, frozen=True):
    """A process that uses a GPU. ``job_ids``: of the ranks it is, none for what is no rank.

    ``session``: its session's id, 0 where that is not known. ``ancestors``: their pids.
    """

    name: str
    uid: int | None
    owner: Owner = Owner()
    session: int = 0
    ancestors: frozenset[int] = frozenset()
    job_ids: frozenset[str] = frozenset()


Count = tuple[str, int | None, int]
"""A GPU's UUID, a user's uid (None: all further ones) and how many processes."""


def foreign(users: Mapping[int, Iterable[str]], processes: Mapping[int, GpuUser]) -> tuple[Count, ...]:
    """Count foreign processes by GPU and user. ``users``: the GPUs (UUIDs) that each pid uses.

    ``processes`` has what is known of these, and of the ancestors that are ranks; of one that is not in it nothing is
    said.
    """
    by_gpu: dict[str, list[int]] = {}
    for pid, uuids in users.items():
        for uuid in uuids if pid in processes else ():
            by_gpu.setdefault(uuid, []).append(pid)
    found: list[Count] = []
    for uuid, pids in sorted(by_gpu.items()):
        ranks = [pid for pid in pids if processes[pid].job_ids]
        counts = Counter(processes[pid].uid for pid in pids if _is_foreign(pid, ranks, processes))
        found += [(uuid, uid, count) for uid, count in _bounded(counts)]
    return tuple(found)


def _is_foreign(pid: int, ranks: Iterable[int], processes: Mapping[int, GpuUser]) -> bool:
    return any(rank != pid and not _belongs(processes[pid], processes[rank], processes) for rank in ranks)


def _belongs(process: GpuUser, rank: GpuUser, processes: Mapping[int, GpuUser]) -> bool:
    """Return whether a process is of a rank's job."""
    if process.name == MPS_SERVER and process.uid in (ROOT_UID, rank.uid):
        return True
    above = (processes[pid] for pid in process.ancestors if pid in processes)
    return any(_is_of_one_job(each, rank) for each in (process, *(each for each in above if each.job_ids)))


def _is_of_one_job(process: GpuUser, rank: GpuUser) -> bool:
    own, its = process.owner, rank.owner
    if process.job_ids & rank.job_ids:
        return True
    if not process.job_ids and process.session and process.session == rank.session:
        return True
    if own.job_id and (own.scheduler, own.job_id) == (its.scheduler, its.job_id):
        return True
    return own.kind != "user" and own.name != "" and (own.kind, own.name) == (its.kind, its.name)


def _bounded(counts: Counter[int | None]) -> Iterable[tuple[int | None, int]]:
    """Return the users with most processes by name, then all others together."""
    named = [(uid, count) for uid, count in counts.most_common() if uid is not None][:MAX_USERS]
    rest = counts.total() - sum(count for _, count in named)
    return [*named, (None, rest)] if rest else named
