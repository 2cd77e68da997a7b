"""NIXL-EP: plans, output of ranks and launchers, and the progress of a run."""

from __future__ import annotations

import json

import pytest

from exporters.nixl_ep import job_run, plan, run
from exporters.nixl_ep.job_run import SrunEnd, is_excuse, read_completed, read_failure
from exporters.nixl_ep.plan import Plan, read_plan
from exporters.nixl_ep.run import Launch, NodeRun, RankRun, StageTimes, is_leaving

PHASES = [[0, 1, 2, 3], [*range(8)], [0, 1, 2, 3, 4, -6, 7], [*range(8)]]
ME = "global_rank=5, local_rank=1 -> "
AT = 100.0


def planned(phases: object) -> Plan:
    """Return a plan that must be valid."""
    result = read_plan(json.dumps(phases).encode())
    assert result is not None
    return result


def taken(lines: list[str]) -> NodeRun:
    """Return a run after these lines, read one each second."""
    run_of_lines = NodeRun()
    for second, line in enumerate(lines):
        run_of_lines.take(line, AT + second)
    return run_of_lines


def test_planned_removals() -> None:
    """A rank is killed in the phase with its negative number; it is removed after the last adjacent phase with it."""
    result = planned(PHASES)
    assert [result.is_killed(*of) for of in ((6, 2), (6, 1), (5, 2), (6, 4))] == [True, False, False, False]
    after = ((5, 1), (5, 0), (6, 1), (0, 2), (0, 3), (0, 4), (0, -1))
    assert [of for of in after if result.is_removed_after(*of)] == [(5, 1), (0, 3)]


def test_phases_with_names() -> None:
    """A phase can be an object with `ranks` and `killed`, or a list: -N kills rank N, but -0 kills no rank."""
    named = [{"ranks": [0, 1, 2]}, {"ranks": [0, 1, 2], "killed": [2]}, {"ranks": [0, -1]}]
    assert planned(named).phases == planned([[0, 1, 2], [0, 1, -2], [0, -1]]).phases
    assert planned([[-0, 1]]).phases[0].expected == frozenset({0, 1})


@pytest.mark.slow
def test_bounds_of_plans() -> None:
    """Phases, ranks and bytes are read up to their limits; a larger plan, a cut plan and other text are refused."""
    assert read_plan(json.dumps([[0]] * plan.MAX_PHASES).encode()) is not None
    assert read_plan(b'[{"x": ' + b"[" * 20_000) is None
    assert read_plan(json.dumps([[0]] * (plan.MAX_PHASES + 1)).encode()) is None
    assert read_plan(json.dumps([[plan.RANK_LIMIT - 1]]).encode()) is not None
    assert read_plan(json.dumps([[plan.RANK_LIMIT]]).encode()) is None
    assert read_plan(b"[[0]]".ljust(plan.MAX_PLAN_BYTES)) is not None
    assert read_plan(b"[[0]]".ljust(plan.MAX_PLAN_BYTES + 1)) is None
    assert read_plan(json.dumps([[*range(plan.MAX_RANKS)]] * 17).encode()) is None
    for raw in (b"", b"[]", b"{}", b"[[0, 1.5]]", b"[[0", b'[["0"]]', b'[{"killed": [1]}]', b"\xff"):
        assert read_plan(raw) is None


RECORDS: dict[str, NodeRun] = {
    "Process 1 -> global_rank=5, local_rank=1": NodeRun({5: RankRun()}, [Launch(AT, {1: 5})]),
    f"{ME}start phase 0": NodeRun({5: RankRun(0, began_seconds=AT, said_seconds=AT)}),
    f"{ME}end phase 12": NodeRun({5: RankRun(ended=12, said_seconds=AT)}),
    f"{ME}end phase 1{ME}end phase 10": NodeRun({5: RankRun(ended=10, said_seconds=AT)}),
    f"{ME}done{ME}start phase 2": NodeRun({5: RankRun(2, began_seconds=AT, said_seconds=AT)}),
    f"{ME}this rank is being removed in this phase, exiting": NodeRun({5: RankRun(said_seconds=AT, left="removed")}),
    f"{ME}done": NodeRun({5: RankRun(said_seconds=AT, left="done")}),
    "[rank 2] Killing rank during dispatch/combine": NodeRun({2: RankRun(said_seconds=AT, left="killed")}),
    "Process 0 -> no plan phases were found for rank 8 after phase None, exiting": NodeRun(
        {8: RankRun(said_seconds=AT, left="no_phase")}
    ),
    f"{ME}adding connections to [4, 5]": NodeRun(),
    f"{ME}start phase 12345678": NodeRun(),
    "a word of the job": NodeRun(),
}


def test_records() -> None:
    """Each kind of record is read with its numbers; several records on one line are read in order."""
    for line, expected in RECORDS.items():
        assert taken([line]) == expected
        assert taken([f"[0] {line} trailing"]) == expected


def measured(line: str) -> dict[int, dict[str, StageTimes]]:
    """Return the measurements of each rank in a line."""
    return {number: rank.stages for number, rank in taken([line]).ranks.items() if rank.stages}


