"""Jobs under attack: another user's processes on another node claim to be ranks of the job."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV, SIGTERM

from play import Due, Situation
from steps import ALL, HANG, borrower_exits, borrows, exits, loses_power, wait

DEAD = "RankDead 5 n1"
SITUATIONS = (
    # The user's processes crash; the job goes on.
    Situation("borrower_crashes", [borrows(), wait(700.0), borrower_exits(0, SIGSEGV)], idle=1),
    # The user's processes claim a job of 4,096 ranks, and one of them is killed; the job goes on.
    Situation("borrower_raises_the_number", [borrows(world=4096), wait(700.0), borrower_exits(0, SIGKILL)], idle=1),
    # The user's processes run while a rank of the job is killed, so that eight ranks seem to run.
    Situation(
        "borrower_beside_a_kill",
        [borrows(ranks=1, world=8), wait(30.0), exits(5, SIGKILL), HANG],
        {f"{DEAD} killed": Due(45, 65)},
        idle=1,
    ),
    # A rank crashes; the user's processes start 40 s later, as if the job had restarted.
    Situation(
        "borrower_begins_after_a_death",
        [exits(5, SIGSEGV), wait(40.0), borrows(ranks=8)],
        {f"{DEAD} crash": Due(0, 22)},
        idle=1,
    ),
    # One of the user's processes ends by SIGTERM; a rank of the job is killed a minute later.
    Situation(
        "borrower_leaves_before_a_kill",
        [borrows(), wait(30.0), borrower_exits(1, SIGTERM), wait(60.0), exits(5, SIGKILL)],
        {f"{DEAD} killed": Due(105, 125)},
        idle=1,
    ),
    # The job ends; the user's processes start afterwards, and crash eleven minutes later.
    Situation(
        "borrower_after_the_end", [exits(ALL), wait(60.0), borrows(), wait(700.0), borrower_exits(0, SIGSEGV)], idle=1
    ),
    # The user runs as many processes as the node of rank 0 has ranks; that node loses power, and the job waits.
    Situation(
        "power_beside_a_borrower",
        [borrows(ranks=4, world=8), wait(30.0), loses_power(0), HANG, wait(600.0)],
        {"NodeLost n0": Due(50, 90)},
        idle=1,
    ),
    # A job without a scheduler has no proof; one of its ranks is killed.
    Situation("nothing_is_proven", [exits(5, SIGKILL)], {f"{DEAD} killed": Due(15, 35)}, proven=False),
)
