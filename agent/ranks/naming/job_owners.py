"""Decide which owner has a job id on this node; processes of other owners get the id with a suffix.

A user can forge the environment that names a job, and schedulers' ids are consecutive: a user could guess the next id
and take it before the job starts. So a proven claim takes the id without a suffix, even from an earlier holder.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import count

import msgspec

from agent.ranks.rank import environment
from agent.ranks.rank.process import RankProcess

_HASH_BYTES = 4


class Holder(msgspec.Struct):
    """The holder of a job id. ``key``: see ``party``. ``uid``: uid of the holder's first process.

    ``proven``: the scheduler proves that one of the holder's processes belongs to the job. ``only_proven``: the first
    process was proven. Then processes without proof do not belong to the job, even if the same user runs them.
    """

    key: str
    uid: int | None
    proven: bool
    only_proven: bool


class JobOwners:
    """The holder of each job id on this node.

    ``schedulers``: schedulers with a proven job on this node. Unproven claims of these schedulers' job ids are suspect.
    """

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        self.schedulers: set[str] = set()

    def __contains__(self, shown: str) -> bool:
        return shown in self._holders

    def assign(self, plain: str, process: RankProcess, processes: Iterable[RankProcess]) -> tuple[str, bool]:
        """Return the id shown for job ``plain`` of ``process``, and whether another owner lost this id.

        ``processes``: all processes. The stand-in of an unseen process has no owner: it neither holds nor loses an id.
        """
        if process.facts is None:
            return plain, False
        proven = is_proven(process)
        if proven and process.owner.scheduler:
            self.schedulers.add(process.owner.scheduler)
        if not is_disproved(process):
            holder = self._holders.get(plain)
            if self._may_hold(plain, process, processes):
                self._hold(plain, process)
                return plain, False
            if holder is not None and proven and not holder.proven:
                self._holders[plain] = _holder(process)
                return plain, True
        claimant = _holder(process)
        shown = next(s for s in suffixed(plain, process) if self._holders.get(s, claimant).key == claimant.key)
        self._hold(shown, process)
        return shown, False

    def keep(self, processes: Iterable[RankProcess]) -> None:
        """Drop the ids under which no process in ``processes`` is shown."""
        shown_ids = {process.shown_job_id for process in processes}
        for shown in self._holders.keys() - shown_ids:
            del self._holders[shown]

    def restore(self, processes: Iterable[RankProcess]) -> None:
        """Restore the holders of ids from the processes of the checkpoint."""
        for process in processes:
            if process.shown_job_id and process.facts is not None:
                self._hold(process.shown_job_id, process)

    def _may_hold(self, plain: str, process: RankProcess, processes: Iterable[RankProcess]) -> bool:
        """Return True if the id is free, the process' party holds it, or an unproven holder of the same user exited."""
        proven = is_proven(process)
        suspect = not proven and process.claim.scheduler in self.schedulers and plain == process.claim.job_id
        holder = self._holders.get(plain)
        if holder is None:
            return not suspect
        if holder.key == party(process):
            return proven or not holder.only_proven
        if suspect or holder.proven or holder.uid != process.seen.uid:
            return False
        return not any(other.exited_at is None and other.shown_job_id == plain for other in processes)

    def _hold(self, shown: str, process: RankProcess) -> None:
        holder = self._holders.get(shown)
        if holder is None or holder.key != party(process):
            self._holders[shown] = _holder(process)
        else:
            holder.proven = holder.proven or is_proven(process)


def party(process: RankProcess) -> str:
    """Return the key of the process' party, which can hold job ids: user, pod's namespace, or container run as root.

    Root's uid in a container does not show who started the container. Any other uid is one party on the whole node.
    """
    owner, uid = process.owner, process.seen.uid
    if owner.kind == "pod" or uid is None or (owner.kind == "container" and uid == 0):
        return owner.key
    return f"user/{uid}"


def plain_id(process: RankProcess, otherwise: str) -> str:
    """Return the id of the process' job without an owner's suffix; ``otherwise`` if no source names the job.

    The id of a pod's job contains the namespace if it is known.
    """
    owner = process.owner
    plain = process.claim.job_id or otherwise
    return f"{owner.namespace}/{plain}" if owner.kind == "pod" and owner.namespace else plain


def is_proven(process: RankProcess) -> bool:
    """Return True if the scheduler confirms the claimed job id, or if Kubernetes confirms the pod's namespace."""
    owner, claim = process.owner, process.claim
    if owner.kind == "pod":
        return bool(owner.namespace)
    return bool(owner.scheduler) and (claim.scheduler, claim.job_id) == (owner.scheduler, owner.job_id)


def proof_of(process: RankProcess) -> str:
    """Return the proof of the process' job: cgroup or parent (of the scheduler), pod, or none."""
    if not is_proven(process):
        return "none"
    return "pod" if process.owner.kind == "pod" else process.owner.proof


def is_disproved(process: RankProcess) -> bool:
    """Return True when the scheduler shows that the process belongs to another job than it claims."""
    owner, claim = process.owner, process.claim
    return bool(owner.scheduler) and claim.scheduler == owner.scheduler and claim.job_id != owner.job_id


def suffixed(plain: str, process: RankProcess) -> Iterator[str]:
    """Yield possible ids of a process whose owner does not hold ``plain``: with the owner's number, then with hashes.

    Another owner can claim some of these ids, but not all.
    """
    short = plain[: environment.MAX_LABEL_CHARACTERS]
    yield f"{short}-{process.owner.suffix(process.seen.uid)}"
    for number in count():
        name = f"{process.owner.key}{number or ''}"
        yield f"{short}-{hashlib.blake2s(name.encode(), digest_size=_HASH_BYTES).hexdigest()}"


def _holder(process: RankProcess) -> Holder:
    proven = is_proven(process)
    return Holder(party(process), process.seen.uid, proven, proven)
