"""Nodes that lose power, are cut off, replaced or renamed while a job runs there."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM

from play import Due, Play, Situation


def power(play: Play) -> None:
    """A node loses power and its job hangs."""
    play.nodes[1].lose_power()
    play.hang()


def power_and_abort(play: Play) -> None:
    """A node loses power; the ranks of the other node abort 12 s later."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(12.0)
    for rank in play.ranks[:4]:
        rank.exit(SIGABRT)


def power_and_late_abort(play: Play) -> None:
    """A node loses power; the ranks of the other node abort after ten minutes."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(600.0)
    for rank in play.ranks[:4]:
        rank.exit(SIGABRT)


def power_and_boot(play: Play) -> None:
    """A node loses power and is back after five minutes without its ranks, while the job waits."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(300.0)
    play.nodes[1].boot()
    play.run(60.0)


def power_and_new_run(play: Play) -> None:
    """A node loses power; the scheduler restarts the job on other nodes three minutes later."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(160.0)
    for rank in play.ranks[:4]:
        rank.exit(SIGTERM)
    play.run(20.0)
    play.job.progresses = True
    for rank in play.ranks:
        rank.start(play.nodes[0] if rank.number < 4 else play.nodes[2])
    play.run(160.0)


def crash_then_power(play: Play) -> None:
    """A rank crashes, and its own node loses power 30 s later."""
    play.ranks[5].exit(SIGSEGV)
    play.hang()
    play.run(30.0)
    play.nodes[1].lose_power()


def power_for_long(play: Play) -> None:
    """A node loses power and its job waits for 25 minutes."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(1500.0)


def power_and_diskless_boot(play: Play) -> None:
    """A node without a disk loses power and is back after ten minutes without any record of the job, which waits."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(600.0)
    play.nodes[1].boot(disk=False)
    play.run(200.0)


def power_of_a_job_of_one_node(play: Play) -> None:
    """The only node of a job loses power and does not come back; another node idles."""
    play.nodes[0].lose_power()
    play.run(1200.0)


def node_replaced(play: Play) -> None:
    """A node loses power and is no target any more two minutes later; the job waits, and goes on with a new node."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(120.0)
    play.remove_target(1)
    play.run(200.0)
    for rank in play.ranks[:4]:
        rank.exit(SIGTERM)
    play.run(5.0)
    play.job.progresses = True
    for rank in play.ranks:
        rank.start(play.nodes[0] if rank.number < 4 else play.nodes[2])
    play.run(160.0)


def cut_off_then_ranks_leave(play: Play) -> None:
    """A node is cut off for 40 s; later its ranks leave, the job goes on without them, and the node is switched off."""
    play.miss(1, seconds=40.0)
    play.run(100.0)
    for rank in play.ranks[4:]:
        rank.exit()
        play.job.world -= 1
    play.run(1000.0)
    play.nodes[1].lose_power()


def node_cut_off(play: Play) -> None:
    """A node cannot be reached for five minutes; its ranks and the job go on."""
    play.miss(1, seconds=300.0)


def node_cut_off_shortly(play: Play) -> None:
    """A node cannot be reached for a minute while the job goes on."""
    play.miss(1, seconds=60.0)


