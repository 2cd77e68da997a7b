"""Whose a job id is on this node: one owner has it plain, others' processes get it with a suffix.

The environment that names a job is its user's to forge, and schedulers' ids follow one another: whoever guesses the
next one could take it before the job starts. A claim that the scheduler proves takes the plain id, also later.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.core.identity import RankLabel
from agent.ranks import environment
from agent.ranks.process import RankProcess


class Holder(msgspec.Struct):
    """Who has an id plain; ``proven``: by the scheduler whose id it is."""

    key: str
    proven: bool


class JobOwners:
    """The ids of jobs on this node and who holds each.

    ``schedulers``: those of which a job was proven here; what claims one of their ids without proof is suspect.
    """

    def __init__(self) -> None:
        self._holders: dict[str, Holder] = {}
        self.schedulers: set[str] = set()

    def name(self, plain: str, process: RankProcess) -> tuple[str, bool]:
        """The id under which a job ``plain`` of ``process`` is shown, and whether it was taken from another owner.

        What stands in for a process that was never seen has no owner: it neither holds an id nor loses one.
        """
        if process.facts is None:
            return plain, False
        key, proven = party(process), is_proven(process)
        if proven:
            self.schedulers.add(process.owner.scheduler)
        suspect = process.claim.scheduler in self.schedulers and plain == process.claim.job_id
        if is_disproved(process) or (suspect and not proven):
            return suffixed(plain, process), False
        holder = self._holders.get(plain)
        if holder is None or holder.key == key:
            self._holders[plain] = Holder(key, proven or (holder is not None and holder.proven))
            return plain, False
        if proven and not holder.proven:
            self._holders[plain] = Holder(key, proven)
            return plain, True
        return suffixed(plain, process), False

    def keep(self, processes: Iterable[RankProcess]) -> None:
        """Forget the ids that none of ``processes`` has plain."""
        held = {process.plain_job_id for process in processes if has_plain(process)}
        self._holders = {plain: holder for plain, holder in self._holders.items() if plain in held}

    def restore(self, processes: Iterable[RankProcess]) -> None:
        """Take back who holds what from processes of the checkpoint."""
        for process in processes:
            if has_plain(process):
                self._holders[process.plain_job_id] = Holder(party(process), is_proven(process))


def party(process: RankProcess) -> str:
    """The key of the owner to whom an id belongs: of an id that is no scheduler's, the user of a scheduler's job."""
    owner, claim = process.owner, process.claim
    if owner.kind == "job" and claim.job_id and not claim.scheduler:
        uid = None if process.facts is None else process.facts.uid
        return f"user/{uid}"
    return owner.key


def plain_id(process: RankProcess, otherwise: str) -> str:
    """The id of the process' job before it is known whose it is; ``otherwise``: where nothing names the job.

    Ids of pods carry the namespace, where that is known.
    """
    owner = process.owner
    plain = process.claim.job_id or otherwise
    return f"{owner.namespace}/{plain}" if owner.kind == "pod" and owner.namespace else plain


def is_proven(process: RankProcess) -> bool:
    """True when the scheduler proves the id that the process claims."""
    owner, claim = process.owner, process.claim
    return bool(owner.scheduler) and (claim.scheduler, claim.job_id) == (owner.scheduler, owner.job_id)


def proof_of(process: RankProcess) -> str:
    """What proves that the process is of its job: cgroup or parent of the scheduler, pod, none."""
    if is_proven(process):
        return process.owner.proof
    return "pod" if process.owner.kind == "pod" and process.owner.namespace else "none"


def is_disproved(process: RankProcess) -> bool:
    """True when the scheduler shows the process in another job than it claims."""
    owner, claim = process.owner, process.claim
    return bool(owner.scheduler) and claim.scheduler == owner.scheduler and claim.job_id != owner.job_id


def suffixed(plain: str, process: RankProcess) -> str:
    """The id that another owner's process gets."""
    uid = None if process.facts is None else process.facts.uid
    return f"{plain[: environment.MAX_LABEL_CHARACTERS]}-{process.owner.suffix(uid)}"


def has_plain(process: RankProcess) -> bool:
    """True for a process whose labels carry its job's id without an owner's suffix."""
    plain = process.plain_job_id
    return bool(plain) and any(
        label is not None and not label.job_id.startswith(suffixed(plain, process)) for label in process.slots or ()
    )


def renamed(label: RankLabel, process: RankProcess) -> RankLabel:
    """The label of a process whose plain id another owner took; a group's hash stays behind it."""
    rest = label.job_id.removeprefix(process.plain_job_id)
    return RankLabel(suffixed(process.plain_job_id, process) + rest, label.rank)
