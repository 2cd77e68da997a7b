"""The table of truth: what happens to one job, and which alerts must fire, from when to when, and nothing else.

Expectations are those of docs/ends.md. Times are seconds after ``EVENT``; ``until`` None: to the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM
from types import MappingProxyType
from typing import NamedTuple

from site_of_agents import Job, Node, Rank, Site

EVENT = 1000.0
"""When something happens: the job has run for so long."""


class Due(NamedTuple):
    """An alert that must fire: first from ``after`` to ``by``, then without a gap to ``until``; over ``gone`` later."""

    after: float
    by: float
    until: float | None = None
    gone: float = 90.0


class Play:
    """One job on a site whose clocks, scrape delays and lost scrapes are what a seed gives; seed 0: none."""

    def __init__(self, seed: int, situation: Situation, interval: float) -> None:
        nodes, warm_up = situation.nodes + situation.idle, situation.warm_up
        dice = random.Random(seed)  # noqa: S311  # a scenario, no secret
        delays = {f"n{number}": dice.uniform(0.0, 2.0) if seed else 0.0 for number in range(nodes)}
        self.site = Site(interval, lambda name, _time: delays[name])
        skews = [dice.choice((-3600.0, -90.0, 0.0, 90.0, 3600.0)) if seed else 0.0 for _ in range(nodes)]
        drifts = [dice.uniform(-5e-5, 5e-5) if seed else 0.0 for _ in range(nodes)]
        self.nodes: list[Node] = [self.site.node(f"n{n}", skews[n], drifts[n]) for n in range(nodes)]
        self.site.run(EVENT - warm_up)
        self.job = Job(self.site, "7", self.nodes[: situation.nodes], situation.per_node)
        self.site.run(warm_up)

    @property
    def ranks(self) -> list[Rank]:
        """The job's ranks by number."""
        return self.job.ranks

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.site.run(seconds)

    def miss(self, *nodes: int, seconds: float = 6.0) -> None:
        """Let scrapes of these nodes fail for a while; the agents go on."""
        for number in nodes:
            self.nodes[number].answers = False
        self.run(seconds)
        for number in nodes:
            self.nodes[number].answers = True

    def remove_target(self, number: int) -> None:
        """Prometheus scrapes this node no longer."""
        self.nodes[number].is_target = False

    def begin_anew(self, restarts: tuple[int, int]) -> None:
        """torchrun starts all ranks, the first time 11 minutes ago: how often it did, and would."""
        for rank in self.job.running():
            rank.exit(SIGTERM)
        self.job.restarts = restarts
        for rank in self.ranks:
            rank.start()
        if restarts[0] == 0:
            self.run(660.0)

    def hang(self) -> None:
        """No rank completes an operation any more."""
        self.job.progresses = False


class Situation(NamedTuple):
    """What happens, on how many nodes of how many ranks, and what must fire: alert, rank, node, class, "info" if so."""

    happens: Callable[[Play], None]
    due: Mapping[str, Due] = MappingProxyType({})
    nodes: int = 2
    per_node: int = 4
    warm_up: float = EVENT
    idle: int = 0


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
    """A rank leaves with status 7; srun -K ends the others, two of them stay for KillWait."""
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
    """One rank is gone, how is not known; the others wait."""
    play.ranks[5].exit(known=False)


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


def returns_elsewhere(play: Play) -> None:
    """A rank crashes and is started on another node 40 s later."""
    play.ranks[1].exit(SIGSEGV)
    play.run(40.0)
    play.ranks[1].start(play.nodes[2])


def returns_here(play: Play) -> None:
    """A rank crashes and is started anew on its node 60 s later."""
    play.ranks[5].exit(SIGSEGV)
    play.run(60.0)
    play.ranks[5].start()


def power(play: Play) -> None:
    """A node loses power and its job hangs."""
    play.nodes[1].lose_power()
    play.hang()


def power_and_abort(play: Play) -> None:
    """A node loses power; its peers raise 12 s later, with records up to the loss."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(12.0)
    for rank in play.ranks[:4]:
        rank.exit(SIGABRT)


def power_and_late_abort(play: Play) -> None:
    """A node loses power; its peers raise after ten minutes."""
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
    """A node loses power; the scheduler starts the job anew on other nodes two minutes later."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(100.0)
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


def agent_away(play: Play) -> None:
    """An agent is down for 100 s, its node and job go on."""
    play.nodes[1].refuses = True
    play.miss(1, seconds=100.0)


