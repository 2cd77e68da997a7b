"""Keep the liveness facts of this node's jobs for alert rules, updated once a second and when a rank exits."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from signal import SIGTERM

import msgspec

from agent.core.clock import Clock
from agent.core.identity import ProcessKey
from agent.ranks.liveness.causes import OOM, ExitFacts
from agent.ranks.liveness.job_liveness import (
    EXPLAINS_SECONDS,
    JobLiveness,
    LeadExit,
    Lifetime,
    RanBefore,
    class_of,
    liveness_of,
)
from agent.ranks.naming.job_owners import is_proven
from agent.ranks.naming.labels import LabelHolders
from agent.ranks.rank.exit_episodes import ended_by, killed_before_teardown, lead_exits
from agent.ranks.rank.exit_status import ENDED_BY_SCHEDULER, JobEnd, ending
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict_thresholds import DEFAULTS

CAUSE_SECONDS = 5.0
"""Longest wait after an exit for its status and cause."""
MAX_LEADS_PER_NODE = 64
"""Limit of lead exits on the node that are not retracted."""
MAX_ENDED_JOBS = 64
"""Limit per ``share`` of exported jobs without a running rank and without a valid lead exit on this node."""


class LivenessRegistry:
    """Keeps a JobLiveness per job. ``facts``: causes of exits, and planned exits, from exporters.

    Times are CLOCK_BOOTTIME seconds, as in the rank table; ``now_seconds`` is the same moment in epoch seconds. After a
    change of ``thresholds`` an exported lead exit can change its class once. ``loaded_at``: when the checkpoint was
    loaded. No pause includes time before: perhaps only the agent did not run.
    """

    def __init__(self, labels: LabelHolders) -> None:
        self.thresholds = DEFAULTS
        self.jobs: dict[str, JobLiveness] = {}
        self.facts = ExitFacts()
        self.loaded_at = 0.0
        self._labels = labels

    def update(self, job_id: str, processes: Sequence[RankProcess], now: float, now_seconds: float) -> None:
        """Update the JobLiveness of a job from the job's running and ended rank processes."""
        proven = [process for process in processes if is_proven(process)]
        share = next((process.share for process in proven or processes), "")
        job = self.jobs.setdefault(job_id, JobLiveness(share))
        if proven and not job.proven and job.share != share:  # until now another owner had the id
            for lead in job.leads:
                job.retract(lead, now)
            job = self.jobs[job_id] = JobLiveness(share, leads=job.leads)
        running = [
            (label.rank, process.started_at)
            for process in processes
            if process.exited_at is None and not process.kill_pending
            for label in process.labels
        ]
        job.note_ranks(processes, min((start for _, start in running), default=None), now)
        job.proven |= bool(proven)
        job.proves_first |= any(label.rank == "0" for p in proven for label in p.labels)
        progress = (p.progress_seconds for p in processes if p.exited_at is None and p.progress_seconds is not None)
        job.note_progress(max(progress, default=None), now, now_seconds, self.loaded_at)
        job.retract_returned(running, now)
        self._update_exits(job, processes, now)

    def snapshot(self) -> dict[str, JobLiveness]:
        """Return a shallow copy of each JobLiveness, by job id."""
        return {job_id: msgspec.structs.replace(job) for job_id, job in self.jobs.items()}

    def note_ran_before(self, jobs: Mapping[str, RanBefore], clock: Clock) -> None:
        """Add a JobLiveness for each job whose ranks ran at the end of the previous boot, unless the job has one."""
        for job_id, ran in jobs.items():
            self.jobs.setdefault(
                job_id, liveness_of(ran, clock.monotonic(), clock.time(), self.thresholds.short_seconds)
            )

    def running(self, processes: Iterable[RankProcess]) -> dict[str, RanBefore]:
        """Return the jobs with running processes, as the boot file saves them."""
        running: defaultdict[str, list[tuple[str, RankProcess]]] = defaultdict(list)
        for process in processes:
            for label in process.labels if process.exited_at is None else ():
                running[label.job_id].append((label.rank, process))
        jobs = {}
        for job_id, members in running.items():
            if (job := self.jobs.get(job_id)) is not None:
                ranks, started = sorted(rank for rank, _ in members), min(p.seen.start_seconds for _, p in members)
                jobs[job_id] = RanBefore(members[0][1].user, ranks, started, job.expected, job.proven, job.share)
        return jobs

    def note_end(self, end: JobEnd, job_id: str, now: float, now_seconds: float) -> None:
        """Note that the scheduler ended the job that is exported as ``job_id``, unless its ranks outlived this end."""
        job = self.jobs.get(job_id)
        if job is not None and end.state in ENDED_BY_SCHEDULER and job.end_state != end.state:
            ended_at = min(now, now - (now_seconds - end.ended_seconds))  # on the boot clock
            is_outlived = job.left_at is None and now - ended_at > EXPLAINS_SECONDS
            if ended_at >= job.started_at and not is_outlived:  # the scheduler repeats ends, also of earlier runs
                job.end_state, job.end_at = end.state, ended_at

    def expire(self, now: float, present: Container[str]) -> None:
        """Drop jobs that are over, unless ``present``, and each share's oldest ended jobs beyond MAX_ENDED_JOBS.

        ``present``: jobs with processes. A process with a pending SIGKILL can stay in state D long after its job's end.
        """
        for job in self.jobs.values():
            job.expire(now)
        self.jobs = {job_id: job for job_id, job in self.jobs.items() if job_id in present or not job.is_over(now)}
        ended: Counter[str] = Counter()
        over = [(job.over_at(), job_id) for job_id, job in self.jobs.items()]
        for _, job_id in sorted(((at, job_id) for at, job_id in over if at is not None), reverse=True):
            ended[self.jobs[job_id].share] += 1
            if ended[self.jobs[job_id].share] > MAX_ENDED_JOBS:
                del self.jobs[job_id]

    def _update_exits(self, job: JobLiveness, processes: Sequence[RankProcess], now: float) -> None:
        exits = sorted((p for p in processes if p.exited_at is not None), key=lambda p: (p.exited_at, p.key))
        if not exits:
            return
        torn = killed_before_teardown(exits, self.thresholds)
        soft = {exit_.key for exit_ in exits if self._is_finished(exit_) or ended_by(exit_, SIGTERM)}
        leads = lead_exits(exits, soft, self.thresholds)
        members = {process.key for process in processes}
        for process in exits:
            lead = next((lead for lead in reversed(job.leads) if lead.process == process.key), None)
            if lead is None and not process.is_victim:
                is_lead = process.key in leads and not self._follows_departed(process, job, members)
                self._consider(job, process, is_lead=is_lead, is_torn=process.key in torn, now=now)
            elif lead is not None and lead.retracted_at is not None:
                process.is_victim = True  # even after its lead exit is dropped
            elif lead is not None and not lead.revised:
                self._revise(job, lead, process, is_torn=process.key in torn, now=now)

    def _consider(self, job: JobLiveness, process: RankProcess, *, is_lead: bool, is_torn: bool, now: float) -> None:
        """Add a lead exit once its status and cause are known. The processes of all other exits become victims."""
        label, exited_at = self._labels.label_of(process), process.exited_at
        if label is None or exited_at is None:
            return
        is_late = now - exited_at >= CAUSE_SECONDS
        if not is_late and (process.exit is None or not process.exit.known):
            return
        if not is_lead:
            process.is_victim = True
            return
        exit_class = class_of(process.exit, finished=self._is_finished(process), torn=is_torn)
        cause = OOM if exit_class == "oom" else self.facts.cause_of(label)
        if not cause and not is_late:
            return
        is_short = exited_at - process.started_at < self.thresholds.short_seconds
        lived: Lifetime = "short" if is_short else "long"
        how = (*ending(process.exit), exit_class, lived, cause)
        lead = LeadExit(label.rank, exited_at, *how, process.user, process=process.key)
        if job.admit(lead, now):
            self._make_room(lead, job.share, now)
        else:
            process.is_victim = True

    def _revise(self, job: JobLiveness, lead: LeadExit, process: RankProcess, *, is_torn: bool, now: float) -> None:
        """If a late fact changed the class of a lead exit, retract that exit and add it again with the new class."""
        exit_class = class_of(process.exit, finished=self._is_finished(process), torn=is_torn)
        if exit_class == lead.exit_class:
            return
        job.retract(lead, now)
        reason, signal, code = ending(process.exit)
        revised = msgspec.structs.replace(
            lead, reason=reason, signal=signal, code=code, exit_class=exit_class, revised=True
        )
        job.leads = (*job.leads, revised)

    def _is_finished(self, process: RankProcess) -> bool:
        """Return True when it is proven that the process ended as planned, or finished."""
        label = self._labels.label_of(process)
        is_planned = label is not None and self.facts.is_planned(label)
        return is_planned or process.shown_state == "finished"

    def _follows_departed(self, process: RankProcess, job: JobLiveness, members: Container[ProcessKey]) -> bool:
        """Return True if a peer whose process is not in ``members`` had a lead exit shortly before ``process`` exited.

        ``members``: keys of the known processes. Shortly: at most ``episode_seconds``."""
        ranks = {label.rank for label in process.labels}
        return any(
            0 < (process.exited_at or 0.0) - lead.exited_at <= self.thresholds.episode_seconds
            for lead in job.leads
            if lead.process not in members and lead.rank not in ranks and process.started_at <= lead.exited_at
        )

    def _make_room(self, newest: LeadExit, share: str, now: float) -> None:
        """Above the limit, retract the largest share's oldest lead exit. Keep ``newest`` (it is in ``share``)."""
        others = [
            (job.share, lead, job)
            for job in self.jobs.values()
            for lead in job.leads
            if lead.retracted_at is None and lead is not newest
        ]
        if len(others) >= MAX_LEADS_PER_NODE:
            counts = Counter(other for other, _, _ in others)
            most = max(counts, key=lambda other: (counts[other], other == share))
            _, lead, job = min((entry for entry in others if entry[0] == most), key=lambda entry: entry[1].exited_at)
            job.retract(lead, now)
