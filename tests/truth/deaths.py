"""Ranks that die while the job runs, and which of them the alerts name."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM, SIGTRAP

from play import Due, Play, Situation
from site_of_agents import Job

from agent.core.identity import RankLabel


def crash_and_teardown(play: Play) -> None:
    """A rank crashes and torchrun ends the others within half a second."""
    play.ranks[1].exit(SIGSEGV)
    play.job.tear_down()


def crash_alone(play: Play) -> None:
    """A rank crashes and the others wait for it."""
    play.ranks[5].exit(SIGSEGV)


def oom_alone(play: Play) -> None:
    """The OOM killer ends a rank and the others wait."""
    play.ranks[5].exit(SIGKILL, oom=True)


def status_and_teardown(play: Play) -> None:
    """A rank exits with status 7; srun -K ends the others, two of which stay until SIGKILL (KillWait)."""
    play.ranks[0].exit(code=7)
    play.job.tear_down(stay={3, 6})


def killed_alone(play: Play) -> None:
    """Somebody kills a rank; the others wait."""
    play.ranks[5].exit(SIGKILL)


def killed_before_teardown(play: Play) -> None:
    """A rank is killed and mpirun ends the others."""
    play.ranks[1].exit(SIGKILL)
    play.job.tear_down()


def killed_alone_on_its_node(play: Play) -> None:
    """The only rank of a node is killed; the launcher ends those of other nodes within a second."""
    play.ranks[1].exit(SIGKILL)
    play.run(1.0)
    for rank in play.job.running():
        rank.exit(SIGTERM)


def left_alone(play: Play) -> None:
    """One rank leaves with status 0 in the middle; the others wait."""
    play.ranks[5].exit(code=0)


def unknown_end(play: Play) -> None:
    """One rank ends in an unknown way; the others wait."""
    play.ranks[5].exit(known=False)


def returns_elsewhere(play: Play) -> None:
    """A rank crashes and is restarted on another node 40 s later."""
    play.ranks[1].exit(SIGSEGV)
    play.run(40.0)
    play.ranks[1].start(play.nodes[2])


def returns_here(play: Play) -> None:
    """A rank crashes and is restarted on its node 60 s later."""
    play.ranks[5].exit(SIGSEGV)
    play.run(60.0)
    play.ranks[5].start()


def crash_and_late_raise(play: Play) -> None:
    """A rank crashes; eight seconds later those of another node raise, as their connections broke."""
    play.ranks[1].exit(SIGSEGV)
    play.hang()
    play.run(8.0)
    for rank in play.ranks[4:]:
        rank.exit(code=1)


def killed_and_slow_teardown(play: Play) -> None:
    """A rank is killed; its launcher ends the others seven seconds later."""
    play.ranks[1].exit(SIGKILL)
    play.run(7.0)
    play.job.tear_down()


def returns_and_dies_alike(play: Play) -> None:
    """A rank crashes, returns after half a minute and crashes again 15 s later."""
    play.ranks[5].exit(SIGSEGV)
    play.run(30.0)
    play.ranks[5].start()
    play.run(15.0)
    play.ranks[5].exit(SIGSEGV)


def two_deaths(play: Play) -> None:
    """Two ranks of one node crash 20 s apart; the others wait."""
    play.ranks[5].exit(SIGSEGV)
    play.run(20.0)
    play.ranks[6].exit(SIGSEGV)


def crash_and_one_ended(play: Play) -> None:
    """A rank crashes and one of another node is ended two seconds later; the others wait."""
    play.ranks[1].exit(SIGSEGV)
    play.hang()
    play.run(2.0)
    play.ranks[12].exit(SIGTERM)


def large_job_fails(play: Play) -> None:
    """A rank of a job of 32 leaves with status 1; srun -K ends the others."""
    play.ranks[9].exit(code=1)
    play.run(1.0)
    play.job.tear_down()


def hang_then_death(play: Play) -> None:
    """A job hangs for an hour, then a rank is killed."""
    play.hang()
    play.run(3600.0)
    play.ranks[5].exit(SIGKILL)


def dead_for_hours(play: Play) -> None:
    """A rank crashes and the others wait for an hour."""
    play.ranks[5].exit(SIGSEGV)
    play.hang()
    play.run(3600.0)


def crash_and_aborts(play: Play) -> None:
    """A rank crashes; those of the other node abort one and two seconds later."""
    play.ranks[1].exit(SIGSEGV)
    play.run(1.2)
    play.ranks[4].exit(SIGABRT)
    play.run(1.0)
    for rank in play.ranks[5:]:
        rank.exit(SIGABRT)


def abort_then_crash_elsewhere(play: Play) -> None:
    """A rank leaves with status 1; eight seconds later one of another node crashes as its connection broke."""
    play.ranks[1].exit(code=1)
    play.run(8.0)
    play.ranks[5].exit(SIGSEGV)


def bus_error(play: Play) -> None:
    """A rank has a bus error and the others wait."""
    play.ranks[5].exit(SIGBUS)


def all_crash_alike(play: Play) -> None:
    """All ranks crash within a second, as a bug makes them."""
    for rank in play.ranks:
        rank.exit(SIGSEGV)


def interrupted(play: Play) -> None:
    """One rank leaves by SIGINT; the others wait."""
    play.ranks[5].exit(SIGINT)


def status_alone(play: Play) -> None:
    """One rank leaves with status 3 and the others wait."""
    play.ranks[5].exit(code=3)


def status_of_a_shell(play: Play) -> None:
    """One rank exits with status 137, as a shell does whose child got SIGKILL; the others wait."""
    play.ranks[5].exit(code=137)


def asked_to_leave(play: Play) -> None:
    """One rank is ended by SIGTERM; the others wait."""
    play.ranks[5].exit(SIGTERM)


def two_leave(play: Play) -> None:
    """Two of eight ranks leave with status 0; the others wait."""
    play.ranks[5].exit()
    play.ranks[6].exit()


def killed_then_peers_raise(play: Play) -> None:
    """A rank is killed; five seconds later all others raise, as their connections broke."""
    play.ranks[1].exit(SIGKILL)
    play.run(5.0)
    for rank in play.job.running():
        rank.exit(code=1)


def killed_in_a_young_job(play: Play) -> None:
    """A rank of a job of five minutes is killed; the others wait."""
    play.ranks[5].exit(SIGKILL)


def crash_in_a_young_job(play: Play) -> None:
    """A rank of a job of five minutes crashes and torchrun ends the others."""
    play.ranks[5].exit(SIGSEGV)
    play.job.tear_down()


def oom_in_a_young_job(play: Play) -> None:
    """The OOM killer ends a rank of a job of five minutes."""
    play.ranks[5].exit(SIGKILL, oom=True)
    play.job.tear_down()


def failed_hardware(play: Play) -> None:
    """A rank leaves with status 1 after an Xid of its GPU; torchrun ends the others."""
    play.nodes[1].table.liveness.facts.hardware = lambda: {RankLabel("7", "5"): "xid_79"}
    play.ranks[5].exit(code=1)
    play.job.tear_down()


def two_deaths_on_two_nodes(play: Play) -> None:
    """Ranks of two nodes crash half a second apart: scrapes cannot tell which was first."""
    play.ranks[1].exit(SIGSEGV)
    play.run(0.5)
    play.ranks[5].exit(SIGBUS)


def two_deaths_a_quarter_of_an_hour_apart(play: Play) -> None:
    """A rank crashes, 15 minutes later one of another node crashes too; the others wait."""
    play.ranks[1].exit(SIGSEGV)
    play.run(900.0)
    play.ranks[5].exit(SIGSEGV)


def death_then_cancel(play: Play) -> None:
    """A rank crashes; ten minutes later its user cancels the job."""
    play.ranks[5].exit(SIGSEGV)
    play.run(600.0)
    play.job.tear_down(stay={2})
    play.job.ended("CANCELLED")


def killed_by_a_launcher_in_its_own_order(play: Play) -> None:
    """A rank fails; two seconds later its launcher kills the others, the one of the highest number first."""
    play.ranks[1].exit(code=1)
    play.run(2.0)
    for rank in reversed(play.job.running()):
        play.run(0.3)
        rank.exit(SIGKILL)


def many_failing_jobs(play: Play) -> None:
    """Jobs of an array, of one rank each, fail one after the other on the nodes of a job that goes on."""
    for number in range(20):
        job = Job(play.site, f"9_{number}", [play.nodes[number % 2]], 1, user="bob")
        play.run(12.0)
        job.ranks[0].exit(code=2)
        play.run(3.0)


def killed_at_the_sigterm_of_a_peer(play: Play) -> None:
    """A rank is ended by SIGTERM, and one of another node by SIGKILL 40 s later: a cancel by hand; the others stay."""
    play.ranks[1].exit(SIGTERM)
    play.run(40.0)
    play.ranks[5].exit(SIGKILL)


def crash_of_one_of_many(play: Play) -> None:
    """A rank of a job of 256 crashes and the launcher ends all others within two seconds."""
    play.ranks[200].exit(SIGSEGV)
    play.job.tear_down(seconds=2.0)


def abort_and_teardown_elsewhere(play: Play) -> None:
    """A rank aborts; its launcher ends the ranks of the other node half a second later, and then those of its own."""
    play.ranks[1].exit(SIGABRT)
    play.run(0.5)
    for rank in play.ranks[4:]:
        rank.exit(SIGTERM)
    play.run(1.0)
    play.job.tear_down()


def trap_and_late_raise(play: Play) -> None:
    """A rank is ended by SIGTRAP and its launcher ends those of its node; the others raise eight seconds later."""
    play.ranks[1].exit(SIGTRAP)
    play.hang()
    play.run(8.0)
    for rank in play.ranks[8:]:
        rank.exit(code=1)
    play.job.tear_down()


def unknown_end_and_aborts(play: Play) -> None:
    """A rank is gone, how is not known; those of the other node abort two seconds later."""
    play.ranks[1].exit(known=False)
    play.hang()
    play.run(2.0)
    for rank in play.ranks[8:]:
        rank.exit(SIGABRT)


def two_trainings_in_one_job(play: Play) -> None:
    """A job runs two torchruns of four ranks each, one per node; a rank of one is killed."""
    play.job.world = 4
    for rank in play.ranks:
        rank.exit()
    play.run(1000.0)
    for number, rank in enumerate(play.ranks):
        rank.number = number % 4
        rank.start()
    play.run(700.0)
    play.ranks[5].exit(SIGKILL)
    play.run(120.0)


DEAD = "RankDead 5 n1"
SITUATIONS = (
    Situation(crash_and_teardown, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(crash_alone, {f"{DEAD} crash": Due(0, 22)}),
    Situation(oom_alone, {f"{DEAD} oom": Due(0, 22)}),
    Situation(status_and_teardown, {"RankDead 0 n0 fail info": Due(0, 22)}),
    Situation(killed_alone, {f"{DEAD} killed": Due(15, 35)}),
    Situation(killed_before_teardown, {"RankDead 1 n0 torn": Due(0, 22)}),
    Situation(killed_alone_on_its_node, {"RankDead 1 n1 killed": Due(0, 25)}, nodes=3, per_node=1),
    Situation(left_alone, {f"{DEAD} left info": Due(45, 75)}),
    Situation(unknown_end, {f"{DEAD} left info": Due(45, 75)}),
    Situation(returns_elsewhere, {"RankDead 1 n0 crash": Due(0, 22, 40)}, nodes=3, per_node=2),
    Situation(returns_here, {f"{DEAD} crash": Due(0, 22, 60)}),
    Situation(crash_and_late_raise, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(killed_and_slow_teardown, {"RankDead 1 n0 torn": Due(7, 30)}),
    Situation(returns_and_dies_alike, {f"{DEAD} crash info": Due(0, 22)}, warm_up=300.0),
    Situation(two_deaths, {f"{DEAD} crash": Due(0, 22)}),
    Situation(crash_and_one_ended, {"RankDead 1 n0 crash": Due(0, 22)}, per_node=8),
    Situation(large_job_fails, {"RankDead 9 n1 fail": Due(0, 22)}, nodes=4, per_node=8),
    Situation(hang_then_death, {f"{DEAD} killed": Due(3615, 3635)}),
    Situation(dead_for_hours, {f"{DEAD} crash": Due(0, 22)}),
    Situation(crash_and_aborts, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(abort_then_crash_elsewhere, {"RankDead 1 n0 fail info": Due(0, 22)}),
    Situation(bus_error, {f"{DEAD} crash": Due(0, 22)}),
    Situation(all_crash_alike, {"RankDead 0 n0 crash info": Due(0, 22), "RankDead 4 n1 crash info": Due(0, 22)}),
    Situation(interrupted, {f"{DEAD} left info": Due(45, 75)}),
    Situation(status_alone, {f"{DEAD} fail info": Due(0, 22)}),
    Situation(status_of_a_shell, {f"{DEAD} left info": Due(45, 75)}),
    Situation(asked_to_leave, {f"{DEAD} left info": Due(45, 75)}),
    Situation(two_leave, {f"{DEAD} left info": Due(180, 205)}),
    Situation(killed_then_peers_raise, {"RankDead 1 n0 killed": Due(5, 25)}),
    Situation(killed_in_a_young_job, {f"{DEAD} killed info": Due(15, 35)}, warm_up=300.0),
    Situation(crash_in_a_young_job, {f"{DEAD} crash info": Due(0, 22)}, warm_up=300.0),
    Situation(oom_in_a_young_job, {f"{DEAD} oom": Due(0, 22)}, warm_up=300.0),
    Situation(failed_hardware, {f"{DEAD} fail": Due(0, 22)}),
    Situation(two_deaths_on_two_nodes, {"RankDead 1 n0 crash": Due(0, 22), f"{DEAD} crash": Due(0, 22)}),
    Situation(
        two_deaths_a_quarter_of_an_hour_apart, {"RankDead 1 n0 crash": Due(0, 22), f"{DEAD} crash": Due(900, 922)}
    ),
    Situation(death_then_cancel, {f"{DEAD} crash": Due(0, 22)}),
    Situation(killed_by_a_launcher_in_its_own_order, {"RankDead 1 n0 fail info": Due(0, 22)}),
    Situation(
        many_failing_jobs, {f"RankDead 0 n{n % 2} fail info 9_{n}": Due(12 + 15 * n, 34 + 15 * n) for n in range(20)}
    ),
    Situation(killed_at_the_sigterm_of_a_peer),
    Situation(two_trainings_in_one_job, {"RankDead 1 n1 killed": Due(1715, 1735)}),
    Situation(crash_of_one_of_many, {"RankDead 200 n6 crash": Due(0, 22)}, nodes=8, per_node=32),
    Situation(trap_and_late_raise, {"RankDead 1 n0 crash": Due(0, 22)}, per_node=8),
    Situation(unknown_end_and_aborts, {"RankDead 8 n1 fail": Due(0, 22)}, per_node=8),
    Situation(abort_and_teardown_elsewhere, {"RankDead 1 n0 fail info": Due(0, 22)}),
)
