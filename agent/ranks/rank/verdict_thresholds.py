"""Thresholds for the verdicts on exits and ranks: section `verdict` of the configuration.

Alert rules use the same values: `deploy/prometheus/build.py --agent` reads this section too.
"""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=1.0, le=86_400.0)]


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds in seconds.

    ``killed_behind_seconds``: a rank that SIGKILL ended is dead when a peer still lives this time after the exit.
    ``left_behind_seconds``: the same for a rank that ended without SIGKILL or failure. This time is longer than Slurm's
    KillWait (30 s by default), after which Slurm kills the slow ranks of a cancelled job. ``episode_seconds``: exits
    this close together are one event, and only the first exit can be the cause. ``teardown_seconds``: within this time
    after a death, the launcher ends the other ranks by SIGTERM, or they fail (torchrun: 0.1 to 5 s). The default is
    twice ``killed_behind_seconds``, so that the rules miss no death in between. A cancel begins with SIGTERM; SIGKILL
    follows after KillWait. ``end_seconds``: the longest time from the first SIGTERM of a cancel, a preemption or a time
    limit to the end of the job: the time to save a checkpoint, plus KillWait. ``after_end_seconds``: the longest time
    after the end of the job in which its ranks exit. ``short_seconds``: a rank with a shorter life died early, which
    suggests a bug. ``blocked_seconds``: a rank in state D without a context switch for this time is unresponsive. This
    time is longer than the slowest single write of a checkpoint.
    """

    killed_behind_seconds: Seconds = 15.0
    left_behind_seconds: Seconds = 45.0
    episode_seconds: Seconds = 60.0
    teardown_seconds: Seconds = 30.0
    end_seconds: Seconds = 300.0
    after_end_seconds: Seconds = 60.0
    short_seconds: Seconds = 600.0
    blocked_seconds: Seconds = 60.0


DEFAULTS = Thresholds()
