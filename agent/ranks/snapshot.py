"""The rank table as others see it: frozen, for the render thread, the pages and exporters. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from agent.core.identity import RankLabel
from agent.ranks.liveness.job_line import JobLine
from agent.ranks.naming.labels import LabelBook
from agent.ranks.rank.process import RankGpu, RankProcess


class RankView(msgspec.Struct, frozen=True):
    """One rank as published: its label and process, frozen at the time of the snapshot."""

    label: RankLabel
    slot: int
    process: RankProcess

    def gpus(self) -> tuple[RankGpu, ...]:
        """The rank's own GPUs: of a process of several ranks with as many GPUs each rank has one, in their order."""
        found, slots = self.process.gpus, self.process.slots or ()
        return (found[self.slot],) if len(found) == len(slots) > 1 else found


class RankSnapshot(msgspec.Struct, frozen=True):
    """What ``families`` renders; ``taken_seconds``: the wall clock when it was taken, since the epoch;
    ``taken_at``: seconds since the boot. ``jobs``: the lines of the liveness book, by job id.

    ``without_nccl``: processes that an environment calls ranks, and that have not loaded NCCL.
    """

    ranks: tuple[RankView, ...]
    duplicates: int
    refused: int
    unidentified: int
    unreadable: int
    taken_seconds: float
    taken_at: float = 0.0
    jobs: Mapping[str, JobLine] = {}
    without_nccl: int = 0


def views_of(processes: Iterable[RankProcess], labels: LabelBook) -> tuple[RankView, ...]:
    """Copy the ranks whose process was seen to run or to leave and holds the label, by job and rank."""
    ranks = []
    for process in processes:
        if process.confirmed and process.slots:
            frozen = msgspec.structs.replace(process, members=dict(process.members))
            ranks += [
                RankView(label, slot, frozen)
                for slot, label in enumerate(process.slots)
                if label is not None and labels.holds(process, label)
            ]
    return tuple(sorted(ranks, key=lambda view: (view.label.job_id, len(view.label.rank), view.label.rank)))


class JobUsers:
    """The jobs with ranks here, by their processes' user: what a file says counts for the jobs of its user alone."""

    def __init__(self, snapshot: RankSnapshot | None = None) -> None:
        self._jobs: defaultdict[int, dict[str, set[str]]] = defaultdict(dict)
        for view in () if snapshot is None else snapshot.ranks:
            facts = view.process.facts
            if facts is not None and facts.uid is not None:
                names = self._jobs[facts.uid].setdefault(view.label.job_id, set())
                names.update(_names(view))

    def jobs(self) -> frozenset[str]:
        """Return the labels of all jobs here."""
        return frozenset(job_id for jobs in self._jobs.values() for job_id in jobs)

    def job_of(self, uid: int, named: str | None) -> str:
        """The label of the job that a file of this user is of; ``named``: the id that the file's name has, if any.

        Empty where the user has no such job here, or no name says which of several it is.
        """
        jobs = self._jobs.get(uid, {})
        if named is None:
            return next(iter(jobs)) if len(jobs) == 1 else ""
        return min((job_id for job_id, names in jobs.items() if named in names), default="")


def _names(view: RankView) -> Iterable[str]:
    """Return the names of a job: its label, and its ids before other owners' jobs of the same id got a suffix."""
    process = view.process
    owner = "" if process.facts is None else process.facts.owner.job_id
    return {view.label.job_id, process.plain_job_id, process.claim.job_id, owner} - {""}
