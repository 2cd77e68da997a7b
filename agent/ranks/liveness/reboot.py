"""Ranks that ran when this machine went down: exits of the class `reboot`. Pure."""

from __future__ import annotations

import msgspec

from agent.ranks.liveness.job_line import SHORT_SECONDS, JobLine, LeadExit, Lifetime


class RanBefore(msgspec.Struct, frozen=True):
    """A job with ranks that ran on this node; ``started_seconds``: when the oldest started, since the epoch."""

    user: str
    ranks: list[str]
    started_seconds: float
    expected: int = 0


def line_of(ran: RanBefore, now: float, now_seconds: float) -> JobLine:
    """Return the line of a job whose ranks ended with the boot before, with its lowest rank as lead exit.

    The exit's time is that of this boot, later than the true one: it must not come before those of its peers.
    """
    booted_seconds = now_seconds - now
    lived: Lifetime = "short" if booted_seconds - ran.started_seconds < SHORT_SECONDS else "long"
    first = min(ran.ranks, key=lambda rank: (len(rank), rank))
    lead = LeadExit(first, 0.0, "unknown", "", "", "reboot", lived, "", ran.user)
    return JobLine(
        share=ran.user,
        started_at=ran.started_seconds - booted_seconds,
        left_at=0.0,
        ranks=len(ran.ranks),
        expected=ran.expected,
        leads=(lead,),
    )
