"""Jobs that users, launchers or the scheduler end or restart: no alert except for an earlier death."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM

from play import Due, Play, Situation
from steps import ALL, HANG, N0, N1, RUNNING, anew, ended, exits, job, loses_power, starts, tears_down, wait

from agent.core.identity import RankLabel


def plan_without_6_and_7(play: Play) -> None:
    """Let NIXL-EP's plan end ranks 6 and 7."""
    play.nodes[1].table.liveness.facts.of("nixl_ep").set_planned([RankLabel("7", "6"), RankLabel("7", "7")])


FINISH = (exits(ALL, every=0.7), wait(0.7))
FIRST_LEAVES = (exits(0), wait(3.5), exits(slice(1, 4)))
RESTART = (exits(1, code=1), tears_down(), wait(8.0), starts())
REQUEUED = (exits(ALL, SIGTERM), ended("PREEMPTED"), wait(18.0), starts())
ENDS = (
    # All ranks exit with status 0, over some seconds.
    Situation("finish", FINISH),
    # All ranks exit with status 0, over 40 s.
    Situation("slow_finish", [exits(ALL, every=5.0), wait(5.0)]),
    # SIGTERM to all; two stay and are killed after 30 s.
    Situation("cancel", [tears_down(stay={2, 6})]),
    # SIGTERM to all; two stay and are killed after 200 s; the scheduler records the end.
    Situation("cancel_long_kill_wait", [tears_down(stay={2, 6}, kill_wait=200.0), ended("CANCELLED")]),
    # After SIGTERM ranks save, and end one after the other, by SIGTERM or with status 0; the record comes later.
    Situation(
        "cancel_save_and_leave",
        [
            *(step for rank in range(8) for step in (wait(2.0), exits(rank, SIGTERM if rank % 2 else 0))),
            *(wait(5.0), ended("PREEMPTED")),
        ],
    ),
    # SIGKILL to all ranks at once.
    Situation("cancel_by_kill", [exits(ALL, SIGKILL)]),
    # The first node's ranks finish and the others abort, as at a normal end; later no alert fires either.
    Situation("first_node_leaves_and_others_abort", [exits(N0), wait(3.0), exits(N1, SIGABRT), wait(1300.0)]),
    # Rank 0 finishes and the others abort; a minute later the node of rank 0 is switched off.
    Situation(
        "first_node_leaves_and_is_switched_off",
        [exits(0), wait(3.0), exits(RUNNING, SIGABRT), wait(60.0), loses_power(0), wait(1300.0)],
    ),
    # The job ends, and its nodes are switched off a minute later.
    Situation("all_nodes_drained", [*FINISH, wait(60.0), loses_power(0, 1)]),
    # 256 ranks exit with status 0 over two minutes.
    Situation("ends_of_many", [exits(ALL, every=120 / 256), wait(120 / 256)], nodes=8, per_node=32),
    # One rank exits with status 0, and all others half a minute later.
    Situation("one_finishes_early", [exits(5), wait(30.0), exits(RUNNING)]),
    # SIGTERM to all; one rank of each node stays. After KillWait of 90 s one is killed, and the other 25 s later.
    Situation("kill_wait_by_node", [tears_down(stay={1, 6}, kill_wait=90.0, kill=[1]), wait(25.0), exits(6, SIGKILL)]),
    # Preempted ranks of three nodes save and exit with status 1; only one node has the scheduler's record.
    Situation("preempted_with_a_status", [exits(ALL, code=1), wait(2.0), ended("PREEMPTED", 1)], nodes=3),
    # SIGTERM to all; three ranks are stuck in the kernel and die after KillWait of 90 s.
    Situation("kill_wait_of_90_seconds", [tears_down(stay={1, 2, 6}, kill_wait=90.0)]),
    # SIGTERM to all; ranks save and exit with status 0 over 100 s.
    Situation("save_and_leave", [wait(12.5), exits(ALL, every=12.5)]),
    # SIGTERM to all; ranks that hang in the kernel die after KillWait of 200 s, without the scheduler's record.
    Situation("cancel_with_kill_wait_of_200_seconds", [tears_down(stay={2, 6}, kill_wait=200.0)]),
    # After SIGTERM to the launchers ranks save, and exit with status 0 or 1 over 40 s; the record comes at the end.
    Situation(
        "saved_and_failed",
        [*(step for rank in range(8) for step in (wait(5.0), exits(rank, code=rank % 2))), ended("TIMEOUT")],
    ),
    # The time limit: SIGTERM to all, SIGKILL to all that stay after KillWait, and the scheduler's record.
    Situation("time_limit", [tears_down(stay=range(8)), ended("TIMEOUT")]),
    # A plan removes two ranks; they exit with status 1 one after the other, and the others go on.
    Situation("planned_exits", [plan_without_6_and_7, exits(slice(6, 8), code=1, every=20.0), wait(20.0)]),
    # A plan removes two ranks; ten minutes later rank 0 exits with status 0, and a node's other ranks abort.
    Situation(
        "planned_exits_and_end",
        [plan_without_6_and_7, exits(slice(6, 8), SIGTERM), wait(600.0), *FIRST_LEAVES, exits(slice(4, 6), SIGABRT)],
    ),
    # An elastic job loses a node's ranks in order: its launcher restarts the others as a smaller job.
    Situation(
        "shrinks",
        [
            *(exits(slice(8, 12)), wait(3.0), job(world=8), exits(slice(8), SIGTERM)),
            *(wait(5.0), starts(slice(8)), wait(300.0)),
        ],
        nodes=3,
    ),
    # The smaller job ends normally twelve minutes later: rank 0 exits with status 0, and a node's ranks abort.
    Situation(
        "shrinks_and_ends",
        [
            *(exits(slice(8, 12)), wait(3.0), job(world=8), exits(slice(8), SIGTERM), wait(5.0), starts(slice(8))),
            *(wait(700.0), *FIRST_LEAVES, exits(N1, SIGABRT)),
        ],
        nodes=3,
    ),
    # The only rank of a job exits with status 0.
    Situation("job_of_one_rank_ends", [exits(0)], nodes=1, per_node=1),
    # The nodes of a job end one after the other, 50 s apart, with status 0.
    Situation("ends_node_by_node", [exits(N0), wait(50.0), exits(N1), wait(50.0), exits(slice(8, 12))], nodes=3),
    # A cloud switches the nodes off eleven seconds after the job has ended.
    Situation("switched_off_at_the_end", [exits(ALL), wait(11.0), loses_power(0, 1)]),
    # Rank 0 exits with status 0; the other node's ranks abort 3.5 s later, because their store is gone.
    Situation("first_rank_leaves_and_others_abort", [*FIRST_LEAVES, exits(N1, SIGABRT)]),
    # Rank 0 exits with status 0; 1.9 s later a node's ranks do; 0.6 s after that another node's ranks abort.
    Situation(
        "some_leave_just_before_the_abort",
        [exits(0), wait(1.9), exits(N1), wait(0.6), exits(slice(8, 12), SIGABRT), wait(5.0), exits(RUNNING)],
        nodes=3,
    ),
    # SIGTERM ends the ranks of one node; the other node's ranks abort 3.5 s later, before the cancel arrives there.
    Situation("cancel_that_comes_to_one_node_first", [exits(N0, SIGTERM), wait(3.5), exits(N1, SIGABRT)]),
)
RESTARTS = (
    # A rank fails, and torchrun ends the others and restarts all within ten seconds.
    Situation("restart_in_place", RESTART),
    # The job is requeued under its id within 20 s, on two of its three nodes; the old run's epilog is late.
    Situation(
        "requeued_elsewhere",
        [*(exits(ALL, SIGTERM), wait(15.0), starts(N0, 2), starts(slice(4, 12), 1)), *(wait(10.0), ended("PREEMPTED"))],
        nodes=3,
    ),
    # The job starts again with its nodes exchanged and ends within a minute: rank 0 exits, the others abort.
    Situation(
        "ends_soon_after_an_exchange_of_nodes",
        [
            *(exits(ALL, SIGTERM), wait(4.0), starts(N0, 1), starts(N1, 0), wait(52.0)),
            *(*FIRST_LEAVES, exits(RUNNING, SIGABRT)),
        ],
    ),
    # SIGTERM to all; a node's ranks start on another node after 5 s; the others stay until SIGKILL, and start later.
    Situation(
        "replaced_one_node_after_the_other",
        [exits(N0, SIGTERM), wait(5.0), starts(N0, 2), wait(25.0), exits(N1, SIGKILL), wait(90.0), starts(N1)],
        idle=1,
    ),
    # A rank crashes; the job is requeued without its node and ends well; the cloud takes the nodes of the second run.
    Situation(
        "nodes_of_the_second_run_are_switched_off",
        [
            *(exits(5, SIGSEGV), tears_down(), wait(60.0), starts(N1, 2), starts(N0), wait(240.0)),
            *(exits(ALL), wait(60.0), loses_power(0, 2), wait(1000.0)),
        ],
        {"RankDead 5 n1 crash": Due(0, 22, 60)},
        idle=1,
    ),
    # A rank crashes; the job is requeued without its node, ends well, and is forgotten.
    Situation(
        "requeued_without_the_node_of_the_death",
        [
            *(exits(1, SIGSEGV), tears_down(), wait(80.0), starts(N0, 2), starts(N1), wait(60.0), exits(ALL)),
            wait(1300.0),
        ],
        {"RankDead 1 n0 crash": Due(0, 22, 80)},
        idle=1,
    ),
    # A rank crashes; the job is requeued without its node, another rank crashes, and its peers fail 8 s later.
    Situation(
        "crashes_again_elsewhere",
        [
            *(exits(1, SIGSEGV), tears_down(), wait(60.0), starts(N0, 2), starts(N1, 1), wait(750.0)),
            *(exits(5, SIGSEGV), wait(8.0), exits(RUNNING, code=1), wait(1300.0)),
        ],
        {"RankDead 1 n0 crash": Due(0, 22, 60), "RankDead 5 n1 crash": Due(810, 845, 1720, 240)},
        idle=1,
    ),
    # The job fails and its launcher restarts it three times; then it goes on.
    Situation("fails_again_and_again", [*RESTART, wait(120.0)] * 3),
    # A rank fails and torchrun, which has restarts left, restarts all ranks after 28 s.
    Situation("torchrun_starts_anew", [anew(0, 2), exits(1, code=1), tears_down(), wait(28.0), anew(1, 2)]),
    # A rank fails and torchrun, which says that it has restarts left, ends.
    Situation(
        "torchrun_gives_up", [anew(0, 2), exits(1, code=1), tears_down()], {"RankDead 1 n0 fail info": Due(715, 745)}
    ),
    # A rank crashes; 80 s later the job starts again on an old node, and minutes later on a new node, too.
    Situation(
        "anew_and_slowly",
        [exits(1, SIGSEGV), tears_down(), wait(80.0), starts(N0, 1), wait(200.0), starts(N1, 2)],
        {"RankDead 1 n0 crash": Due(0, 22, 80)},
        idle=1,
    ),
    # The job is preempted and requeued under its id on the same nodes within 20 s; the old run's epilog is late.
    Situation("requeued_on_the_same_nodes", [exits(ALL, SIGTERM), wait(18.0), starts(), wait(4.0), ended("PREEMPTED")]),
    # A rank crashes, srun ends the others, and the job is requeued on the same nodes after a minute.
    Situation(
        "requeued_after_a_crash",
        [exits(1, SIGSEGV), tears_down(), wait(60.0), starts()],
        {"RankDead 1 n0 crash": Due(0, 22, 60)},
    ),
    # A launcher restarts all ranks; eleven minutes later a rank is killed.
    Situation(
        "death_after_a_restart", [*RESTART, wait(660.0), exits(5, SIGKILL)], {"RankDead 5 n1 killed": Due(680, 710)}
    ),
    # A rank that exited with status 1 is restarted within five seconds, while the others go on.
    Situation("one_rank_begins_anew", [exits(5, code=1), wait(4.0), starts(5)]),
    # Twice, 20 minutes apart, the job is preempted with status 1 and requeued on its nodes; only one has the record.
    Situation(
        "preempted_twice",
        [exits(ALL, code=1), wait(2.0), ended("PREEMPTED", 1), wait(18.0), starts(), wait(1300.0)] * 2,
        nodes=3,
    ),
    # The job is requeued on its nodes; 20 minutes later a rank crashes and the others wait for half an hour.
    Situation(
        "dead_for_long_after_a_requeue",
        [*REQUEUED, wait(1300.0), exits(5, SIGSEGV), HANG, wait(2000.0)],
        {"RankDead 5 n1 crash": Due(1318, 1340)},
    ),
    # The job is requeued on its nodes; four minutes later one node loses power.
    Situation(
        "power_after_a_requeue",
        [*REQUEUED, wait(240.0), loses_power(1), HANG, wait(300.0)],
        {"NodeLost n1": Due(278, 318)},
    ),
    # The only rank of a node is killed and its peers fail; torchrun, which has restarts left, restarts all.
    Situation(
        "killed_with_restarts_left",
        [anew(0, 2), exits(1, SIGKILL), wait(5.0), exits(RUNNING, code=1), wait(20.0), anew(1, 2)],
        nodes=3,
        per_node=1,
    ),
    # A rank crashes; a minute later torchrun restarts all on two of three nodes, as a job of eight.
    Situation(
        "restarts_without_its_last_node",
        [exits(9, SIGSEGV), tears_down(), wait(60.0), job(world=8), starts(slice(8)), wait(300.0)],
        {"RankDead 9 n2 crash": Due(0, 22, 60)},
        nodes=3,
    ),
)
