"""What the control groups of each job waited for, added up so that no group's end takes any of it back; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from exporters.process.usage.facts import GroupTotals, JobUsage


class JobTotals:
    """The jobs with live ranks on the node. Totals begin at 0 with the first look at a group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, GroupTotals]] = {}
        self._waited: dict[str, GroupTotals] = {}

    def note(self, directories: Mapping[str, Collection[str]], totals: Mapping[str, GroupTotals]) -> None:
        """Take a look: the groups of each job's live ranks, and what each waited for; other jobs are forgotten."""
        groups = {job_id: {each: totals[each] for each in own if each in totals} for job_id, own in directories.items()}
        waited = {}
        for job_id, now in groups.items():
            before = self._groups.get(job_id, {})
            waited[job_id] = self._waited.get(job_id, GroupTotals())
            for directory, reading in now.items():
                if directory in before:
                    waited[job_id] = _added(waited[job_id], before[directory], reading)
        self._groups, self._waited = groups, waited

    def shown(self) -> tuple[JobUsage, ...]:
        """Return the jobs and what their groups waited for."""
        return tuple(JobUsage(job_id, waited) for job_id, waited in self._waited.items())


def _added(total: GroupTotals, before: GroupTotals, now: GroupTotals) -> GroupTotals:
    """Return the total and the increase; a smaller number belongs to a new group with the old name.

    Add nothing after a 0, which also stands for a missing value: else a group's whole past would count as new.
    """
    increases = ((new - old if new >= old else new) if old else 0 for old, new in zip(before, now, strict=True))
    return GroupTotals(*(sum(pair) for pair in zip(total, increases, strict=True)))
