"""Nodes that lose power, are cut off, replaced or renamed while a job runs on them."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM

from play import Due, Play, Situation, Step
from steps import (
    ALL,
    HANG,
    N0,
    N1,
    RUNNING,
    boots,
    ended,
    exits,
    job,
    loses_power,
    misses,
    node,
    starts,
    tears_down,
    wait,
)


def renamed(play: Play) -> None:
    """Rename a node in Prometheus."""
    play.site.rename(play.nodes[1], "m1")


def back_after(seconds: float, *, disk: bool = True) -> tuple[Step, ...]:
    """Return the steps: a node loses power and boots later; its job waits, and is cancelled five minutes later."""
    cancel = (exits(RUNNING, SIGTERM), ended("CANCELLED", 0), wait(120.0))
    return (*POWER, wait(seconds), boots(1, disk=disk), wait(300.0), *cancel)


def ended_after(seconds: float) -> tuple[Step, ...]:
    """Return the steps: a node loses power; the launcher ends the other ranks by SIGTERM later."""
    return (*POWER, wait(seconds), exits(N0, SIGTERM), wait(300.0))


POWER = (loses_power(1), HANG)
ON_NEW_NODE = (job(progresses=True), starts(N0, 0), starts(slice(4, None), 2), wait(160.0))
NEW_RUN = (*POWER, wait(160.0), exits(RUNNING, SIGTERM), wait(20.0), *ON_NEW_NODE)
DEAD = "RankDead 5 n1"
LOST = {"NodeLost n1": Due(20, 60)}
LATE = {"NodeLost n1": Due(190, 230)}
UNTIL_NEW_RUN = {"NodeLost n1": Due(20, 60, 170, 260)}
SITUATIONS = (
    # A node loses power and its job hangs.
    Situation("power", POWER, LOST),
    # A node loses power; the ranks of the other node abort 12 s later.
    Situation("power_and_abort", [*POWER, wait(12.0), exits(N0, SIGABRT)], LOST),
    # A node loses power; the ranks of the other node abort after ten minutes.
    Situation("power_and_late_abort", [*POWER, wait(600.0), exits(N0, SIGABRT)], LOST),
    # A node loses power and is back after five minutes without its ranks, while the job waits.
    Situation("power_and_boot", [*POWER, wait(300.0), boots(1), wait(60.0)], LOST),
    # A node loses power; the scheduler restarts the job on the other nodes three minutes later.
    Situation("power_and_new_run", NEW_RUN, UNTIL_NEW_RUN, nodes=3),
    # A rank crashes, and its own node loses power 30 s later.
    Situation(
        "crash_then_power",
        [exits(5, SIGSEGV), HANG, wait(30.0), loses_power(1)],
        {f"{DEAD} crash": Due(0, 22, 200), "NodeLost n1": Due(50, 270)},
    ),
    # A node loses power and its job waits for 25 minutes.
    Situation("power_for_long", [*POWER, wait(1500.0)], LOST),
    # A node without a disk loses power and boots ten minutes later without any record of the job, which waits.
    Situation("power_and_diskless_boot", [*POWER, wait(600.0), boots(1, disk=False), wait(200.0)], LOST),
    # The only node of a job loses power and does not come back; another node idles.
    Situation(
        "power_of_a_job_of_one_node",
        [loses_power(0), wait(1200.0)],
        {"NodeLost n0": Due(190, 230, 900, 300)},
        nodes=1,
        idle=1,
    ),
    # A node loses power and is no longer a target two minutes later; the job waits, and goes on with a new node.
    Situation(
        "node_replaced",
        [*(*POWER, wait(120.0), node(1, is_target=False), wait(200.0)), *(exits(N0, SIGTERM), wait(5.0), *ON_NEW_NODE)],
        {"NodeLost n1": Due(20, 60, 320, 260)},
        idle=1,
    ),
    # A node is cut off for 40 s; later its ranks exit, the job goes on without them, and the node is switched off.
    Situation(
        "cut_off_then_ranks_leave",
        [*misses(1, seconds=40.0), wait(100.0), exits(N1), job(world=4), wait(1000.0), loses_power(1)],
    ),
    # A node cannot be reached for five minutes; its ranks and the job go on.
    Situation("node_cut_off", misses(1, seconds=300.0), {"NodeLost n1": Due(190, 230, 300, 240)}),
    # A node cannot be reached for a minute while the job goes on.
    Situation("node_cut_off_shortly", misses(1, seconds=60.0)),
    # A node loses power; a minute later the OOM killer ends a rank of another node.
    Situation(
        "death_while_a_node_is_lost",
        [*POWER, wait(60.0), exits(1, SIGKILL, oom=True)],
        LOST | {"RankDead 1 n0 oom": Due(60, 82)},
    ),
    Situation("back_after_5_seconds", back_after(5.0), {"NodeLost n1": Due(0, 60, 290, 400)}),
    Situation("back_after_1800_seconds", back_after(1800.0), {"NodeLost n1": Due(20, 60, 2090, 400)}),
    Situation(
        "back_after_300_seconds_without_a_disk", back_after(300.0, disk=False), {"NodeLost n1": Due(20, 60, 590, 400)}
    ),
    # A node loses power; its peers abort after 12 s, the node is back after five minutes.
    Situation(
        "abort_and_boot",
        [*POWER, wait(12.0), exits(N0, SIGABRT), wait(300.0), boots(1), wait(900.0)],
        {"NodeLost n1": Due(20, 60, 200, 1000)},
    ),
    # A node is cut off for three minutes; all ranks abort 20 s after the cut. Later its exits are scraped.
    Situation(
        "cut_off_and_abort",
        [node(1, answers=False), HANG, wait(20.0), exits(ALL, SIGABRT), wait(160.0), node(1, answers=True)],
        {
            "NodeLost n1": Due(20, 60, 180, 240),
            "RankDead 0 n0 fail info": Due(180, 215),
            "RankDead 4 n1 fail info": Due(180, 215),
        },
    ),
    # A node loses power and the job restarts elsewhere; an hour later a rank is killed.
    Situation(
        "long_after_it_began_anew",
        [*NEW_RUN, wait(3600.0), exits(1, SIGKILL)],
        UNTIL_NEW_RUN | {"RankDead 1 n0 killed": Due(3950, 3980)},
        idle=1,
    ),
    # A node loses power, the job restarts elsewhere, and the node is back with the record of its last boot.
    Situation("boot_after_it_began_anew", [*NEW_RUN, wait(300.0), boots(1), wait(300.0)], UNTIL_NEW_RUN, idle=1),
    # A node loses power and the job restarts elsewhere; it loses a second node, and then the first node is back.
    Situation(
        "boot_while_another_node_is_lost",
        [*NEW_RUN, wait(300.0), loses_power(2), HANG, wait(300.0), boots(1), wait(300.0)],
        UNTIL_NEW_RUN | {"NodeLost n2": Due(660, 700)},
        idle=1,
    ),
    # A job is preempted and requeued, in part elsewhere; a minute later it loses a node and hangs.
    Situation(
        "power_soon_after_a_requeue",
        [
            *(exits(ALL, SIGTERM), ended("PREEMPTED"), wait(18.0), starts(N0, 2), starts(N1), wait(60.0)),
            *(loses_power(1), HANG),
        ],
        {"NodeLost n1": Due(98, 280)},
        idle=1,
    ),
    # A job of one node finishes and starts again on another node, which loses power.
    Situation(
        "power_after_a_run_that_finished",
        [exits(ALL), wait(60.0), starts(ALL, 1), wait(100.0), loses_power(1), wait(600.0)],
        {"NodeLost n1": Due(345, 400)},
        nodes=1,
        idle=1,
    ),
    # A node loses power and the job restarts elsewhere; the node is back, and the job's new node loses power.
    Situation(
        "power_after_a_node_is_back",
        [
            *(loses_power(0), wait(300.0), starts(ALL, 1), wait(70.0), boots(0), wait(200.0)),
            *(loses_power(1), wait(600.0)),
        ],
        {"NodeLost n0": Due(190, 230, 300, 300), "NodeLost n1": Due(755, 810)},
        nodes=1,
        idle=1,
    ),
    # A node gets another name in Prometheus while its ranks run.
    Situation("renamed", [renamed, wait(600.0)]),
    # A node loses power; two minutes later a machine without records gets its name; the job waits.
    Situation("replaced_by_another", [*POWER, wait(120.0), boots(1, disk=False), wait(600.0)], LOST),
    # Two nodes of four lose power together and the job hangs.
    Situation("two_nodes", [loses_power(1, 2), HANG], LOST | {"NodeLost n2": Due(20, 60)}, nodes=4),
    # A node loses power; ten minutes later another node does; the job waits.
    Situation(
        "two_nodes_one_after_the_other",
        [*POWER, wait(600.0), loses_power(2)],
        LOST | {"NodeLost n2": Due(620, 660)},
        nodes=4,
    ),
    # A rank is killed, and four minutes later another node loses power, while the job waits.
    Situation(
        "killed_then_power",
        [exits(5, SIGKILL), HANG, wait(240.0), loses_power(0)],
        {f"{DEAD} killed": Due(15, 35), "NodeLost n0": Due(260, 300)},
    ),
    # The ranks of one node fail four seconds before the other node loses power.
    Situation(
        "raise_before_the_silence",
        [exits(N0, code=1), wait(4.0), loses_power(1)],
        {"NodeLost n1": Due(20, 60, 200, 900)},
    ),
    # A node loses power and the other ranks go on without it.
    Situation("power_while_the_job_goes_on", [loses_power(1), wait(300.0)], LATE),
    # A rank crashes and its peers abort 2 s later; a minute later its node is drained and switched off.
    Situation(
        "node_of_the_crash_is_switched_off",
        [exits(1, SIGSEGV), wait(2.0), exits(RUNNING, SIGABRT), wait(60.0), loses_power(0), wait(1300.0)],
        {"RankDead 1 n0 crash": Due(0, 22, 250)},
        per_node=8,
    ),
    # A rank crashes and its peers fail; a minute later the other node is switched off.
    Situation(
        "other_node_is_switched_off",
        [exits(1, SIGSEGV), wait(8.0), exits(RUNNING, code=1), wait(60.0), loses_power(1), wait(600.0)],
        {"RankDead 1 n0 crash": Due(0, 22)},
    ),
    # A job goes on without one of three nodes, which is switched off; four minutes later a rank crashes and all end.
    Situation(
        "death_after_a_node_left",
        [
            *(exits(N0, SIGTERM), job(world=8), wait(10.0), loses_power(0), wait(230.0)),
            *(exits(5, SIGSEGV), wait(2.0), exits(RUNNING, code=1), wait(600.0)),
        ],
        {f"{DEAD} crash": Due(240, 262)},
        nodes=3,
    ),
    # Ranks of two nodes crash alike, a sign of a bug; a minute later one of the nodes is switched off.
    Situation(
        "node_of_a_like_crash_is_switched_off",
        [exits(1, SIGSEGV), exits(5, SIGSEGV), exits(RUNNING, SIGTERM), wait(60.0), loses_power(0), wait(600.0)],
        {"RankDead 1 n0 crash info": Due(0, 22, 240), f"{DEAD} crash info": Due(0, 22, 240)},
    ),
    # A rank crashes and starts again, then another rank crashes and all end; the first rank's node is switched off.
    Situation(
        "node_of_a_restarted_rank_is_switched_off",
        [
            *(exits(1, SIGSEGV), wait(35.0), starts(1), wait(15.0), exits(5, SIGSEGV), wait(2.0)),
            *(exits(RUNNING, SIGTERM), wait(60.0), loses_power(0), wait(600.0)),
        ],
        {"RankDead 1 n0 crash": Due(0, 22, 35), f"{DEAD} crash": Due(50, 72, 290)},
    ),
    # The same job runs without the node of its crash, and ends; then the nodes of this run are switched off.
    Situation(
        "nodes_of_a_requeued_job_are_switched_off",
        [
            *(exits(5, SIGSEGV), tears_down(), wait(60.0), starts(N1, 2), starts(N0), wait(240.0)),
            *(exits(ALL), wait(60.0), loses_power(0, 2), wait(600.0)),
        ],
        {f"{DEAD} crash": Due(0, 22, 60)},
        idle=1,
    ),
    # A node loses power while its job is being cancelled.
    Situation("power_in_an_end", [exits(N0, SIGTERM), loses_power(1), ended("CANCELLED", 0)]),
    # Prometheus can no longer reach one of two nodes; 30 s later a rank of that node crashes and peers raise.
    Situation(
        "death_in_an_outage",
        [
            *(node(1, answers=False), wait(30.0), exits(5, SIGSEGV), HANG),
            *(wait(3.0), exits(N0, code=1), wait(120.0), node(1, answers=True)),
        ],
        {"NodeLost n1": Due(20, 80, 150, 240), f"{DEAD} crash": Due(150, 190)},
    ),
    Situation("ended_by_its_launcher_after_15_seconds", ended_after(15.0), LATE),
    Situation("ended_by_its_launcher_after_60_seconds", ended_after(60.0), {"NodeLost n1": Due(20, 195)}),
    # An agent ends for good and its job goes on; an hour later a rank of another node is killed.
    Situation(
        "killed_long_after_an_agent_went",
        [node(1, refuses=True, answers=False), wait(4000.0), exits(1, SIGKILL), HANG],
        LATE | {"RankDead 1 n0 killed": Due(4015, 4035)},
    ),
    # A node loses power and its job waits for three hours.
    Situation("three_hours", [*POWER, wait(3 * 3600.0)], LOST),
)
