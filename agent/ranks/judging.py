"""Which jobs of the rank table are judged when. Rules are those of ``verdict`` and of the liveness book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.core.clock import Clock
from agent.core.identity import ProcessKey
from agent.ranks.liveness.book import LivenessBook
from agent.ranks.naming.labels import LabelBook
from agent.ranks.rank.job_end import JobEnd
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict import judge_job


class JobJudge:
    """Writes verdicts into the processes that hold a label, and each job's line of the liveness book.

    Cost: O(n log n) in the processes of the jobs judged.
    """

    def __init__(self, clock: Clock, labels: LabelBook) -> None:
        self._clock = clock
        self._labels = labels
        self._changed: set[str] = set()
        self.book = LivenessBook(labels)

    def note_change(self, process: RankProcess) -> None:
        """Have the process' job judged by the next ``judge_changed``. Nothing happens to one without a label."""
        if label := self._labels.held(process):
            self._changed.add(label.job_id)

    def note_ends(self, ends: Iterable[JobEnd], processes: Mapping[ProcessKey, RankProcess]) -> None:
        """Note how schedulers ended jobs: those that have records here, by the ids under which they are shown."""
        by_id = {end.job_id: end for end in ends}
        if not by_id:
            return
        for process in processes.values():
            end = by_id.get(process.scheduled_job_id)
            if end is not None and process.note_job_end(end, self.book.numbers):
                self.note_change(process)
            if end is not None and process.shown_job_id:
                self.book.note_end(end, process.shown_job_id, self._clock.monotonic(), self._clock.time())

    def judge_changed(self, processes: Mapping[ProcessKey, RankProcess]) -> None:
        """Judge the jobs that changed since they were last judged."""
        if self._changed:
            jobs = self._jobs(processes)
            self._judge({job_id: jobs[job_id] for job_id in self._changed if job_id in jobs})

    def judge_all(self, processes: Mapping[ProcessKey, RankProcess]) -> None:
        """Judge every job."""
        jobs = self._jobs(processes)
        gone: dict[str, dict[ProcessKey, RankProcess]] = {job_id: {} for job_id in self.book.jobs if job_id not in jobs}
        self._judge(jobs | gone)
        self.book.expire(self._clock.monotonic())

    def _jobs(self, processes: Mapping[ProcessKey, RankProcess]) -> dict[str, dict[ProcessKey, RankProcess]]:
        jobs: dict[str, dict[ProcessKey, RankProcess]] = {}
        for key, process in processes.items():
            if label := self._labels.held(process):
                jobs.setdefault(label.job_id, {})[key] = process
        return jobs

    def _judge(self, jobs: Mapping[str, Mapping[ProcessKey, RankProcess]]) -> None:
        self._changed.clear()
        now, now_seconds = self._clock.monotonic(), self._clock.time()
        for job_id, members in jobs.items():
            evidence = [process.evidence(key) for key, process in members.items()]
            for key, verdict in judge_job(evidence, now, self.book.numbers).items():
                members[key].verdict = verdict
            self.book.look(job_id, members, now, now_seconds)