def agent_restarts_in_a_death(play: Play) -> None:
    """The agent of a dead rank's node is killed and comes back with its checkpoint."""
    play.ranks[5].exit(SIGSEGV)
    play.run(40.0)
    play.nodes[1].refuses = True
    play.miss(1, seconds=11.0)
    play.nodes[1].restart_agent()


def scrapes_fail_in_a_death(play: Play) -> None:
    """Scrapes of every node fail now and then while a page is open."""
    play.ranks[5].exit(SIGSEGV)
    for node in (0, 1, 0, 1, 1, 0):
        play.run(24.0)
        play.miss(node)


def cut_off_in_a_death(play: Play) -> None:
    """Prometheus reaches no node for 100 s while a page is open."""
    play.ranks[5].exit(SIGSEGV)
    play.run(60.0)
    play.miss(0, 1, seconds=100.0)


def node_misses_a_scrape(play: Play) -> None:
    """One scrape of a node fails while its job runs."""
    play.miss(1)


def all_nodes_drained(play: Play) -> None:
    """The job ends, and its nodes are switched off a minute later."""
    finish(play)
    play.run(60.0)
    for node in play.nodes:
        node.lose_power()


def two_deaths(play: Play) -> None:
    """Two ranks of one node crash 20 s apart; the others wait."""
    play.ranks[5].exit(SIGSEGV)
    play.run(20.0)
    play.ranks[6].exit(SIGSEGV)


def ends_of_many(play: Play) -> None:
    """256 ranks leave with status 0 over two minutes."""
    for rank in play.ranks:
        rank.exit()
        play.run(120.0 / len(play.ranks))


def node_cut_off(play: Play) -> None:
    """A node cannot be reached for five minutes; its ranks and the job go on."""
    play.miss(1, seconds=300.0)


def node_cut_off_shortly(play: Play) -> None:
    """A node cannot be reached for a minute while the job goes on."""
    play.miss(1, seconds=60.0)


def one_finishes_early(play: Play) -> None:
    """One rank leaves with status 0, all others do half a minute later."""
    play.ranks[5].exit()
    play.run(30.0)
    for rank in play.job.running():
        rank.exit()


def fails_again_and_again(play: Play) -> None:
    """The job fails and is started anew by its launcher three times, and goes on."""
    for _ in range(3):
        restart_in_place(play)
        play.run(120.0)


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


def power_for_long(play: Play) -> None:
    """A node loses power and its job waits for 25 minutes."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(1500.0)


def power_and_diskless_boot(play: Play) -> None:
    """A node without a disk loses power and is back after ten minutes, knowing nothing, while the job waits."""
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


def all_cut_off(play: Play) -> None:
    """Prometheus reaches no node for two minutes while nothing happens."""
    play.miss(0, 1, seconds=120.0)


def agent_without_checkpoint(play: Play) -> None:
    """An agent is killed and starts without its checkpoint while a rank of another node is dead."""
    play.ranks[1].exit(SIGSEGV)
    play.run(40.0)
    play.nodes[1].refuses = True
    play.miss(1, seconds=11.0)
    play.nodes[1].restart_agent(checkpoint=False)


def kill_wait_of_90_seconds(play: Play) -> None:
    """SIGTERM to all; three ranks are stuck in the kernel and die after KillWait of 90 s, one 30 s later still."""
    play.job.tear_down(stay={1, 2, 6}, kill_wait=90.0)


def save_and_leave(play: Play) -> None:
    """SIGTERM to all; ranks save and leave with status 0 over 100 s."""
    for rank in play.ranks:
        play.run(100.0 / len(play.ranks))
        rank.exit()


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


def death_while_a_node_is_lost(play: Play) -> None:
    """A node loses power; a minute later a rank of another node is killed for memory."""
    play.nodes[1].lose_power()
    play.hang()
    play.run(60.0)
    play.ranks[1].exit(SIGKILL, oom=True)


def kill_wait_by_node(play: Play) -> None:
    """SIGTERM to all; one rank of each node stays. After KillWait of 90 s one is killed, the other 25 s later."""
    play.job.tear_down(stay={1, 6}, kill_wait=90.0, kill=[1])
    play.run(25.0)
    play.ranks[6].exit(SIGKILL)


def anew_and_slowly(play: Play) -> None:
    """A rank crashes; 80 s later the job begins anew on a node of its and another one, which takes minutes."""
    play.ranks[1].exit(SIGSEGV)
    play.job.tear_down()
    play.run(80.0)
    for rank in play.ranks:
        if rank.number == 4:
            play.run(200.0)
        rank.start(play.nodes[1] if rank.number < 4 else play.nodes[2])


def preempted_with_a_status(play: Play) -> None:
    """Preempted ranks of three nodes save and leave with status 1; one node alone has the scheduler's word."""
    for rank in play.ranks:
        rank.exit(code=1)
    play.run(2.0)
    play.job.ended("PREEMPTED", [play.nodes[1]])


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


