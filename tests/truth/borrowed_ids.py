"""Jobs beside a user who starts processes on another node that say that they are ranks of the job."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV, SIGTERM

from play import Due, Play, Situation


def borrower_crashes(play: Play) -> None:
    """The user's processes crash; the job goes on."""
    borrower = play.borrow(2)
    play.run(700.0)
    borrower.ranks[0].exit(SIGSEGV)


def borrower_raises_the_number(play: Play) -> None:
    """The user's processes say that the job has 4,096 ranks, and one of them is killed; the job goes on."""
    borrower = play.borrow(2, world=4096)
    play.run(700.0)
    borrower.ranks[0].exit(SIGKILL)


def borrower_beside_a_kill(play: Play) -> None:
    """The user's processes run while a rank of the job is killed, so that eight ranks seem to run."""
    play.borrow(2, ranks=1, world=8)
    play.run(30.0)
    play.ranks[5].exit(SIGKILL)
    play.hang()


def borrower_begins_after_a_death(play: Play) -> None:
    """A rank crashes; the user's processes begin 40 s later, as if the job had begun anew."""
    play.ranks[5].exit(SIGSEGV)
    play.run(40.0)
    play.borrow(2, ranks=8)


def borrower_leaves_before_a_kill(play: Play) -> None:
    """A process of the user's ends by SIGTERM; a rank of the job is killed a minute later."""
    borrower = play.borrow(2)
    play.run(30.0)
    borrower.ranks[1].exit(SIGTERM)
    play.run(60.0)
    play.ranks[5].exit(SIGKILL)


def borrower_after_the_end(play: Play) -> None:
    """The job ends; the user's processes begin after that, and crash eleven minutes later."""
    for rank in play.ranks:
        rank.exit()
    play.run(60.0)
    borrower = play.borrow(2)
    play.run(700.0)
    borrower.ranks[0].exit(SIGSEGV)


def power_beside_a_borrower(play: Play) -> None:
    """The node of rank 0 loses power while the user's processes run, as many as the node had; the job waits."""
    play.borrow(2, ranks=4, world=8)
    play.run(30.0)
    play.nodes[0].lose_power()
    play.hang()
    play.run(600.0)


def nothing_is_proven(play: Play) -> None:
    """The ranks of a job without a scheduler prove nothing; one is killed."""
    play.ranks[5].exit(SIGKILL)


DEAD = "RankDead 5 n1"
SITUATIONS = (
    Situation(borrower_crashes, idle=1),
    Situation(borrower_raises_the_number, idle=1),
    Situation(borrower_beside_a_kill, {f"{DEAD} killed": Due(45, 65)}, idle=1),
    Situation(borrower_begins_after_a_death, {f"{DEAD} crash": Due(0, 22)}, idle=1),
    Situation(borrower_leaves_before_a_kill, {f"{DEAD} killed": Due(105, 125)}, idle=1),
    Situation(borrower_after_the_end, idle=1),
    Situation(power_beside_a_borrower, {"NodeLost n0": Due(50, 90)}, idle=1),
    Situation(nothing_is_proven, {f"{DEAD} killed": Due(15, 35)}, proven=False),
)
