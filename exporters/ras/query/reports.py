"""The last report of each queried job, the watches of its communicators, and the watches in the checkpoint."""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import msgspec

from agent.sdk.files import in_turns
from agent.sdk.metrics import Admission
from agent.sdk.ranks import PublishedProcess
from exporters.ras.query.jobs import OwnedJob, Processes, job_of, size_of
from exporters.ras.report.hangs import (
    MAX_SAVED_BYTES,
    MAX_SUSPECTS,
    JobReport,
    Watch,
    aborted,
    stalled,
    suspects,
    watch,
)
from exporters.ras.report.model import MARK_BYTES, Communicator, Report

MAX_TEXT = 1024


class SavedWatch(Watch, frozen=True, kw_only=True):
    """A Watch and the hash of its communicator."""

    hash: Annotated[str, msgspec.Meta(max_length=32)]


class SavedJob(msgspec.Struct, frozen=True):
    """The watches of one job."""

    job_id: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    owner: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    watches: list[SavedWatch]


def to_save(watches: Mapping[OwnedJob, Mapping[str, Watch]]) -> list[SavedJob]:
    """Return the jobs' watches up to MAX_SAVED_BYTES, one of each job in turn.

    The newest reports come first, and at equal times the communicators that stand still the longest.
    """
    ordered = [(job, name, known) for job, of_job in watches.items() for name, known in of_job.items()]
    ordered.sort(key=lambda saved: (-saved[2].report_seconds, saved[2].since_seconds))
    saved: dict[OwnedJob, list[SavedWatch]] = {}
    room = MAX_SAVED_BYTES
    for job, name, known in in_turns(ordered, lambda saved: saved[0]):
        if known.size_bytes <= room:
            room -= known.size_bytes
            fields = (getattr(known, field) for field in Watch.__struct_fields__)
            saved.setdefault(job, []).append(SavedWatch(*fields, hash=name))
    return [SavedJob(*job, of_job) for job, of_job in saved.items()]


def restored(saved: Iterable[SavedJob]) -> dict[OwnedJob, dict[str, Watch]]:
    """Return the saved watches, except damaged watches, which have marks of an impossible length."""
    return {
        OwnedJob(job.job_id, job.owner): {
            watch.hash: watch for watch in job.watches if len(watch.marks) % MARK_BYTES == 0
        }
        for job in saved
    }


_ALWAYS = 10  # Series of every communicator: its states, last launch, stalled


class Reports:
    """The last report of each job. The agent's budget of series admits a report or refuses it.

    Keeps watches as long as the job has local processes: a hang may outlast failed queries. ``saved``: saved watches.
    ``until``: monotonic time until which a job's last report holds, even if the budget refused it.
    """

    def __init__(self, admit: Admission, saved: Collection[SavedJob] = ()) -> None:
        self._admit = admit
        self.watches = restored(saved)
        self.by_job: dict[OwnedJob, JobReport] = {}
        self.until: dict[OwnedJob, float] = {}

    def keep(self, owner: PublishedProcess, report: Report, until: float, queried_seconds: float) -> bool:
        """Replace the last report of ``owner``'s job; if the series budget refuses the report, the result is False."""
        job = job_of(owner)
        before = self.by_job.get(job)
        watches = watch(self.watches.get(job, {}), report.communicators, queried_seconds)
        self.watches[job] = watches
        self.release(job)
        self.until[job] = until
        aborts = aborted(before.aborted if before else {}, report, queried_seconds)
        series = len(aborts) + sum(series_of(communicator, watches) for communicator in report.communicators)
        group = (owner.facts.uid, job.job_id)
        if not self._admit.admit(("ras", *job), series, max(report.ranks(), 1), group):
            return False
        blamed = suspects(report.communicators, watches)
        self.by_job[job] = JobReport(owner.key, report, size_of(owner), watches, queried_seconds, aborts, blamed)
        return True

    def names(self, job: OwnedJob) -> dict[str, str]:
        """Return the secondary checksum of each watched communicator of a job, by the communicator's name."""
        return {name: known.secondary for name, known in self.watches.get(job, {}).items()}

    def named(self, processes: Processes) -> dict[str, JobReport]:
        """Return the reports of named jobs by job id. In a single pass, a job's name can come after its report."""
        reports: dict[str, JobReport] = {}
        for job, last in self.by_job.items():
            name = job.job_id or (job_of(processes[last.owner]).job_id if last.owner in processes else "")
            if name:
                reports.setdefault(name, last)
        return reports

    def postpone(self, job: OwnedJob, until: float) -> None:
        """Keep a job's report until monotonic time ``until``, or longer if it is already kept longer."""
        if job in self.until:
            self.until[job] = max(self.until[job], until)

    def forget(self, jobs: Collection[OwnedJob]) -> None:
        """Forget the reports and watches of jobs other than ``jobs``."""
        for job in self.until.keys() - jobs:
            self.release(job)
        self.watches = {job: watches for job, watches in self.watches.items() if job in jobs}

    def expire(self, now: float) -> None:
        """Forget the reports that are too old at monotonic time ``now``."""
        for job in [job for job, until in self.until.items() if now > until]:
            self.release(job)

    def release(self, job: OwnedJob) -> None:
        """Forget a job's report and release its series."""
        self.by_job.pop(job, None)
        self.until.pop(job, None)
        self._admit.release(("ras", *job))


def series_of(communicator: Communicator, watches: Mapping[str, Watch]) -> int:
    """Return how many series a communicator can take; only a stalled communicator has lags and suspects."""
    launches = communicator.launches
    collectives = len(launches.extremes) if launches else 0
    behind = len(launches.behind) * (collectives + 1) if launches and stalled(communicator, watches) else 0
    missing = len(communicator.named) + min(len(communicator.named), MAX_SUSPECTS)
    return _ALWAYS + collectives + behind + missing + len(communicator.troubled)
