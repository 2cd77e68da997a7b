"""NIXL-EP: the series of a job's run, and the ranks whose exit the plan expects."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporter_node import ExporterNode
from rank_table import view

from agent.sdk.files import JobLines
from agent.sdk.ranks import ProcessKey, RankView
from agent.system import whole_file
from exporters.nixl_ep import exporter, job_run
from exporters.nixl_ep.exporter import (
    FILE_CLOCK_SECONDS,
    SLACK_SECONDS,
    NixlEpConfig,
    NixlEpExporter,
    node_index,
    numbers_of,
    planned_names,
)
from exporters.nixl_ep.job_run import SETTLE_SECONDS, JobRun
from exporters.nixl_ep.plan import Plan, read_plan
from exporters.nixl_ep.run import Launch

ME = os.getuid()
PHASES = [[0, 1, 2, 3], [0, 1, 2, -3], [0, 1]]
COMPLETED = "Detected completion of phase {} in /o/nixl-ep-node-0.log"


def plan_of(phases: list[list[int]]) -> Plan:
    """Return a valid plan."""
    plan = read_plan(json.dumps(phases).encode())
    assert plan is not None
    return plan


def lines(*texts: str, path: str = "/o/nixl-ep-node-0.log", seconds: float = 100.0, generation: int = 0) -> JobLines:
    """Return lines that were read from a file."""
    return JobLines("4711", path, generation, seconds, list(texts))


def run_of(*read: JobLines) -> JobRun:
    """Return a job's run after these lines."""
    run = JobRun()
    for entry in read:
        run.take(entry)
    return run


def edge(rank: int, what: str, phase: int) -> str:
    """Return a rank's line about a phase."""
    return f"global_rank={rank}, local_rank={rank} -> {what} phase {phase}"


class EpNode(ExporterNode):
    """A node with ranks 0 to 3 of job 4711, which write one log."""

    def __init__(self, folder: Path, names: str = "out/nixl-ep-node-*.log") -> None:
        config = NixlEpConfig(paths=[f"{folder}/{names}"])
        super().__init__("nixl_ep", folder, lambda: NixlEpExporter(config))
        self.run_folder = folder / (os.path.dirname(names).replace("%j", "4711"))
        self.run_folder.mkdir()
        self.log = self.run_folder / "nixl-ep-node-0.log"
        self.log.touch()
        for rank in range(4):
            self.observe(10 + rank, rank, ME)
            self.proc.add(10 + rank, uid=ME)
            self.proc.hold(10 + rank, self.log)
        self.start()

    def say(self, *texts: str) -> None:
        """Append lines to the node's log."""
        with self.log.open("a") as file:
            file.writelines(f"{text}\n" for text in texts)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EpNode]:
    """Provide a node."""
    made = EpNode(tmp_path)
    yield made
    made.end()


def test_planned_kill_is_marked_in_its_phase(node: EpNode) -> None:
    """Only a rank that the plan kills is marked, from the start of the phase that kills it."""
    (node.run_folder / "nixl-ep-plan.json").write_text(json.dumps(PHASES))
    node.say(*(edge(rank, what, 0) for what in ("start", "end") for rank in range(4)))
    assert [name for name in node.look() if "planned" in name] == []
    node.say(*(edge(rank, "start", 1) for rank in range(4)))
    shown = node.look()
    assert [name for name in shown if "planned" in name] == ["planned_exit/4711/3"]
    assert shown["nixl_ep_expected_ranks/4711"] == 3.0
    assert (shown["nixl_ep_phase/4711/3/begun"], shown["nixl_ep_phase/4711/3/ended"]) == (1.0, 0.0)


def test_half_written_plan_leaves_the_last(node: EpNode) -> None:
    """While a plan is rewritten, the previous plan stays."""
    node.say(edge(3, "start", 0))
    for text, is_planned in (("[[0, 1, 2, -3]]", True), ("[[0, 1", True), ("[[0, 1, 2, 3]]", False)):
        (node.run_folder / "nixl-ep-plan.json").write_text(text)
        assert ("planned_exit/4711/3" in node.look()) is is_planned


