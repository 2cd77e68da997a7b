"""The last report of one job, with what the reports before it add."""

from __future__ import annotations

import msgspec

from agent.api import ProcessKey
from exporters.ras.report.hangs import Watch
from exporters.ras.report.model import Report


class JobReport(msgspec.Struct, frozen=True):
    """``owner`` is a process of the job, ``until`` (monotonic) the time to which the report is shown.

    ``world_size``: how many ranks the job has, None where that is not known; ``watches``: by communicator hash;
    ``asked_seconds``: when (epoch) it was asked for; ``count``: how many of its reports were kept one after the other.
    """

    owner: ProcessKey
    report: Report
    until: float
    world_size: int | None
    watches: dict[str, Watch]
    asked_seconds: float = 0.0
    count: int = 1

    def rank_label(self, rank: int | None) -> str:
        """The global rank, for one of the report's largest communicator; empty where that is but a part of the job."""
        whole = self.world_size in (None, self.report.ranks())
        return str(rank) if rank is not None and whole else ""
