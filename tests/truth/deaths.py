"""Ranks that die while the job runs, and the ranks that the alerts name."""

from __future__ import annotations

from signal import SIGABRT, SIGBUS, SIGINT, SIGKILL, SIGSEGV, SIGTERM, SIGTRAP

from play import Due, Play, Situation
from site_of_agents import Job
from steps import ALL, HANG, N0, N1, RUNNING, ended, exits, starts, tears_down, wait

from agent.core.identity import RankLabel


def xid_of_rank_5(play: Play) -> None:
    """Let the driver report an Xid of the GPU of rank 5."""
    play.nodes[1].table.liveness.facts.hardware = lambda: {RankLabel("7", "5"): "xid_79"}


def jobs_of_an_array_fail(play: Play) -> None:
    """Let jobs of one rank each fail, one after the other."""
    for number in range(20):
        job = Job(play.site, f"9_{number}", [play.nodes[number % 2]], 1, user="bob")
        play.run(12.0)
        job.ranks[0].exit(code=2)
        play.run(3.0)


def two_torchruns_start(play: Play) -> None:
    """Start two torchruns, one on each node; each torchrun numbers its ranks from 0."""
    play.job.world = 4
    for number, rank in enumerate(play.ranks):
        rank.number = number % 4
        rank.start()


