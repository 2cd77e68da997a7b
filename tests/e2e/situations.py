"""Situations of jobs that count as large and old, and the expected alerts, with all other thresholds as shipped.

Nodes 0 to 3 have jobs of many situations; each other node has one situation."""

from __future__ import annotations

import signal

from clusters import Peculiarity
from stages import Cast, Situation
from stories import (
    cancel,
    cancel_and_abort,
    crash_again_and_again,
    crash_and_abort,
    crash_on_a_fast_clock,
    crash_twice,
    die_again,
    die_and_lose_the_agent,
    die_one_by_one,
    die_unseen,
    kill_all,
    leave,
    lose_power,
    preempt,
    send,
    unplug,
)

NODES = 11
LOST, UNPLUGGED, FAST, FIRST_CLUSTER, SECOND_CLUSTER, BLINKING, RESTARTED = range(4, NODES)
RACK = "rack-7"
PECULIAR = {
    LOST: Peculiarity({"domain": RACK}),
    FAST: Peculiarity(fast_seconds=5.0),
    FIRST_CLUSTER: Peculiarity({"cluster": "c1"}),
    SECOND_CLUSTER: Peculiarity({"cluster": "c2"}),
}
CALM = ("--records-per-second", "5")
PAGE, INFO = "page", "info"
RANK_DEAD = (PAGE, "RankDead")
FIRST, SECOND = (0, 1), (2, 3)
AWAY = {"alertmanager": 130.0, "prometheus": 90.0, "network": 150.0}
"""Situations in which a rank dies while this component is down, each with the seconds within which its notification
must arrive. They have no story: a disturbance of the stage kills the rank."""