def crash_and_one_ended(play: Play) -> None:
    """A rank crashes and one of another node is ended two seconds later; the others wait."""
    play.ranks[1].exit(SIGSEGV)
    play.hang()
    play.run(2.0)
    play.ranks[12].exit(SIGTERM)


DEAD, LOST = "RankDead 5 n1", "NodeLost n1"
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
    Situation(finish),
    Situation(slow_finish),
    Situation(cancel),
    Situation(cancel_long_kill_wait),
    Situation(cancel_save_and_leave),
    Situation(cancel_by_kill),
    Situation(restart_in_place),
    Situation(requeued_elsewhere, nodes=3, per_node=4),
    Situation(returns_elsewhere, {"RankDead 1 n0 crash": Due(0, 22, 40)}, nodes=3, per_node=2),
    Situation(returns_here, {f"{DEAD} crash": Due(0, 22, 60)}),
    Situation(power, {LOST: Due(20, 60)}),
    Situation(power_and_abort, {LOST: Due(20, 60)}),
    Situation(power_and_late_abort, {LOST: Due(20, 60)}),
    Situation(power_and_boot, {LOST: Due(20, 60)}),
    Situation(power_and_new_run, {LOST: Due(20, 60, 110, 260)}, nodes=3, per_node=4),
    Situation(crash_then_power, {f"{DEAD} crash": Due(0, 22, 200), LOST: Due(50, 270)}),
    Situation(agent_away),
    Situation(agent_restarts_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(scrapes_fail_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(cut_off_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(node_misses_a_scrape),
    Situation(all_nodes_drained),
    Situation(ends_of_many, nodes=8, per_node=32),
    Situation(node_cut_off, {LOST: Due(190, 230, 300, 240)}),
    Situation(node_cut_off_shortly),
    Situation(one_finishes_early),
    Situation(fails_again_and_again),
    Situation(crash_and_late_raise, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(killed_and_slow_teardown, {"RankDead 1 n0 torn": Due(7, 30)}),
    Situation(returns_and_dies_alike, {f"{DEAD} crash info": Due(0, 22)}, warm_up=300.0),
    Situation(two_deaths, {f"{DEAD} crash": Due(0, 22)}),
    Situation(kill_wait_by_node),
    Situation(torchrun_starts_anew),
    Situation(torchrun_gives_up, {"RankDead 1 n0 fail info": Due(715, 745)}),
    Situation(anew_and_slowly, {"RankDead 1 n0 crash": Due(0, 22, 80)}, idle=1),
    Situation(preempted_with_a_status, nodes=3),
    Situation(crash_and_one_ended, {"RankDead 1 n0 crash": Due(0, 22)}, per_node=8),
    Situation(power_for_long, {LOST: Due(20, 60)}),
    Situation(power_and_diskless_boot, {LOST: Due(20, 60)}),
    Situation(power_of_a_job_of_one_node, {"NodeLost n0": Due(190, 230, 900, 300)}, nodes=1, idle=1),
    Situation(node_replaced, {LOST: Due(20, 60, 320, 260)}, nodes=2, idle=1),
    Situation(cut_off_then_ranks_leave),
    Situation(all_cut_off),
    Situation(agent_without_checkpoint, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(kill_wait_of_90_seconds),
    Situation(save_and_leave),
    Situation(large_job_fails, {"RankDead 9 n1 fail": Due(0, 22)}, nodes=4, per_node=8),
    Situation(hang_then_death, {f"{DEAD} killed": Due(3615, 3635)}),
    Situation(dead_for_hours, {f"{DEAD} crash": Due(0, 22)}),
    Situation(death_while_a_node_is_lost, {LOST: Due(20, 60), "RankDead 1 n0 oom": Due(60, 82)}),
)
