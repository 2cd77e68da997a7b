"""The numbers by which exits and ranks are judged: the section `verdict` of the configuration.

Rules judge by the same numbers: deploy/prometheus/build.py --agent reads this section, too.
"""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=1.0, le=86_400.0)]


class Numbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds.

    ``killed_behind_seconds``: a rank that SIGKILL ended is dead when a peer still lives after this time.
    ``left_behind_seconds``: a rank that left in any other way that is no failure is dead when a peer still lives
    after this time; longer than Slurm's KillWait (30 s by default), after which the slow ranks of a cancelled job are
    killed.
    ``episode_seconds``: exits this close together are one event, and only its first can be its cause.
    ``teardown_seconds``: after a death a launcher ends the other ranks by SIGTERM within this time (torchrun: 0.1 to
    5 s). A cancel is the other way round: SIGTERM, and after KillWait SIGKILL.
    ``end_seconds``: the longest time from the first SIGTERM of a cancel, a preemption or a time limit to the end of the
    job: time to save, and KillWait.
    ``after_end_seconds``: the longest time after the end of the job in which its ranks leave.
    ``short_seconds``: a rank that lived no longer died early, as bugs strike.
    ``blocked_seconds``: a rank in state D without a context switch for this long does not respond; longer than the
    slowest single write of a checkpoint.
    """

    killed_behind_seconds: Seconds = 15.0
    left_behind_seconds: Seconds = 45.0
    episode_seconds: Seconds = 60.0
    teardown_seconds: Seconds = 10.0
    end_seconds: Seconds = 300.0
    after_end_seconds: Seconds = 60.0
    short_seconds: Seconds = 600.0
    blocked_seconds: Seconds = 60.0


NUMBERS = Numbers()
