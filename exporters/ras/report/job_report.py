"""The last report of one job, with what the reports before it add."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from agent.sdk.ranks import ProcessKey
from exporters.ras.report.hangs import Watch
from exporters.ras.report.model import Report

ABORT_SHOWN_SECONDS = 60.0
"""How long an abort is shown: the flag stands for a second or two, a scrape comes every fifteen."""
MAX_ABORTED = 1024
"""Of one job; the first that were seen are shown."""


class AbortedRank(NamedTuple):
    """A rank that aborted a communicator (its hash)."""

    hash: str
    comm_rank: int


class Abort(NamedTuple):
    """When (epoch seconds) a report last showed it; ``rank``: its rank in the largest communicator then, if known."""

    seconds: float
    rank: int | None


def aborted(before: Mapping[AbortedRank, Abort], report: Report, now_seconds: float) -> dict[AbortedRank, Abort]:
    """Return the ranks that aborted a communicator by this report, or by one not long before."""
    found = {who: known for who, known in before.items() if 0.0 <= now_seconds - known.seconds < ABORT_SHOWN_SECONDS}
    for each in report.communicators:
        for one in each.troubled:
            if one.trouble == "aborted":
                found[AbortedRank(each.hash, one.comm_rank)] = Abort(now_seconds, one.rank)
    return dict(itertools.islice(found.items(), MAX_ABORTED))


class JobReport(msgspec.Struct, frozen=True):
    """``owner`` is a process of the job, ``until`` (monotonic) the time to which the report is shown.

    ``world_size``: how many ranks the job has, None where that is not known; ``watches``: by communicator hash;
    ``asked_seconds``: time of its query (epoch); ``count``: how many of its reports were kept one after the other.
    ``aborted``: the ranks that recently aborted a communicator.
    """

    owner: ProcessKey
    report: Report
    until: float
    world_size: int | None
    watches: dict[str, Watch]
    asked_seconds: float = 0.0
    count: int = 1
    aborted: dict[AbortedRank, Abort] = {}

    def rank_label(self, rank: int | None) -> str:
        """The global rank, for one of the report's largest communicator; empty where that is but a part of the job."""
        whole = self.world_size in (None, self.report.ranks())
        return str(rank) if rank is not None and whole else ""
