"""The last report of each job that is queried."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agent.api import Admission, ProcessKey
from exporters.ras.asking.jobs import LocalProcess, OwnedJob
from exporters.ras.report.hangs import MAX_SUSPECTS, Watch, stalled, watch
from exporters.ras.report.job_report import JobReport
from exporters.ras.report.model import Communicator, Report

_ALWAYS = 10
"""Series of every communicator: its states, last launch, stalled."""


class Reports:
    """By job. Their series are admitted by the agent's budget, or the report is refused."""

    def __init__(self, admit: Admission) -> None:
        self._admit = admit
        self.by_job: dict[OwnedJob, JobReport] = {}

    def keep(self, owner: LocalProcess, report: Report, until: float, asked_seconds: float) -> bool:
        """Replace the last report of ``owner``'s job; False when the budget of series has no room for it."""
        before = self.by_job.get(owner.job)
        watches = watch(before.watches if before else {}, report.communicators, asked_seconds)
        self.release(owner.job)
        series = sum(series_of(each, watches) for each in report.communicators)
        if not self._admit.admit(_budget(owner.job), series, max(report.ranks(), 1)):
            return False
        count = before.count + 1 if before else 1
        self.by_job[owner.job] = JobReport(owner.key, report, until, owner.world_size, watches, asked_seconds, count)
        return True

    def named(self, processes: Mapping[ProcessKey, LocalProcess]) -> dict[str, JobReport]:
        """The reports of jobs with a name; in a single pass a job is named after its report came."""
        found: dict[str, JobReport] = {}
        for job, kept in self.by_job.items():
            name = job.job_id or (processes[kept.owner].job_id if kept.owner in processes else "")
            if name:
                found.setdefault(name, kept)
        return found

    def forget(self, now: float, jobs: Collection[OwnedJob]) -> None:
        """Forget reports that are too old at monotonic time ``now``, and those of jobs other than ``jobs``."""
        for job, kept in list(self.by_job.items()):
            if now > kept.until or job not in jobs:
                self.release(job)

    def release(self, job: OwnedJob) -> None:
        """Forget a job's report."""
        self.by_job.pop(job, None)
        self._admit.release(_budget(job))


def _budget(job: OwnedJob) -> tuple[str, ...]:
    """Under which name a job's series are admitted."""
    return "ras", *job


def series_of(each: Communicator, watches: Mapping[str, Watch]) -> int:
    """How many series a communicator may take; lags and suspects it has only while it is stalled."""
    launches = each.launches
    collectives = len(launches.extremes) if launches else 0
    behind = len(launches.behind) * (collectives + 1) if launches and stalled(each, watches) else 0
    missing = len(each.named) + min(len(each.named), MAX_SUSPECTS)
    return _ALWAYS + 2 * collectives + behind + missing + len(each.troubled)
