"""Which jobs of the rank table are judged when. Rules are those of ``verdict``."""

from __future__ import annotations

from collections.abc import Mapping

from agent.core.identity import ProcessKey
from agent.ranks.naming.labels import LabelBook
from agent.ranks.rank.process import RankProcess
from agent.ranks.rank.verdict import judge_job


class JobJudge:
    """Writes verdicts into the processes that hold a label. Cost: O(n log n) in the processes of the jobs judged."""

    def __init__(self, labels: LabelBook) -> None:
        self._labels = labels
        self._changed: set[str] = set()

    def note_change(self, process: RankProcess) -> None:
        """Have the process' job judged by the next ``judge_changed``. Nothing happens to one without a label."""
        if label := self._labels.held(process):
            self._changed.add(label.job_id)

    def judge_changed(self, processes: Mapping[ProcessKey, RankProcess], now: float) -> None:
        """Judge the jobs that changed since they were last judged, at monotonic time ``now``."""
        if self._changed:
            self._judge(
                {job_id: found for job_id, found in self._jobs(processes).items() if job_id in self._changed}, now
            )

    def judge_all(self, processes: Mapping[ProcessKey, RankProcess], now: float) -> None:
        """Judge every job at monotonic time ``now``."""
        self._judge(self._jobs(processes), now)

    def _jobs(self, processes: Mapping[ProcessKey, RankProcess]) -> dict[str, dict[ProcessKey, RankProcess]]:
        jobs: dict[str, dict[ProcessKey, RankProcess]] = {}
        for key, process in processes.items():
            if label := self._labels.held(process):
                jobs.setdefault(label.job_id, {})[key] = process
        return jobs

    def _judge(self, jobs: Mapping[str, Mapping[ProcessKey, RankProcess]], now: float) -> None:
        self._changed.clear()
        for members in jobs.values():
            for key, verdict in judge_job([process.evidence(key) for key, process in members.items()], now).items():
                members[key].verdict = verdict