def death_while_a_node_is_lost(play: Play) -> None:
    """A node loses power; a minute later the OOM killer ends a rank of another node."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(60.0)
    play.ranks[1].exit(SIGKILL, oom=True)


def back_after(seconds: float, *, disk: bool = True) -> Callable[[Play], None]:
    """A node loses power and is back later; its job waits and its user cancels it five minutes after that."""

    def happens(play: Play) -> None:
        play.nodes[1].lose_power()
        play.hang()
        play.run(seconds)
        play.nodes[1].boot(disk=disk)
        play.run(300.0)
        for rank in play.job.running():
            rank.exit(SIGTERM)
        play.job.ended("CANCELLED", [play.nodes[0]])
        play.run(120.0)

    happens.__name__ = f"back_after_{seconds:.0f}_seconds{'' if disk else '_without_a_disk'}"
    return happens


def abort_and_boot(play: Play) -> None:
    """A node loses power; its peers abort after 12 s, the node is back after five minutes."""
    power_and_abort(play)
    play.run(300.0)
    play.nodes[1].boot()
    play.run(900.0)


def cut_off_and_abort(play: Play) -> None:
    """A node is cut off for three minutes; all ranks abort 20 s after that began. Then its agent shows its exits."""
    play.nodes[1].answers = False
    play.hang()
    play.run(20.0)
    for rank in play.ranks:
        rank.exit(SIGABRT)
    play.run(160.0)
    play.nodes[1].answers = True


def long_after_it_began_anew(play: Play) -> None:
    """A node loses power and the job restarts elsewhere; an hour later a rank is killed."""
    power_and_new_run(play)
    play.run(3600.0)
    play.ranks[1].exit(SIGKILL)


def boot_after_it_began_anew(play: Play) -> None:
    """A node loses power, the job restarts elsewhere, and the node is back with the record of its last boot."""
    power_and_new_run(play)
    play.run(300.0)
    play.nodes[1].boot()
    play.run(300.0)


def renamed(play: Play) -> None:
    """A node gets another name in Prometheus while its ranks run."""
    play.site.rename(play.nodes[1], "m1")
    play.run(600.0)


def replaced_by_another(play: Play) -> None:
    """A node loses power; two minutes later a machine without records gets its name; the job waits."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(120.0)
    play.nodes[1].boot(disk=False)
    play.run(600.0)


def two_nodes(play: Play) -> None:
    """Two nodes of four lose power together and the job hangs."""
    play.nodes[1].lose_power()
    play.nodes[2].lose_power()
    play.hang()


def two_nodes_one_after_the_other(play: Play) -> None:
    """A node loses power, another one ten minutes later, while the job waits."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(600.0)
    play.nodes[2].lose_power()


def killed_then_power(play: Play) -> None:
    """A rank is killed, and four minutes later another node loses power, while the job waits."""
    play.ranks[5].exit(SIGKILL)
    play.hang()
    play.run(240.0)
    play.nodes[0].lose_power()


def raise_before_the_silence(play: Play) -> None:
    """The ranks of one node fail four seconds before the other node loses power."""
    for rank in play.ranks[:4]:
        rank.exit(code=1)
    play.run(4.0)
    play.nodes[1].lose_power()


def power_while_the_job_goes_on(play: Play) -> None:
    """A node loses power and the other ranks go on without it."""
    play.nodes[1].lose_power()
    play.run(300.0)


def power_in_an_end(play: Play) -> None:
    """A node loses power while its job is being cancelled."""
    for rank in play.ranks[:4]:
        rank.exit(SIGTERM)
    play.nodes[1].lose_power()
    play.job.ended("CANCELLED", [play.nodes[0]])


def death_in_an_outage(play: Play) -> None:
    """Prometheus reaches one of two nodes no more; 30 s later a rank of that node crashes and peers raise."""
    play.nodes[1].answers = False
    play.run(30.0)
    play.ranks[5].exit(SIGSEGV)
    play.hang()
    play.run(3.0)
    for rank in play.ranks[:4]:
        rank.exit(code=1)
    play.run(120.0)
    play.nodes[1].answers = True


def three_hours(play: Play) -> None:
    """A node loses power and its job waits for three hours."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(3 * 3600.0)


def ended_by_its_launcher_after(seconds: float) -> Callable[[Play], None]:
    """A node loses power; the launcher notices that later and ends the other ranks by SIGTERM."""

    def happens(play: Play) -> None:
        play.nodes[1].lose_power()
        play.hang()
        play.run(seconds)
        for rank in play.ranks[:4]:
            rank.exit(SIGTERM)
        play.run(300.0)

    happens.__name__ = f"ended_by_its_launcher_after_{seconds:.0f}_seconds"
    return happens


