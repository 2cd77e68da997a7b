"""Jobs that begin anew, by their launcher or the scheduler."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV, SIGTERM

from play import Due, Play, Situation


def restart_in_place(play: Play) -> None:
    """A rank fails, torchrun ends the others and starts all anew within ten seconds."""
    play.ranks[1].exit(code=1)
    play.job.tear_down()
    play.run(8.0)
    for rank in play.ranks:
        rank.start()


def requeued_elsewhere(play: Play) -> None:
    """The job is requeued under its id within 20 s, on one of its nodes and a new one; the old run's epilog is late."""
    for rank in play.ranks:
        rank.exit(SIGTERM)
    play.run(15.0)
    for rank in play.ranks:
        rank.start(play.nodes[2] if rank.number < 4 else play.nodes[1])
    play.run(10.0)
    play.job.ended("PREEMPTED")


def fails_again_and_again(play: Play) -> None:
    """The job fails and is started anew by its launcher three times, and goes on."""
    for _ in range(3):
        restart_in_place(play)
        play.run(120.0)


def torchrun_starts_anew(play: Play) -> None:
    """A rank fails and torchrun, which has restarts left, starts all anew after 28 s."""
    play.begin_anew((0, 2))
    play.ranks[1].exit(code=1)
    play.job.tear_down()
    play.run(28.0)
    play.begin_anew((1, 2))


def torchrun_gives_up(play: Play) -> None:
    """A rank fails and torchrun says that it has restarts left, but ends."""
    play.begin_anew((0, 2))
    play.ranks[1].exit(code=1)
    play.job.tear_down()


def anew_and_slowly(play: Play) -> None:
    """A rank crashes; 80 s later the job begins anew on a node of its and another one, which takes minutes."""
    play.ranks[1].exit(SIGSEGV)
    play.job.tear_down()
    play.run(80.0)
    for rank in play.ranks:
        if rank.number == 4:
            play.run(200.0)
        rank.start(play.nodes[1] if rank.number < 4 else play.nodes[2])


def requeued_on_the_same_nodes(play: Play) -> None:
    """The job is preempted and requeued under its id on the same nodes within 20 s; the old run's epilog is late."""
    for rank in play.ranks:
        rank.exit(SIGTERM)
    play.run(18.0)
    for rank in play.ranks:
        rank.start()
    play.run(4.0)
    play.job.ended("PREEMPTED")


def requeued_after_a_crash(play: Play) -> None:
    """A rank crashes, srun ends the others, and the job is requeued on the same nodes after a minute."""
    play.ranks[1].exit(SIGSEGV)
    play.job.tear_down()
    play.run(60.0)
    for rank in play.ranks:
        rank.start()


def death_after_a_restart(play: Play) -> None:
    """A launcher starts all ranks anew; eleven minutes later a rank is killed."""
    restart_in_place(play)
    play.run(660.0)
    play.ranks[5].exit(SIGKILL)


def one_rank_begins_anew(play: Play) -> None:
    """A rank that left with status 1 is started anew in its place within five seconds, the others go on."""
    play.ranks[5].exit(code=1)
    play.run(4.0)
    play.ranks[5].start()


def restarts_without_its_last_node(play: Play) -> None:
    """A rank crashes; a minute later torchrun starts all anew on two of three nodes, as a job of eight."""
    play.ranks[9].exit(SIGSEGV)
    play.job.tear_down()
    play.run(60.0)
    play.job.world = 8
    for rank in play.ranks[:8]:
        rank.start()
    play.run(300.0)


def preempted_twice(play: Play) -> None:
    """Preempted with a status and requeued on its nodes, twice, 20 minutes apart; one node alone has the word."""
    for _ in range(2):
        for rank in play.ranks:
            rank.exit(code=1)
        play.run(2.0)
        play.job.ended("PREEMPTED", [play.nodes[1]])
        play.run(18.0)
        for rank in play.ranks:
            rank.start()
        play.run(1300.0)


def requeued(play: Play) -> None:
    """The job is preempted and starts anew on its nodes after 18 s."""
    for rank in play.ranks:
        rank.exit(SIGTERM)
    play.job.ended("PREEMPTED")
    play.run(18.0)
    for rank in play.ranks:
        rank.start()


def dead_for_long_after_a_requeue(play: Play) -> None:
    """The job is requeued on its nodes; 20 minutes later a rank crashes and the others wait for half an hour."""
    requeued(play)
    play.run(1300.0)
    play.ranks[5].exit(SIGSEGV)
    play.hang()
    play.run(2000.0)


def power_after_a_requeue(play: Play) -> None:
    """The job is requeued on its nodes; four minutes later one of them loses power."""
    requeued(play)
    play.run(240.0)
    play.nodes[1].lose_power()
    play.hang()
    play.run(300.0)


def killed_with_restarts_left(play: Play) -> None:
    """The only rank of a node is killed and its peers fail; torchrun, which has restarts left, starts all anew."""
    play.begin_anew((0, 2))
    play.ranks[1].exit(SIGKILL)
    play.run(5.0)
    for rank in play.job.running():
        rank.exit(code=1)
    play.run(20.0)
    play.begin_anew((1, 2))


SITUATIONS = (
    Situation(restart_in_place),
    Situation(requeued_elsewhere, nodes=3, per_node=4),
    Situation(fails_again_and_again),
    Situation(torchrun_starts_anew),
    Situation(torchrun_gives_up, {"RankDead 1 n0 fail info": Due(715, 745)}),
    Situation(anew_and_slowly, {"RankDead 1 n0 crash": Due(0, 22, 80)}, idle=1),
    Situation(requeued_on_the_same_nodes),
    Situation(requeued_after_a_crash, {"RankDead 1 n0 crash": Due(0, 22, 60)}),
    Situation(death_after_a_restart, {"RankDead 5 n1 killed": Due(680, 710)}),
    Situation(one_rank_begins_anew),
    Situation(preempted_twice, nodes=3),
    Situation(dead_for_long_after_a_requeue, {"RankDead 5 n1 crash": Due(1318, 1340)}),
    Situation(power_after_a_requeue, {"NodeLost n1": Due(278, 318)}),
    Situation(killed_with_restarts_left, nodes=3, per_node=1),
    Situation(restarts_without_its_last_node, {"RankDead 9 n2 crash": Due(0, 22, 60)}, nodes=3),
)