def test_a_plan_of_another_user_is_ignored(node: EpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan must belong to the log's user."""
    owners: list[object] = []
    monkeypatch.setattr(whole_file, "read_changed", lambda *given: owners.append(given[-1]))
    node.look()
    assert owners == [ME]


@pytest.mark.parametrize("name", [b"out", b"\xff"])
def test_runs_go_on_after_a_restart(tmp_path: Path, name: bytes) -> None:
    """After a restart of the agent each rank has the same phase, even if the directory's name is not UTF-8."""
    node = EpNode(tmp_path, f"{os.fsdecode(name)}/nixl-ep-node-*.log")
    node.say(edge(0, "start", 2))
    before = node.look()
    assert before["nixl_ep_phase/4711/0/begun"] == 2.0
    node.restart()
    assert node.look() == before
    node.end()


def test_newest_directory_counts() -> None:
    """A run in a newer directory replaces the older one, and a truncated log is a new run."""
    newer = lines(edge(1, "start", 0), path="/new/nixl-ep-node-0.log", seconds=200.0)
    assert set(run_of(lines(edge(0, "start", 7)), newer, lines(edge(2, "start", 7))).ranks()) == {1}
    assert set(run_of(lines(edge(0, "start", 7)), lines(edge(1, "start", 0), generation=1)).ranks()) == {1}


def test_a_run_that_writes_its_logs_again_has_no_old_failure() -> None:
    """The first log that starts again ends the old run's failure; the next such log keeps the new run's failure."""
    fail, paths = "Traceback (most recent call last):", [f"/o/nixl-ep-node-{node}.log" for node in (0, 1)]
    run = run_of(*(lines(fail, path=path) for path in paths), lines(edge(0, "start", 0), generation=1))
    assert not run.failure(None, 200.0)
    for path in paths:
        run.take(lines(fail if path == paths[0] else edge(1, "start", 0), path=path, generation=1))
    assert run.failure(None, 200.0) == "traceback"


def test_logs_of_a_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run, at most MAX_LOGS node logs are read; the launcher's log is always read."""
    monkeypatch.setattr(job_run, "MAX_LOGS", 2)
    run = JobRun()
    for node in range(3):
        run.take(lines(edge(node, "start", 0), COMPLETED.format(3), path=f"/o/nixl-ep-node-{node}.log"))
    assert run.completed is None
    run.take(lines(edge(9, "start", 0), COMPLETED.format(9), COMPLETED.format(10), path="/o/stdout.txt"))
    assert (set(run.ranks()), run.completed) == ({0, 1}, 10)


def test_ranks_of_a_run_are_bounded(node: EpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of a run's entries neither logs nor launches add an entry."""
    monkeypatch.setattr(job_run, "MAX_ENTRIES", 8)
    run = run_of(lines(*(f"Process {process} -> global_rank=5, local_rank=1" for process in range(5))))
    assert not run.is_full()  # a log, a rank, and five numbers of a launch
    run.take(lines("Process 0 -> global_rank=5, local_rank=1"))
    assert run.is_full()
    node.say(*(edge(rank, "start", 0) for rank in range(7)))
    node.look()
    node.say(edge(0, "start", 1))
    assert node.look()["nixl_ep_phase/4711/0/begun"] == 0.0


def test_failure_of_a_run() -> None:
    """A run's failure is the first listed category with a line; an srun that the plan ends is no failure."""
    done = "All NIXL EP launches completed successfully"
    traceback, timed_out = "Traceback (most recent call last):", "Timed out waiting for phase 2 to complete"
    terminated, failed = "srun: error: n2: tasks 0: Terminated", "srun: error: n2: task 0: Exited with exit code 1"
    ending = (terminated, "srun: Terminating StepId=1.3", "srun: Force Terminated StepId=1.3")
    excused = (terminated, "Ignoring provisional NIXL EP planned-rank-removal exit 143")
    for texts, kills, seconds, category in (
        ((traceback, timed_out), False, 0.0, "traceback"),
        ((timed_out, traceback), False, 0.0, "traceback"),
        ((terminated,), False, 0.0, "srun_error"),
        ((terminated,), True, 0.0, ""),
        ((terminated,), True, SETTLE_SECONDS, "srun_error"),
        (ending, True, SETTLE_SECONDS, ""),
        ((failed,), True, 0.0, "srun_error"),
        (excused, False, SETTLE_SECONDS, ""),
        ((done,), False, 0.0, ""),
    ):
        run = run_of(lines(*texts, path="/o/stdout.txt"))
        assert run.failure(plan_of([[0, 1], [0, -1]] if kills else [[0, 1]]), 100.0 + seconds) == category


def local(rank: str, pid: int, source: str = "local_index", parent: int = 1, started: float = 90.0) -> RankView:
    """Return a rank of this node."""
    return view(pid, rank, source=source, parent_pid=parent, start_seconds=started)


def test_ranks_named_by_their_order() -> None:
    """If ranks are named by start order, the launch shows which of them the plan kills."""
    run, plan = JobRun(), plan_of([[0, 1, -2]])
    run.take(lines(*(f"Process {p} -> global_rank={r}, local_rank={p}" for p, r in ((0, 2), (1, 0), (2, 1)))))
    run.take(lines(*(edge(rank, "start", 0) for rank in range(3))))

    def own(source: str = "local_index", started: float = 90.0) -> list[RankView]:
        return [local(str(index), 10 + index, source, started=started) for index in range(3)]

    assert list(planned_names("4711", run, plan, own())) == [("4711", "0")]
    assert list(planned_names("4711", run, plan, own("environment"))) == [("4711", "2")]
    assert list(planned_names("4711", run, plan, own()[:2])) == []
    assert list(planned_names("4711", run, plan, own(started=200.0))) == []
    run.take(lines("Process 0 -> global_rank=9, local_rank=0", path="/o/nixl-ep-node-1.log"))
    assert list(planned_names("4711", run, plan, own())) == []


def test_ranks_of_a_later_step() -> None:
    """Lines that are older than the start of ranks do not plan exits of these ranks."""
    run = run_of(lines(*(f"global_rank={rank}, local_rank={rank} -> done" for rank in range(3))))
    before = [view(10 + rank, str(rank), source="environment", exited=True, start_seconds=90.0) for rank in range(2)]
    later = [local(str(rank), 20 + rank, "environment", started=200.0) for rank in range(2)]
    assert list(planned_names("4711", run, None, before)) == [("4711", str(rank)) for rank in range(3)]
    assert list(planned_names("4711", run, None, [*later, *before])) == []
    run.take(lines("global_rank=1, local_rank=1 -> done", seconds=200.0 - FILE_CLOCK_SECONDS))
    assert list(planned_names("4711", run, None, [*later, *before])) == [("4711", "1")]


def test_place_of_a_node() -> None:
    """A node's number is the position of its short name in Slurm's list, if the name is there once."""
    places = {"n[1-3]": 1, "n2.cluster,n1": 0, "m[1-3]": None, "n2,n2": None, "n[1": None, "": None}
    assert {nodes: node_index(nodes, "n2.site") for nodes in places} == places


def test_each_node_reads_its_own_log(tmp_path: Path) -> None:
    """If ranks know their job's nodes, a node reads only its own log, whoever writes it."""
    node = EpNode(tmp_path, "%j/nixl-ep-node-*.log")
    node.observe(14, 4, ME, {"SLURM_JOB_NODELIST": "there,here"})
    node.say(edge(0, "start", 0))  # its writer runs here, but it is the other node's log
    (node.run_folder / "nixl-ep-node-1.log").write_text(f"{edge(4, 'start', 0)}\n")
    assert [name for name in node.look() if "ep_phase/" in name] == ["nixl_ep_phase/4711/4/begun"]
    node.end()


def test_lists_of_nodes_are_read_in_the_thread(node: EpNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's list of nodes can be huge, so it is read outside of the event loop, for a limited number of jobs."""
    threads = []
    monkeypatch.setattr(exporter, "node_index", lambda _nodes, hostname: threads.append(threading.current_thread()))
    monkeypatch.setattr(exporter, "MAX_JOBS", 2)
    for job in "012":
        node.observe(20 + int(job), 0, ME, {"SLURM_JOB_NODELIST": "n[0-65535]", "MASTER_PORT": job}, job=job)
    node.look()
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_log_of_another_job_of_the_user(node: EpNode) -> None:
    """A log without a local writer and without the job's name plans no exit of the job."""
    for rank in range(4):
        node.proc.remove(10 + rank)  # they write elsewhere
    node.observe(14, 4, ME, {"SLURM_JOB_NODELIST": "here,there"})
    node.say(*(edge(rank, what, 0) for what in ("start", "end") for rank in range(4)))
    node.say(*(f"global_rank={rank}, local_rank={rank} -> done" for rank in range(4)))
    assert [name for name in node.look() if "4711" in name] == []


def test_launches_and_groups() -> None:
    """A group of ranks belongs to the last launch of its size logged at most SLACK_SECONDS before its start."""
    first, second = Launch(100.0, {0: 1, 1: 0}), Launch(200.0, {0: 3, 1: 2})
    early, in_time, too_late = (
        [local("0", pid, parent=7, started=started) for pid in (1, 2)]
        for started in (99.0, 100.0 + SLACK_SECONDS, 100.1 + SLACK_SECONDS)
    )
    late = [local("0", pid, parent=8, started=199.0) for pid in (3, 4)]
    for launches, ranks, numbers in (
        ([first, second], early + late, {1: 1, 2: 0, 3: 3, 4: 2}),
        ([first], early + late, {1: 1, 2: 0}),
        ([first, second], late, {3: 3, 4: 2}),
        ([first, second], early[:1], {}),
        ([Launch(100.0, {1: 1, 2: 0})], early + late, {}),
        ([first], in_time, {1: 1, 2: 0}),
        ([first], too_late, {}),
    ):
        assert numbers_of(launches, ranks) == {ProcessKey(pid, 5000): number for pid, number in numbers.items()}