def test_measurements() -> None:
    """Bandwidths are in bytes per second, of one stage or of each; the mean time can be missing."""
    sample = "[rank {}] Dispatch + combine bandwidth: {} GB/s, avg_t=2.00 us, min_t=3.00 us, max_t=4.00 us"
    stages = measured(sample.format(1, "1.5e1") + sample.format(2, ".5"))
    assert stages == {1: {"combined": StageTimes(15e9)}, 2: {"combined": StageTimes(0.5e9)}}
    for times in ("", ", avg_t=43.2 us"):
        stages = measured(f"[rank 0] Dispatch bandwidth: 40.0 GB/s{times} | Combine bandwidth: 50.0 GB/s{times}")
        assert stages == {0: {"dispatch": StageTimes(40e9), "combine": StageTimes(50e9)}}
    for odd in ("inf", "nan", "-1.0", "1e30"):
        assert measured(sample.format(1, odd) + sample.format(2, "1.0")).keys() == {2}
        assert measured(f"[rank 0] Dispatch bandwidth: 40.0 GB/s | Combine bandwidth: {odd} GB/s") == {}


def test_bounds_of_lines() -> None:
    """Characters and records of a line are read up to their limits, and not beyond."""
    edge, last = f"{ME}start phase 1 ", f"{ME}start phase 2 "
    assert taken([edge * (run.MAX_RECORDS - 1) + last]).phase() == 2
    assert taken([edge * run.MAX_RECORDS + last]).phase() == 1
    for line in (
        " " * run.MAX_LINE_CHARACTERS + edge,
        f"global_rank={plan.RANK_LIMIT}, local_rank=1 -> start phase 1",
        f"global_rank=1, local_rank=1 -> start phase {run.MAX_PHASE + 1}",
    ):
        assert taken([line]) == NodeRun()


def leaving(lines: list[str], known: Plan | None) -> set[int]:
    """Return the ranks with a planned exit after these lines."""
    return {number for number, rank in taken(lines).ranks.items() if is_leaving(number, rank, known)}


def test_ranks_that_say_that_they_leave() -> None:
    """Without a plan, a rank's own line announces its exit, until the rank starts another phase."""
    lines = [f"{ME}start phase 1", f"{ME}this rank is being removed in this phase, exiting"]
    assert leaving(lines, None) == {5}
    assert leaving([*lines, f"{ME}start phase 3"], None) == set()
    assert leaving([f"{ME}start phase 0", f"{ME}end phase 0"], planned([[5]])) == {5}
    assert leaving([f"{ME}start phase 0"], planned([[5]])) == set()


def test_launches_of_a_node() -> None:
    """A repeated process number belongs to the next launch; the newest launches are kept."""
    launched = ((0, 3, 0), (1, 2, 1), (0, 7, 2))
    lines = [f"Process {process} -> global_rank={rank}, local_rank={local}" for process, rank, local in launched]
    assert taken(lines).launches == [Launch(100.0, {0: 3, 1: 2}), Launch(102.0, {0: 7})]
    many = taken(["Process 0 -> global_rank=7, local_rank=2"] * (run.MAX_LAUNCHES + 1))
    assert len(many.launches) == run.MAX_LAUNCHES


def test_ranks_of_a_run_are_bounded() -> None:
    """Ranks are kept up to the limit, and not beyond."""
    result = taken([f"global_rank={rank}, local_rank=0 -> start phase 0" for rank in range(run.MAX_RANKS + 1)])
    assert len(result.ranks) == run.MAX_RANKS


FAILURES = {
    "Primary NIXL EP launch exited before phase 0 completed": "primary_exited",
    "python3: can't open file '/x.py': [Errno 2]": "no_script",
    "Traceback (most recent call last):": "traceback",
    "Timed out waiting for NIXL EP master services on 10.0.0.1": "services_timeout",
    "Process 0 -> no plan phases were found for rank 8 after phase None, exiting": "no_plan_phase",
    "RuntimeError: recvValueWithTimeout failed": "receive_timeout",
    "watchdog timed out after 300000ms": "collective_timeout",
    "Failed to prepare remote memory view": "remote_memory",
    "Timed out waiting for phase 2 to complete": "phase_timeout",
    "Detected an early NIXL EP failure while waiting for phase 3": "early_failure",
    "srun: error: n1: task 0: Exited with exit code 1": "srun_error",
    "n1: Exited with exit code 1": "exit_code",
    "All NIXL EP launches completed successfully": "",
}


def test_steps_of_the_launcher() -> None:
    """The launcher's steps are read with the phase that they name."""
    line = "Detected completion of phase {} in /o/nixl-ep-node-0.log"
    phases = {1: 1, 10: 10, run.MAX_PHASE: run.MAX_PHASE, run.MAX_PHASE + 1: None}
    assert {phase: read_completed(line.format(phase)) for phase in phases} == phases
    assert read_completed("Waiting for phase 1 before starting phase 2...") is None
    assert is_excuse("All NIXL EP launches completed successfully")
    assert is_excuse("Ignoring provisional NIXL EP planned-rank-removal exit 143")
    assert not is_excuse("Waiting for phase 1 before starting phase 2...")


def test_failures_of_the_launcher() -> None:
    """A line is a failure of the first category that matches."""
    for line, category in FAILURES.items():
        assert read_failure(line) == category
    assert list(filter(None, FAILURES.values())) == list(job_run.CATEGORIES)


TRIPLE = (
    "srun: error: n[1,3-4]: tasks 2,4-5: Terminated",
    "srun: Terminating StepId=4711.3",
    "srun: Force Terminated StepId=4711.3",
)


def test_srun_that_the_plan_ends() -> None:
    """A planned end has all three lines, no other line of srun, and a plan that kills ranks."""
    for lines, kills, is_planned in (
        (TRIPLE, True, True),
        (TRIPLE, False, False),
        (TRIPLE[:2], True, False),
        (TRIPLE[1:], True, False),
        ((*TRIPLE, "srun: error: n1: task 0: Exited with exit code 1"), True, False),
        ((), True, False),
    ):
        result = SrunEnd()
        for line in lines:
            result.take(line)
        assert result.is_planned(plan_kills=kills) is is_planned
