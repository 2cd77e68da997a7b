"""Whose jobs have ranks on this node: what a file says counts for the jobs of its user alone. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from agent.ranks.snapshot import RankSnapshot, RankView


class JobUsers:
    """The jobs with ranks here, by their processes' user."""

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
