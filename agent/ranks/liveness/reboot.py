"""Ranks that ran when this machine went down: exits of the class `reboot`. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.core.checkpoint import MAX_SECONDS
from agent.ranks.liveness.job_line import JobLine, LeadExit, Lifetime


class RanBefore(msgspec.Struct, frozen=True):
    """A job with ranks that ran on this node; ``started_seconds``: start of the oldest, since the epoch.

    ``proven``: the scheduler proved the job of one of them.
    """

    user: str
    ranks: list[str]
    started_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_SECONDS)]
    expected: int = 0
    proven: bool = True


def line_of(ran: RanBefore, now: float, now_seconds: float, short_seconds: float) -> JobLine:
    """Return the line of a job whose ranks ended with the boot before; its lowest rank is the lead exit.

    The exit's time is this boot, later than the true one, so that it does not precede the exits of peers elsewhere.
    """
    booted_seconds = now_seconds - now
    lived: Lifetime = "short" if booted_seconds - ran.started_seconds < short_seconds else "long"
    first = min(ran.ranks, key=lambda rank: (len(rank), rank))
    lead = LeadExit(first, 0.0, "unknown", "", "", "reboot", lived, "", ran.user)
    return JobLine(
        share=ran.user,
        started_at=min(ran.started_seconds - booted_seconds, 0.0),
        left_at=0.0,
        ranks=len(ran.ranks),
        expected=ran.expected,
        proven=ran.proven,
        leads=(lead,),
    )
