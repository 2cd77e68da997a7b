"""The last report of each job that is queried, what is watched of its communicators, and what of it is saved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds
from agent.sdk.metrics import Admission
from agent.sdk.ranks import ProcessKey
from exporters.ras.asking.jobs import LocalProcess, OwnedJob
from exporters.ras.report.hangs import MAX_SUSPECTS, JobReport, Watch, aborted, stalled, watch
from exporters.ras.report.model import MARK_BYTES, MAX_NAMED, Communicator, Marks, Report

MAX_SAVED_BYTES = 1024 * 1024  # Of all jobs' watches, in turns: none keeps out another's
MAX_TEXT = 1024


class SavedWatch(msgspec.Struct, frozen=True):
    """A Watch, and its communicator's hash."""

    hash: Annotated[str, msgspec.Meta(max_length=32)]
    marks: Annotated[bytes, msgspec.Meta(max_length=MAX_SAVED_BYTES)]
    since_seconds: SavedSeconds
    reports: SavedCount
    seen_seconds: SavedSeconds
    unheard: Annotated[dict[int, SavedSeconds], msgspec.Meta(max_length=MAX_NAMED)] = {}
    launched_after_seconds: SavedSeconds = 0.0


class SavedJob(msgspec.Struct, frozen=True):
    """The watches of one job."""

    job_id: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    owner: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
    watches: list[SavedWatch]


def to_save(watches: Mapping[OwnedJob, Mapping[str, Watch]]) -> list[SavedJob]:
    """Return the jobs' watches, as many as there is room for."""
    found: dict[OwnedJob, list[SavedWatch]] = {}
    room = MAX_SAVED_BYTES
    for job, name, each in _in_turns(watches):
        if each.size_bytes > room:
            continue
        room -= each.size_bytes
        saved = SavedWatch(
            name,
            each.marks,
            each.since_seconds,
            each.reports,
            each.seen_seconds,
            each.unheard,
            each.launched_after_seconds,
        )
        found.setdefault(job, []).append(saved)
    return [SavedJob(job.job_id, job.owner, saved) for job, saved in found.items()]


def _in_turns(watches: Mapping[OwnedJob, Mapping[str, Watch]]) -> Iterator[tuple[OwnedJob, str, Watch]]:
    """One of each job, then the next of each: those seen last first, of these what stands still the longest."""
    turns = [
        (turn, job, name)
        for job, known in watches.items()
        for turn, name in enumerate(
            sorted(known, key=lambda name: (-known[name].seen_seconds, known[name].since_seconds))
        )
    ]
    return ((job, name, watches[job][name]) for _, job, name in sorted(turns))


def restored(saved: Iterable[SavedJob]) -> dict[OwnedJob, dict[str, Watch]]:
    """Return the watches that were saved; marks of another length than any have are damage, and left out."""
    return {
        OwnedJob(job.job_id, job.owner): {
            each.hash: Watch(
                Marks(each.marks),
                each.since_seconds,
                each.reports,
                each.seen_seconds,
                each.unheard,
                each.launched_after_seconds,
            )
            for each in job.watches
            if len(each.marks) % MARK_BYTES == 0
        }
        for job in saved
    }


_ALWAYS = 10  # Series of every communicator: its states, last launch, stalled


class Reports:
    """By job. Their series are admitted by the agent's budget, or the report is refused.

    Watches live as long as the job has processes here: a hang goes on, whether or not its reports do. ``saved``: those
    of an agent before.
    """

    def __init__(self, admit: Admission, saved: Collection[SavedJob] = ()) -> None:
        self._admit = admit
        self._watches = restored(saved)
        self._told: set[tuple[OwnedJob, bool]] = set()
        self.by_job: dict[OwnedJob, JobReport] = {}

    def keep(self, owner: LocalProcess, report: Report, until: float, asked_seconds: float) -> bool:
        """Replace the last report of ``owner``'s job; False when the budget of series has no room for it."""
        before = self.by_job.get(owner.job)
        watches = watch(self._watches.get(owner.job, {}), report.communicators, asked_seconds)
        self._watches[owner.job] = watches
        self.release(owner.job)
        aborts = aborted(before.aborted if before else {}, report, asked_seconds)
        series = len(aborts) + sum(series_of(each, watches) for each in report.communicators)
        if not self._admit.admit(_budget(owner.job), series, max(report.ranks(), 1)):
            return False
        count = before.count + 1 if before else 1
        self.by_job[owner.job] = JobReport(
            owner.key, report, until, owner.world_size, watches, asked_seconds, count, aborts
        )
        return True

    def is_news(self, job: OwnedJob, kept: bool) -> bool:
        """Return True when it was not said of the job before that its reports are kept, or that they find no room."""
        if (job, kept) in self._told:
            return False
        self._told.add((job, kept))
        return True

    def named(self, processes: Mapping[ProcessKey, LocalProcess]) -> dict[str, JobReport]:
        """Return the reports of jobs with a name; in a single pass a job is named after its report came."""
        found: dict[str, JobReport] = {}
        for job, kept in self.by_job.items():
            name = job.job_id or (processes[kept.owner].job_id if kept.owner in processes else "")
            if name:
                found.setdefault(name, kept)
        return found

    def postpone(self, job: OwnedJob, until: float) -> None:
        """Show a job's report up to monotonic time ``until``, if there is one that would go before."""
        if (kept := self.by_job.get(job)) is not None and kept.until < until:
            self.by_job[job] = msgspec.structs.replace(kept, until=until)

    def forget(self, jobs: Collection[OwnedJob]) -> None:
        """Forget all of jobs other than ``jobs``."""
        for job in self.by_job.keys() - jobs:
            self.release(job)
        self._watches = {job: watches for job, watches in self._watches.items() if job in jobs}
        self._told = {(job, kept) for job, kept in self._told if job in jobs}

    def expire(self, now: float) -> None:
        """Forget the reports that are too old at monotonic time ``now``."""
        for job in [job for job, kept in self.by_job.items() if now > kept.until]:
            self.release(job)

    def to_save(self) -> list[SavedJob]:
        """What an agent after this one is to know."""
        return to_save(self._watches)

    def release(self, job: OwnedJob) -> None:
        """Forget a job's report."""
        self.by_job.pop(job, None)
        self._admit.release(_budget(job))


def _budget(job: OwnedJob) -> tuple[str, ...]:
    """Under which name a job's series are admitted."""
    return "ras", *job


def series_of(each: Communicator, watches: Mapping[str, Watch]) -> int:
    """Return how many series a communicator may take; lags and suspects it has only while it is stalled."""
    launches = each.launches
    collectives = len(launches.extremes) if launches else 0
    behind = len(launches.behind) * (collectives + 1) if launches and stalled(each, watches) else 0
    missing = len(each.named) + min(len(each.named), MAX_SUSPECTS)
    return _ALWAYS + 2 * collectives + behind + missing + len(each.troubled)