def killed_long_after_an_agent_went(play: Play) -> None:
    """An agent is away for good and its job goes on; an hour later a rank of another node is killed."""
    play.nodes[1].refuses = True
    play.nodes[1].answers = False
    play.run(4000.0)
    play.ranks[1].exit(SIGKILL)
    play.hang()


DEAD = "RankDead 5 n1"
LOST = "NodeLost n1"
SITUATIONS = (
    Situation(power, {LOST: Due(20, 60)}),
    Situation(power_and_abort, {LOST: Due(20, 60)}),
    Situation(power_and_late_abort, {LOST: Due(20, 60)}),
    Situation(power_and_boot, {LOST: Due(20, 60)}),
    Situation(power_and_new_run, {LOST: Due(20, 60, 170, 260)}, nodes=3, per_node=4),
    Situation(crash_then_power, {f"{DEAD} crash": Due(0, 22, 200), LOST: Due(50, 270)}),
    Situation(power_for_long, {LOST: Due(20, 60)}),
    Situation(power_and_diskless_boot, {LOST: Due(20, 60)}),
    Situation(power_of_a_job_of_one_node, {"NodeLost n0": Due(190, 230, 900, 300)}, nodes=1, idle=1),
    Situation(node_replaced, {LOST: Due(20, 60, 320, 260)}, nodes=2, idle=1),
    Situation(cut_off_then_ranks_leave),
    Situation(node_cut_off, {LOST: Due(190, 230, 300, 240)}),
    Situation(node_cut_off_shortly),
    Situation(death_while_a_node_is_lost, {LOST: Due(20, 60), "RankDead 1 n0 oom": Due(60, 82)}),
    Situation(back_after(5.0), {LOST: Due(0, 60, 290, 400)}),
    Situation(back_after(1800.0), {LOST: Due(20, 60, 2090, 400)}),
    Situation(back_after(300.0, disk=False), {LOST: Due(20, 60, 590, 400)}),
    Situation(abort_and_boot, {LOST: Due(20, 60, 200, 1000)}),
    Situation(
        cut_off_and_abort,
        {
            LOST: Due(20, 60, 180, 240),
            "RankDead 0 n0 fail info": Due(180, 215),
            "RankDead 4 n1 fail info": Due(180, 215),
        },
    ),
    Situation(long_after_it_began_anew, {LOST: Due(20, 60, 170, 260), "RankDead 1 n0 killed": Due(3950, 3980)}, idle=1),
    Situation(boot_after_it_began_anew, {LOST: Due(20, 60, 170, 260)}, idle=1),
    Situation(renamed),
    Situation(replaced_by_another, {LOST: Due(20, 60)}),
    Situation(two_nodes, {LOST: Due(20, 60), "NodeLost n2": Due(20, 60)}, nodes=4),
    Situation(two_nodes_one_after_the_other, {LOST: Due(20, 60), "NodeLost n2": Due(620, 660)}, nodes=4),
    Situation(killed_then_power, {"RankDead 5 n1 killed": Due(15, 35), "NodeLost n0": Due(260, 300)}),
    Situation(raise_before_the_silence, {LOST: Due(20, 60, 200, 900)}),
    Situation(power_while_the_job_goes_on, {LOST: Due(190, 230)}),
    Situation(power_in_an_end),
    Situation(death_in_an_outage, {LOST: Due(20, 80, 150, 240), "RankDead 5 n1 crash": Due(150, 190)}),
    Situation(ended_by_its_launcher_after(15.0), {LOST: Due(190, 230)}),
    Situation(ended_by_its_launcher_after(60.0), {LOST: Due(20, 195)}),
    Situation(killed_long_after_an_agent_went, {LOST: Due(190, 230), "RankDead 1 n0 killed": Due(4015, 4035)}),
    Situation(three_hours, {LOST: Due(20, 60)}),
)
