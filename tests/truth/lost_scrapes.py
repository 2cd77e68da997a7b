"""Scrapes that fail, come twice or late, and agents that are away: no alert begins or ends by that."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV

from play import Due, Play, Situation


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


def doubled_targets(play: Play) -> None:
    """Each node is two targets; a rank crashes, torchrun ends the others."""
    for node in play.nodes:
        node.is_doubled = True
    play.ranks[5].exit(SIGSEGV)
    play.job.tear_down()


def doubled_targets_and_a_kill(play: Play) -> None:
    """Each node is two targets; a rank is killed and the others wait."""
    for node in play.nodes:
        node.is_doubled = True
    play.ranks[5].exit(SIGKILL)


def share_of_scrapes_lost(play: Play) -> None:
    """One scrape in twenty fails while nothing happens, for half an hour."""
    play.site.lost_share = 0.05
    play.run(1800.0)


def death_with_scrapes_lost(play: Play) -> None:
    """One scrape in fifty fails; a rank is killed and the others wait for half an hour."""
    play.site.lost_share = 0.02
    play.ranks[5].exit(SIGKILL)
    play.run(1800.0)


def end_with_scrapes_lost(play: Play) -> None:
    """One scrape in twenty fails while all ranks leave with status 0, and after a cancel."""
    play.site.lost_share = 0.05
    for rank in play.ranks:
        rank.exit()
        play.run(1.0)
    play.run(600.0)


def away_at_the_death(play: Play) -> None:
    """Prometheus is away for 100 s; a rank crashes in that time and torchrun ends the others."""
    for node in play.nodes:
        node.answers = False
    play.run(30.0)
    play.ranks[5].exit(SIGSEGV)
    play.job.tear_down()
    play.run(70.0)
    for node in play.nodes:
        node.answers = True


def away_at_the_end(play: Play) -> None:
    """Prometheus is away for 100 s; the job ends in that time."""
    for node in play.nodes:
        node.answers = False
    play.run(30.0)
    for rank in play.ranks:
        rank.exit()
    play.run(70.0)
    for node in play.nodes:
        node.answers = True


def agents_upgraded_one_by_one(play: Play) -> None:
    """Each agent is started anew with its checkpoint, 20 s away, while the job runs; then a rank is killed."""
    for number, node in enumerate(play.nodes):
        node.refuses = True
        play.miss(number, seconds=20.0)
        node.restart_agent()
        node.refuses = False
        play.run(20.0)
    play.run(120.0)
    play.ranks[5].exit(SIGKILL)


def job_dies_while_its_agent_is_away(play: Play) -> None:
    """An agent is down for 30 s; in that time a rank of its node is killed, how is not known later. The others wait."""
    play.nodes[1].refuses = True
    play.nodes[1].answers = False
    play.run(10.0)
    play.ranks[5].exit(known=False)
    play.run(20.0)
    play.nodes[1].answers = True
    play.nodes[1].restart_agent()


def old_agent_beside_a_death(play: Play) -> None:
    """The agent of one node is of an old version; a rank of the other node crashes."""
    play.nodes[1].is_old = True
    play.ranks[1].exit(SIGSEGV)


def old_agent_beside_an_end(play: Play) -> None:
    """The agent of one node is of an old version; the job ends."""
    play.nodes[1].is_old = True
    for rank in play.ranks:
        rank.exit()
        play.run(2.0)


def two_clusters(play: Play) -> None:
    """Another cluster has a job of the same id on nodes of the same names; here a rank is killed."""
    play.add_cluster()
    play.ranks[5].exit(SIGKILL)
    play.hang()
    play.run(300.0)


def two_clusters_and_an_end(play: Play) -> None:
    """Another cluster has a job of the same id on nodes of the same names; here the job is cancelled."""
    play.add_cluster()
    play.job.tear_down(stay={2})
    play.job.ended("CANCELLED")
    play.run(300.0)


DEAD = "RankDead 5 n1"
SITUATIONS = (
    Situation(agent_away),
    Situation(agent_restarts_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(scrapes_fail_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(cut_off_in_a_death, {f"{DEAD} crash": Due(0, 22)}),
    Situation(node_misses_a_scrape),
    Situation(all_cut_off),
    Situation(agent_without_checkpoint, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(doubled_targets, {f"{DEAD} crash": Due(0, 22)}),
    Situation(doubled_targets_and_a_kill, {f"{DEAD} killed": Due(15, 35)}),
    Situation(share_of_scrapes_lost),
    Situation(death_with_scrapes_lost, {f"{DEAD} killed": Due(15, 60)}),
    Situation(end_with_scrapes_lost),
    Situation(away_at_the_death, {f"{DEAD} crash": Due(100, 130)}),
    Situation(away_at_the_end),
    Situation(agents_upgraded_one_by_one, {f"{DEAD} killed": Due(215, 240)}),
    Situation(job_dies_while_its_agent_is_away, {f"{DEAD} left info": Due(60, 130)}),
    Situation(old_agent_beside_a_death, {"RankDead 1 n0 crash": Due(0, 22)}),
    Situation(old_agent_beside_an_end),
    Situation(two_clusters, {f"{DEAD} killed": Due(15, 35)}),
    Situation(two_clusters_and_an_end),
)