DEAD = "RankDead 5 n1"
CRASH = {f"{DEAD} crash": Due(0, 22)}
CRASH_1 = {"RankDead 1 n0 crash": Due(0, 22)}
FAIL_1 = {"RankDead 1 n0 fail info": Due(0, 22)}
LEFT = {f"{DEAD} left info": Due(45, 75)}
SITUATIONS = (
    # A rank crashes and torchrun ends the others within half a second.
    Situation("crash_and_teardown", [exits(1, SIGSEGV), tears_down()], CRASH_1),
    # A rank crashes and the others wait for it.
    Situation("crash_alone", [exits(5, SIGSEGV)], CRASH),
    # The OOM killer ends a rank, and the launcher restarts all after 20 s; half a minute later it ends another rank.
    Situation(
        "oom_soon_after_a_restart",
        [
            *(exits(1, SIGKILL, oom=True), tears_down(), wait(20.0), starts(), wait(30.0)),
            *(exits(5, SIGKILL, oom=True), tears_down()),
        ],
        {"RankDead 1 n0 oom": Due(0, 22, 20), f"{DEAD} oom": Due(50, 72)},
    ),
    # A rank fails; 20 s later all start again with the nodes exchanged; half a minute later the rank fails again.
    Situation(
        "fails_soon_after_an_exchange_of_nodes",
        [
            *(exits(5, code=1), tears_down(), wait(20.0), starts(N0, 1), starts(N1, 0), wait(30.0)),
            *(exits(5, code=1), tears_down()),
        ],
        {f"{DEAD} fail info": Due(0, 22, 20), "RankDead 5 n0 fail info": Due(50, 72)},
    ),
    # The OOM killer ends a rank and the others wait.
    Situation("oom_alone", [exits(5, SIGKILL, oom=True)], {f"{DEAD} oom": Due(0, 22)}),
    # A rank exits with status 7; srun -K ends the others, two of which stay until SIGKILL (KillWait).
    Situation(
        "status_and_teardown", [exits(0, code=7), tears_down(stay={3, 6})], {"RankDead 0 n0 fail info": Due(0, 22)}
    ),
    # A rank is killed; the others wait.
    Situation("killed_alone", [exits(5, SIGKILL)], {f"{DEAD} killed": Due(15, 35)}),
    # A rank is killed and mpirun ends the others.
    Situation("killed_before_teardown", [exits(1, SIGKILL), tears_down()], {"RankDead 1 n0 torn": Due(0, 22)}),
    # A rank is killed; 17 s later all others fail.
    Situation(
        "killed_and_others_fail_late",
        [exits(5, SIGKILL), wait(17.0), exits(RUNNING, code=1)],
        {f"{DEAD} torn": Due(17, 42)},
    ),
    # The only rank of a node is killed; the launcher ends those of other nodes within a second.
    Situation(
        "killed_alone_on_its_node",
        [exits(1, SIGKILL), wait(1.0), exits(RUNNING, SIGTERM)],
        {"RankDead 1 n1 killed": Due(0, 25)},
        nodes=3,
        per_node=1,
    ),
    # One rank exits with status 0 before the others; the others wait.
    Situation("left_alone", [exits(5)], LEFT),
    # One rank exits with an unknown status; the others wait.
    Situation("unknown_end", [exits(5, known=False)], LEFT),
    # A rank crashes and is restarted on another node 40 s later.
    Situation(
        "returns_elsewhere",
        [exits(1, SIGSEGV), wait(40.0), starts(slice(1, 2), 2)],
        {"RankDead 1 n0 crash": Due(0, 22, 40)},
        nodes=3,
        per_node=2,
    ),
    # A rank crashes and is restarted on its node 60 s later.
    Situation("returns_here", [exits(5, SIGSEGV), wait(60.0), starts(5)], {f"{DEAD} crash": Due(0, 22, 60)}),
    # A rank crashes; eight seconds later the ranks of another node raise, because their connections broke.
    Situation("crash_and_late_raise", [exits(1, SIGSEGV), HANG, wait(8.0), exits(N1, code=1)], CRASH_1),
    # A rank is killed; its launcher ends the others seven seconds later.
    Situation(
        "killed_and_slow_teardown", [exits(1, SIGKILL), wait(7.0), tears_down()], {"RankDead 1 n0 torn": Due(7, 30)}
    ),
    # A rank crashes, returns after half a minute and crashes again 15 s later.
    Situation(
        "returns_and_dies_alike",
        [exits(5, SIGSEGV), wait(30.0), starts(5), wait(15.0), exits(5, SIGSEGV)],
        {f"{DEAD} crash info": Due(0, 22)},
        warm_up=300.0,
    ),
    # Two ranks of one node crash 20 s apart; the others wait.
    Situation("two_deaths", [exits(5, SIGSEGV), wait(20.0), exits(6, SIGSEGV)], CRASH),
    # A rank crashes and a rank of another node is ended two seconds later; the others wait.
    Situation("crash_and_one_ended", [exits(1, SIGSEGV), HANG, wait(2.0), exits(12, SIGTERM)], CRASH_1, per_node=8),
    # A rank of a job of 32 exits with status 1; srun -K ends the others.
    Situation(
        "large_job_fails",
        [exits(9, code=1), wait(1.0), tears_down()],
        {"RankDead 9 n1 fail": Due(0, 22)},
        nodes=4,
        per_node=8,
    ),
    # A job hangs for an hour, then a rank is killed.
    Situation("hang_then_death", [HANG, wait(3600.0), exits(5, SIGKILL)], {f"{DEAD} killed": Due(3615, 3635)}),
    # A rank crashes and the others wait for an hour.
    Situation("dead_for_hours", [exits(5, SIGSEGV), HANG, wait(3600.0)], CRASH),
    # A rank crashes; the ranks of the other node abort one and two seconds later.
    Situation(
        "crash_and_aborts",
        [exits(1, SIGSEGV), wait(1.2), exits(4, SIGABRT), wait(1.0), exits(slice(5, 8), SIGABRT)],
        CRASH_1,
    ),
    # A rank exits with status 1; eight seconds later a rank of another node crashes because its connection broke.
    Situation("abort_then_crash_elsewhere", [exits(1, code=1), wait(8.0), exits(5, SIGSEGV)], FAIL_1),
    # A rank has a bus error; the others wait.
    Situation("bus_error", [exits(5, SIGBUS)], CRASH),
    # All ranks crash within a second, because of a bug.
    Situation(
        "all_crash_alike",
        [exits(ALL, SIGSEGV)],
        {"RankDead 0 n0 crash info": Due(0, 22), "RankDead 4 n1 crash info": Due(0, 22)},
    ),
    # One rank exits by SIGINT; the others wait.
    Situation("interrupted", [exits(5, SIGINT)], LEFT),
    # One rank exits with status 3; the others wait.
    Situation("status_alone", [exits(5, code=3)], {f"{DEAD} fail info": Due(0, 22)}),
    # One rank exits with status 137, like a shell whose child got SIGKILL; the others wait.
    Situation("status_of_a_shell", [exits(5, code=137)], LEFT),
    # One rank is ended by SIGTERM; the others wait.
    Situation("asked_to_leave", [exits(5, SIGTERM)], LEFT),
    # Two of eight ranks exit with status 0; the others wait.
    Situation("two_leave", [exits(5), exits(6)], {f"{DEAD} left info": Due(180, 205)}),
    # A rank is killed; five seconds later all others raise, because their connections broke.
    Situation(
        "killed_then_peers_raise",
        [exits(1, SIGKILL), wait(5.0), exits(RUNNING, code=1)],
        {"RankDead 1 n0 torn": Due(5, 25)},
    ),
    # A rank is killed; a second later its node's others raise. No launcher ends them: Ray's actors, srun without -K.
    Situation(
        "killed_then_peers_raise_on_its_node",
        [exits(1, SIGKILL), wait(1.0), exits(RUNNING, code=1)],
        {"RankDead 1 n0 torn": Due(0, 22)},
        nodes=1,
    ),
    # A rank of a job that is five minutes old is killed; the others wait.
    Situation("killed_in_a_young_job", [exits(5, SIGKILL)], {f"{DEAD} killed info": Due(15, 35)}, warm_up=300.0),
    # A rank of a job that is five minutes old crashes and torchrun ends the others.
    Situation(
        "crash_in_a_young_job", [exits(5, SIGSEGV), tears_down()], {f"{DEAD} crash info": Due(0, 22)}, warm_up=300.0
    ),
    # The OOM killer ends a rank of a job that is five minutes old.
    Situation(
        "oom_in_a_young_job", [exits(5, SIGKILL, oom=True), tears_down()], {f"{DEAD} oom": Due(0, 22)}, warm_up=300.0
    ),
    # A rank exits with status 1 after an Xid of its GPU; torchrun ends the others.
    Situation("failed_hardware", [xid_of_rank_5, exits(5, code=1), tears_down()], {f"{DEAD} fail": Due(0, 22)}),
    # Ranks of two nodes crash half a second apart, so that scrapes cannot tell the order.
    Situation("two_deaths_on_two_nodes", [exits(1, SIGSEGV), wait(0.5), exits(5, SIGBUS)], CRASH_1 | CRASH),
    # A rank crashes, and 15 minutes later a rank of another node crashes; the others wait.
    Situation(
        "two_deaths_a_quarter_of_an_hour_apart",
        [exits(1, SIGSEGV), wait(900.0), exits(5, SIGSEGV)],
        CRASH_1 | {f"{DEAD} crash": Due(900, 922)},
    ),
    # A rank crashes; ten minutes later its user cancels the job.
    Situation("death_then_cancel", [exits(5, SIGSEGV), wait(600.0), tears_down(stay={2}), ended("CANCELLED")], CRASH),
    # A rank fails; two seconds later its launcher kills the others, the highest number first.
    Situation(
        "killed_by_a_launcher_in_its_own_order",
        [*(exits(1, code=1), wait(2.3), exits(slice(7, 1, -1), SIGKILL, every=0.3)), *(wait(0.3), exits(0, SIGKILL))],
        FAIL_1,
    ),
    # Jobs of one rank each (an array) fail one after the other on the nodes of a job that goes on.
    Situation(
        "many_failing_jobs",
        [jobs_of_an_array_fail],
        {f"RankDead 0 n{n % 2} fail info 9_{n}": Due(12 + 15 * n, 34 + 15 * n) for n in range(20)},
    ),
    # A rank ends by SIGTERM, and a rank of another node by SIGKILL 40 s later; the others stay, so it was no cancel.
    Situation(
        "killed_at_the_sigterm_of_a_peer",
        [exits(1, SIGTERM), wait(40.0), exits(5, SIGKILL), wait(300.0)],
        {f"{DEAD} killed": Due(300, 325)},
    ),
    # A rank exits with status 0, and half a minute later another one crashes; the others wait for both.
    Situation(
        "one_finishes_and_one_crashes",
        [exits(1), wait(30.0), exits(5, SIGSEGV), HANG, wait(300.0)],
        {f"{DEAD} crash": Due(300, 325)},
    ),
    # A rank ends by SIGTERM, half a minute later another one aborts, and a third fails with it; the others wait.
    Situation(
        "one_leaves_and_one_aborts",
        [exits(1, SIGTERM), wait(30.0), exits(5, SIGABRT), wait(5.0), exits(6, code=1), HANG, wait(300.0)],
        {f"{DEAD} fail info": Due(300, 325)},
    ),
    # A job runs two torchruns of four ranks each, one per node; a rank of one torchrun is killed.
    Situation(
        "two_trainings_in_one_job",
        [exits(ALL), wait(1000.0), two_torchruns_start, wait(700.0), exits(5, SIGKILL), wait(120.0)],
        {"RankDead 1 n1 killed": Due(1715, 1735)},
    ),
    # A rank of a job of 256 crashes and the launcher ends all others within two seconds.
    Situation(
        "crash_of_one_of_many",
        [exits(200, SIGSEGV), tears_down(seconds=2.0)],
        {"RankDead 200 n6 crash": Due(0, 22)},
        nodes=8,
        per_node=32,
    ),
    # A rank ends by SIGTRAP, its launcher ends the node's others; the other node's ranks raise eight seconds later.
    Situation(
        "trap_and_late_raise",
        [exits(1, SIGTRAP), HANG, wait(8.0), exits(slice(8, 16), code=1), tears_down()],
        CRASH_1,
        per_node=8,
    ),
    # A rank has exited with an unknown status; the ranks of the other node abort two seconds later.
    Situation(
        "unknown_end_and_aborts",
        [exits(1, known=False), HANG, wait(2.0), exits(slice(8, 16), SIGABRT)],
        {"RankDead 8 n1 fail": Due(0, 22)},
        per_node=8,
    ),
    # A rank aborts; its launcher ends the other node's ranks half a second later, and then those of its own node.
    Situation(
        "abort_and_teardown_elsewhere",
        [exits(1, SIGABRT), wait(0.5), exits(N1, SIGTERM), wait(1.0), tears_down()],
        FAIL_1,
    ),
)
