"""Jobs that end, as their users or the scheduler want it: no alert."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL, SIGTERM

from play import Play, Situation

from agent.core.identity import RankLabel


def finish(play: Play) -> None:
    """All ranks leave with status 0, over some seconds."""
    for rank in play.ranks:
        rank.exit()
        play.run(0.7)


def slow_finish(play: Play) -> None:
    """All ranks leave with status 0, over 40 s."""
    for rank in play.ranks:
        rank.exit()
        play.run(5.0)


def cancel(play: Play) -> None:
    """SIGTERM to all; two stay and are killed after 30 s."""
    play.job.tear_down(stay={2, 6})


def cancel_long_kill_wait(play: Play) -> None:
    """SIGTERM to all; two stay and are killed after 200 s, with the scheduler's word."""
    play.job.tear_down(stay={2, 6}, kill_wait=200.0)
    play.job.ended("CANCELLED")


def cancel_save_and_leave(play: Play) -> None:
    """After SIGTERM ranks save, and leave with status 1 one after the other; the scheduler's word comes later."""
    for rank in play.ranks:
        play.run(2.0)
        rank.exit(SIGTERM if rank.number % 2 else 0, code=0)
    play.run(5.0)
    play.job.ended("PREEMPTED")


def cancel_by_kill(play: Play) -> None:
    """SIGKILL to all ranks at once."""
    for rank in play.ranks:
        rank.exit(SIGKILL)


def all_nodes_drained(play: Play) -> None:
    """The job ends, and its nodes are switched off a minute later."""
    finish(play)
    play.run(60.0)
    for node in play.nodes:
        node.lose_power()


def ends_of_many(play: Play) -> None:
    """256 ranks leave with status 0 over two minutes."""
    for rank in play.ranks:
        rank.exit()
        play.run(120.0 / len(play.ranks))


def one_finishes_early(play: Play) -> None:
    """One rank leaves with status 0, all others do half a minute later."""
    play.ranks[5].exit()
    play.run(30.0)
    for rank in play.job.running():
        rank.exit()


def kill_wait_by_node(play: Play) -> None:
    """SIGTERM to all; one rank of each node stays. After KillWait of 90 s one is killed, the other 25 s later."""
    play.job.tear_down(stay={1, 6}, kill_wait=90.0, kill=[1])
    play.run(25.0)
    play.ranks[6].exit(SIGKILL)


def preempted_with_a_status(play: Play) -> None:
    """Preempted ranks of three nodes save and leave with status 1; one node alone has the scheduler's word."""
    for rank in play.ranks:
        rank.exit(code=1)
    play.run(2.0)
    play.job.ended("PREEMPTED", [play.nodes[1]])


def kill_wait_of_90_seconds(play: Play) -> None:
    """SIGTERM to all; three ranks are stuck in the kernel and die after KillWait of 90 s, one 30 s later still."""
    play.job.tear_down(stay={1, 2, 6}, kill_wait=90.0)


def save_and_leave(play: Play) -> None:
    """SIGTERM to all; ranks save and leave with status 0 over 100 s."""
    for rank in play.ranks:
        play.run(100.0 / len(play.ranks))
        rank.exit()


def cancel_with_kill_wait_of_200_seconds(play: Play) -> None:
    """SIGTERM to all; ranks that hang in the kernel die after KillWait of 200 s, without the scheduler's word."""
    play.job.tear_down(stay={2, 6}, kill_wait=200.0)


def saved_and_failed(play: Play) -> None:
    """After SIGTERM to the launchers ranks save; they leave with status 0 or 1 over 40 s; the word comes at the end."""
    for rank in play.ranks:
        play.run(5.0)
        rank.exit(code=rank.number % 2)
    play.job.ended("TIMEOUT")


def time_limit(play: Play) -> None:
    """The time limit: SIGTERM to all, SIGKILL to all that stay after KillWait, the scheduler's word."""
    play.job.tear_down(stay=range(8), kill_wait=30.0)
    play.job.ended("TIMEOUT")


def planned_exits(play: Play) -> None:
    """A plan takes two ranks away; they leave with status 1 one after the other and the others go on."""
    plan = play.nodes[1].table.liveness.facts.of("nixl_ep")
    plan.set_planned([RankLabel("7", "6"), RankLabel("7", "7")])
    for number in (6, 7):
        play.ranks[number].exit(code=1)
        play.run(20.0)


def shrinks(play: Play) -> None:
    """An elastic job loses a node's ranks in order: its launcher starts the others anew as a smaller job."""
    for rank in play.ranks[8:]:
        rank.exit()
    play.run(3.0)
    play.job.world = 8
    for rank in play.ranks[:8]:
        rank.exit(SIGTERM)
    play.run(5.0)
    for rank in play.ranks[:8]:
        rank.start()
    play.run(300.0)


def job_of_one_rank_ends(play: Play) -> None:
    """The only rank of a job leaves with status 0."""
    play.ranks[0].exit()


def ends_node_by_node(play: Play) -> None:
    """The nodes of a job end one after the other, 50 s apart, with status 0."""
    for rank in play.ranks:
        if rank.number % 4 == 0 and rank.number:
            play.run(50.0)
        rank.exit()


def switched_off_at_the_end(play: Play) -> None:
    """A cloud switches the nodes off five seconds after the job has ended."""
    for rank in play.ranks:
        rank.exit()
    play.run(11.0)
    for node in play.nodes:
        node.lose_power()


def first_rank_leaves_and_others_abort(play: Play) -> None:
    """Rank 0 leaves with status 0; those of the other node abort 3.5 s later, as their store is gone."""
    play.ranks[0].exit()
    play.run(3.5)
    for rank in play.ranks[1:4]:
        rank.exit()
    for rank in play.ranks[4:]:
        rank.exit(SIGABRT)


def cancel_that_comes_to_one_node_first(play: Play) -> None:
    """SIGTERM ends the ranks of one node; those of the other abort 3.5 s later, before the cancel comes there."""
    for rank in play.ranks[:4]:
        rank.exit(SIGTERM)
    play.run(3.5)
    for rank in play.ranks[4:]:
        rank.exit(SIGABRT)


SITUATIONS = (
    Situation(finish),
    Situation(slow_finish),
    Situation(cancel),
    Situation(cancel_long_kill_wait),
    Situation(cancel_save_and_leave),
    Situation(cancel_by_kill),
    Situation(all_nodes_drained),
    Situation(ends_of_many, nodes=8, per_node=32),
    Situation(one_finishes_early),
    Situation(kill_wait_by_node),
    Situation(preempted_with_a_status, nodes=3),
    Situation(kill_wait_of_90_seconds),
    Situation(save_and_leave),
    Situation(cancel_with_kill_wait_of_200_seconds),
    Situation(saved_and_failed),
    Situation(time_limit),
    Situation(planned_exits),
    Situation(shrinks, nodes=3),
    Situation(job_of_one_rank_ends, nodes=1, per_node=1),
    Situation(ends_node_by_node, nodes=3),
    Situation(switched_off_at_the_end),
    Situation(first_rank_leaves_and_others_abort),
    Situation(cancel_that_comes_to_one_node_first),
)