SITUATIONS: dict[str, Situation] = {
    "calm": Situation("A job goes on through all that happens to the others", Cast(SECOND, options=CALM)),
    "fallen": Situation(
        "SIGSEGV for one rank; the others wait",
        Cast(FIRST),
        send(1, signal.SIGSEGV),
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.10 crashed; 3 ranks still run",),
    ),
    "torn": Situation(
        "SIGKILL for one rank; the launchers end the others by SIGTERM (torchrun)",
        Cast(FIRST, options=(*CALM, "--teardown", "torchrun", "--grace", "2")),
        send(1, signal.SIGKILL),
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.10 was killed, and others ended after it",),
    ),
    "step": Situation(
        "SIGABRT of one rank; the step is ended (srun -K)",
        Cast(SECOND, options=(*CALM, "--teardown", "srun", "--grace", "2")),
        send(2, signal.SIGABRT),
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.13 failed",),
    ),
    "aborted": Situation(
        "SIGSEGV for one rank; the others abort a second later",
        Cast(SECOND),
        crash_and_abort,
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.12 crashed",),
    ),
    "status": Situation(
        "A rank leaves with status 3; the others wait (srun)",
        Cast(FIRST),
        leave(1, 3),
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.10 failed; 3 ranks still run", "an error of the program"),
    ),
    "early": Situation(
        "A rank leaves with status 0; the others stay",
        Cast(SECOND),
        leave(1, 0),
        ((INFO, "RankDead"),),
        ("rank 1 on 10.0.0.12 exited before the others",),
        within_seconds=160.0,
        soon=False,
    ),
    "singled": Situation(
        "SIGTERM for one rank alone; the others wait",
        Cast(FIRST),
        send(1, signal.SIGTERM),
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.10 exited before the others",),
        within_seconds=90.0,
    ),
    "wiped": Situation("SIGKILL for all ranks at once", Cast(SECOND), kill_all),
    "revoked": Situation("Cancelled; the ranks of the other node abort (SIGABRT)", Cast(FIRST), cancel_and_abort),
    "overdue": Situation(
        "Cancelled; SIGKILL after 30 s for the half that did not heed SIGTERM",
        Cast(SECOND, options=(*CALM, "--slow-sigterm-ranks", "0,2", "--slow-sigterm-seconds", "60", "--grace", "30")),
        cancel,
    ),
    "preempted": Situation(
        "Preempted; half of the ranks save for 30 s; the job runs again under its id",
        Cast(FIRST, options=(*CALM, "--slow-sigterm-ranks", "0,2", "--slow-sigterm-seconds", "30", "--grace", "80")),
        preempt,
    ),
    "stopped": Situation(
        "SIGSTOP for one rank of a job with records",
        Cast(SECOND, options=(*CALM, "--grace", "1")),
        send(2, signal.SIGSTOP),
        ((PAGE, "RankUnresponsive"),),
        ("rank 2 on 10.0.0.13 does not respond", "SIGSTOP"),
        within_seconds=130.0,
    ),
    "both": Situation(
        "SIGSEGV for two ranks on two nodes within a second; the others wait",
        Cast(FIRST),
        crash_twice,
        (RANK_DEAD,),
        ("crashed; 2 ranks still run",),
        more=1,
    ),
    "next": Situation(
        "SIGKILL for one rank, and for another one after the page",
        Cast(SECOND),
        die_one_by_one,
        (RANK_DEAD,),
        ("rank 1 on 10.0.0.12 was killed (SIGKILL); 3 ranks still run",),
    ),
    "again": Situation(
        "SIGKILL for one rank; the job is started anew under its id, and the rank is killed again",
        Cast(FIRST),
        die_again,
        (RANK_DEAD, RANK_DEAD),
        ("rank 1 on 10.0.0.10 was killed",),
        overs=1,
    ),
    "looping": Situation(
        "The job crashes four times and is started anew each time",
        Cast(SECOND),
        crash_again_and_again,
        ((PAGE, "JobRestarting"),),
        ("crashes again and again",),
        within_seconds=180.0,
        soon=False,
    ),
    "gone": Situation(
        "A node without power that held a whole job; no rank waits for it",
        Cast((LOST,)),
        lose_power,
        ((PAGE, "NodeLost"),),
        ("Node 10.0.0.14 (rack-7) is lost, with ranks of job gone",),
        within_seconds=300.0,
        about=RACK,
        soon=False,
    ),
    "unplugged": Situation("A node is off the network for 60 s; no records", Cast((2, UNPLUGGED)), unplug),
    "fast": Situation(
        "SIGSEGV on a node whose clock is 5 s fast; the others are ended a second later",
        Cast((2, FAST)),
        crash_on_a_fast_clock,
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.16 crashed",),
    ),
    **{
        f"twin-{cluster}": Situation(
            f"SIGSEGV for one rank; another cluster has a job of the same id ({cluster})",
            Cast((node,), job_id="twin"),
            send(1, signal.SIGSEGV),
            (RANK_DEAD,),
            (f"rank 1 on 10.0.0.{node + 10} crashed; 3 ranks still run",),
            about=f"{cluster}/twin",
        )
        for cluster, node in (("c1", FIRST_CLUSTER), ("c2", SECOND_CLUSTER))
    },
    "blinking": Situation(
        "SIGKILL for one rank; its node misses a scrape then, and one after the page",
        Cast((2, BLINKING)),
        die_unseen,
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.19 was killed (SIGKILL); 3 ranks still run",),
    ),
    "relieved": Situation(
        "SIGKILL for one rank; after the page its node's agent dies and comes back",
        Cast((2, RESTARTED)),
        die_and_lose_the_agent,
        (RANK_DEAD,),
        ("rank 2 on 10.0.0.20 was killed (SIGKILL); 3 ranks still run",),
    ),
    **{
        f"no-{what}": Situation(
            f"A rank dies while there is no {what}",
            Cast(SECOND),
            None,
            (RANK_DEAD,),
            ("3 ranks still run",),
            within_seconds=seconds,
            soon=False,
        )
        for what, seconds in AWAY.items()
    },
}
