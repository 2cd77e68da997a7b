"""Scrapes that fail, are late or doubled, and agents that are down: none of these faults starts or ends an alert."""

from __future__ import annotations

from signal import SIGKILL, SIGSEGV

from play import Due, Play, Situation, Step
from steps import ALL, HANG, agent_restarts, ended, exits, loses_scrapes, misses, node, tears_down, wait

AWAY = node(1, refuses=True)
CUT_OFF = node(0, 1, answers=False)
REACHED = node(0, 1, answers=True)
DOUBLED = node(0, 1, is_doubled=True)
OLD = node(1, is_old=True)
DEAD = "RankDead 5 n1"
CRASH = {f"{DEAD} crash": Due(0, 22)}
KILLED = {f"{DEAD} killed": Due(15, 35)}


def upgraded(number: int) -> tuple[Step, ...]:
    """Return the steps: an agent restarts with its checkpoint after 20 s."""
    back = (agent_restarts(number), node(number, refuses=False), wait(20.0))
    return (node(number, refuses=True), *misses(number, seconds=20.0), *back)


SITUATIONS = (
    # An agent is down for 100 s, while its node and job go on.
    Situation("agent_away", [AWAY, *misses(1, seconds=100.0)]),
    # The agent of a dead rank's node is killed and restarts with its checkpoint.
    Situation(
        "agent_restarts_in_a_death",
        [exits(5, SIGSEGV), wait(40.0), AWAY, *misses(1, seconds=11.0), agent_restarts(1)],
        CRASH,
    ),
    # Scrapes of every node fail at intervals while a page is open.
    Situation(
        "scrapes_fail_in_a_death",
        [exits(5, SIGSEGV), *(step for number in (0, 1, 0, 1, 1, 0) for step in (wait(24.0), *misses(number)))],
        CRASH,
    ),
    # Prometheus reaches no node for 100 s while a page is open.
    Situation("cut_off_in_a_death", [exits(5, SIGSEGV), wait(60.0), *misses(0, 1, seconds=100.0)], CRASH),
    # One scrape of a node fails while its job runs.
    Situation("node_misses_a_scrape", misses(1)),
    # Prometheus reaches no node for two minutes while nothing happens.
    Situation("all_cut_off", misses(0, 1, seconds=120.0)),
    # An agent is killed and restarts without its checkpoint while a rank of another node is dead.
    Situation(
        "agent_without_checkpoint",
        [exits(1, SIGSEGV), wait(40.0), AWAY, *misses(1, seconds=11.0), agent_restarts(1, checkpoint=False)],
        {"RankDead 1 n0 crash": Due(0, 22)},
    ),
    # Prometheus scrapes each node as two targets; a rank crashes, torchrun ends the others.
    Situation("doubled_targets", [DOUBLED, exits(5, SIGSEGV), tears_down()], CRASH),
    # Prometheus scrapes each node as two targets; a rank is killed and the others wait.
    Situation("doubled_targets_and_a_kill", [DOUBLED, exits(5, SIGKILL)], KILLED),
    # One scrape in twenty fails while nothing happens, for half an hour.
    Situation("share_of_scrapes_lost", [loses_scrapes(0.05), wait(1800.0)]),
    # One scrape in fifty fails; a rank is killed and the others wait for half an hour.
    Situation(
        "death_with_scrapes_lost",
        [loses_scrapes(0.02), exits(5, SIGKILL), wait(1800.0)],
        {f"{DEAD} killed": Due(15, 60)},
    ),
    # One scrape in twenty fails while all ranks exit with status 0, and for ten minutes after.
    Situation("end_with_scrapes_lost", [loses_scrapes(0.05), exits(ALL, every=1.0), wait(601.0)]),
    # Prometheus is down for 100 s; a rank crashes in that time and torchrun ends the others.
    Situation(
        "away_at_the_death",
        [CUT_OFF, wait(30.0), exits(5, SIGSEGV), tears_down(), wait(70.0), REACHED],
        {f"{DEAD} crash": Due(100, 130)},
    ),
    # Prometheus is down for 100 s; the job ends in that time.
    Situation(
        "away_at_the_end", [node(0, 1, answers=False), wait(30.0), exits(ALL), wait(70.0), node(0, 1, answers=True)]
    ),
    # Each agent restarts with its checkpoint after 20 s, while the job runs; then a rank is killed.
    Situation(
        "agents_upgraded_one_by_one",
        [*upgraded(0), *upgraded(1), wait(120.0), exits(5, SIGKILL)],
        {f"{DEAD} killed": Due(215, 240)},
    ),
    # An agent is down for 30 s; in that time a rank of its node is killed, with an unknown status. The others wait.
    Situation(
        "job_dies_while_its_agent_is_away",
        [
            *(AWAY, node(1, answers=False), wait(10.0), exits(5, known=False)),
            *(wait(20.0), node(1, answers=True), agent_restarts(1)),
        ],
        {f"{DEAD} left info": Due(60, 130)},
    ),
    # The agent of one node is of an old version; a rank of the other node crashes.
    Situation("old_agent_beside_a_death", [OLD, exits(1, SIGSEGV)], {"RankDead 1 n0 crash": Due(0, 22)}),
    # The agent of one node is of an old version; the job ends.
    Situation("old_agent_beside_an_end", [OLD, exits(ALL, every=2.0), wait(2.0)]),
    # Another cluster has a job of the same id on nodes of the same names; here a rank is killed.
    Situation("two_clusters", [Play.add_cluster, exits(5, SIGKILL), HANG, wait(300.0)], KILLED),
    # Another cluster has a job of the same id on nodes of the same names; here the job is cancelled.
    Situation("two_clusters_and_an_end", [Play.add_cluster, tears_down(stay={2}), ended("CANCELLED"), wait(300.0)]),
)
