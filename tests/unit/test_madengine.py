"""madengine: lines, patterns, perf.csv, and the outcome of a node's task."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exporter_node import ExporterNode
from fake_clock import FakeClock
from lent import lent

from agent.ranks.rank.environment import read_claim
from agent.sdk.exporter import NoData
from agent.sdk.ranks import ExitStatus
from agent.system import whole_file
from exporters.madengine import exporter, results, site_files, task
from exporters.madengine.exporter import MadengineConfig, MadengineExporter
from exporters.madengine.results import NodeTable, ResultTable, most_complete, node_of, read_perf_csv, read_table
from exporters.madengine.site_files import JobOf, SiteReader
from exporters.madengine.task import (
    BENIGN,
    FAILURES,
    LOST_SECONDS,
    MAX_LINE_CHARACTERS,
    NodeTask,
    TaskFile,
    read_failure,
    read_name,
)

ME = os.getuid()
NOBODY: JobOf = lambda _uid, _named: ""  # noqa: E731
MARK = "[DEBUG] 2026-11-22T00:36:22+00:00 Node 1 (vm): "


def of(**known: Any) -> NodeTask:
    """Return a task after one line at 1.0 s."""
    return NodeTask(seconds=1.0, **known)


LINES: dict[str, NodeTask] = {
    f"{MARK}task script started": of(step="started"),
    f"{MARK}about to run madengine": of(step="running"),
    f"{MARK}madengine exited with code 0": of(step="returned"),
    f"x {MARK}task script exiting with code 255 ": of(step="exited", code=255),
    f"{MARK}task script exiting with code 256": of(),
    f"[DEBUG] x Node {task.MAX_NODES - 1} (vm): task script started": of(step="started"),
    f"[DEBUG] x Node {task.MAX_NODES} (vm): task script started": of(),
    "performance: 14164.5 samples_per_second": of(results={"samples_per_second": 14164.5}),
    "performance: 3.2e3/s tokens": of(results={"tokens": 3200.0}),
    "performance: .5, tokens,": of(results={"tokens": 0.5}),
    "performance: 12, /s, tokens": of(results={"tokens": 12.0}),
    "performance: fast": of(),
    "performance: 1e18 tokens": of(results={"tokens": 1e18}),
    "performance: 1e19 tokens": of(),
    f"performance: 1 {'m' * results.MAX_METRIC_CHARACTERS}x": of(results={"m" * results.MAX_METRIC_CHARACTERS: 1.0}),
    "performance: 1 a\x01b": of(results={"a?b": 1.0}),
    "{'train_samples_per_second': 12.5, 'x': 1}": of(results={"train_samples_per_second": 12.5}),
    "TCP barrier timeout on master: accepted=1/3 port=43012": of(missing_nodes=2),
    "TCP barrier timeout on worker rank=2 master=n1 ports=[43000] attempts=12 last_error=x": of(),
    "TCP barrier timeout on master: accepted=4/3 port=43012": of(),
    " " * MAX_LINE_CHARACTERS + "performance: 1 x": of(),
    "iteration 4": of(),
}


def test_lines() -> None:
    """Markers, results and time-outs of the barrier are read; numbers outside their limits are ignored."""
    for text, expected in LINES.items():
        assert (result := NodeTask()).take(text, 1.0, is_output=False) is None
        assert result == expected, text


def test_patterns_fit_their_examples() -> None:
    """A line with one of the FAILURES fails madengine's run, unless it also has a benign text or pattern."""
    tools = ("E20261122 x generateRocpd.cpp:1", "W20261122 generateRocpd.cpp", "W20261122 x simple_timer.cpp:1")
    for words in FAILURES:
        assert read_failure(f"[rank1]: {words} x") == words
        assert read_failure(" " * MAX_LINE_CHARACTERS + words) == ""
        for harmless in (*BENIGN, *tools, "E20261122 x tool.cpp:1"):
            assert read_failure(f"{harmless} {words}") == ""
    assert read_failure("E20261122 x simple_timer.cpp:1 FAILED") == "FAILED"
    assert read_failure("step 3") == ""


def test_names_of_files() -> None:
    """A node's output file is named by model, job and node number; a table's directory is named by the node."""
    assert read_name("/o/madengine-a_b_812_node_3.out") == TaskFile("a_b", 3, is_output=True)
    assert read_name("/o/madengine-a_b_812_node_3.err") == TaskFile("a_b", 3, is_output=False)
    assert read_name("/o/madengine-a_b_812_0.out") is None
    nodes = {"node_3/multi_results.csv": 3, "node_3": None, "nodes/x.csv": None}
    assert {name: node_of(f"/o/llama/812/{name}") for name in nodes} == nodes


ENDS = {"ends": [f"{MARK}madengine exited with code 0", f"{MARK}task script exiting with code 0"], "killed": []}
"""The last lines of a node's task. The script logs madengine's own exit status only if it is 0."""
BEGIN = [f"{MARK}task script started", f"{MARK}about to run madengine"]
HARMLESS = [
    "step 1 loss 0.5",
    "[rocprofv3] FAILED to attach to 12",
    "x.py:1: FutureWarning: ValueError: will be raised",
]
MEASURED = ["performance: 1001.5 samples_per_second", "performance: 1 samples_per_second", "test_duration: 93.1s"]


def printed(node_rank: int, fate: str) -> list[str]:
    """Return a node's standard output."""
    return HARMLESS + (MEASURED if fate == "ends" and not node_rank else [])


def test_a_task_that_runs_is_not_lost() -> None:
    """A task without an exit is `running` while its job has a rank, and for LOST_SECONDS after its newest line."""
    running = NodeTask()
    assert running.state(0.0, has_live_ranks=False) is None
    running.take(f"{MARK}about to run madengine", 10.0, is_output=False)
    for seconds, has_live_ranks, state in ((10.0, False, "running"), (11.0, True, "running"), (11.0, False, "lost")):
        assert running.state(seconds + LOST_SECONDS, has_live_ranks=has_live_ranks) == state


def test_a_dead_rank_contradicts_a_success() -> None:
    """A dead rank on the node contradicts the task's success; a failure is not contradicted."""
    ended = NodeTask()
    ended.take(f"{MARK}task script exiting with code 0", 1.0, is_output=False)
    for node_rank, has_dead_ranks, contradiction in ((1, True, "rank_dead"), (1, False, None), (0, True, None)):
        assert ended.contradiction(node_rank, "exited", has_dead_ranks=has_dead_ranks) == contradiction


def test_lines_of_a_task() -> None:
    """A task that starts again in its file replaces the previous one; results before the first marker stay."""
    requeued, early, many, barrier = (NodeTask() for _ in range(4))
    for text in ("performance: 1 x", "ValueError: x", f"{MARK}task script exiting with code 1"):
        requeued.take(text, 1.0, is_output=True)
    requeued.take(f"{MARK}task script started", 2.0, is_output=False)
    assert (requeued.results, requeued.failures, requeued.code, requeued.step) == ({}, {}, None, "started")
    early.take("performance: 1 x", 1.0, is_output=True)
    early.take(f"{MARK}task script started", 2.0, is_output=False)
    assert (early.results, early.step) == ({"x": 1.0}, "started")
    for number in range(task.MAX_METRICS + 1):
        many.take(f"performance: 1 m{number}", 1.0, is_output=True)
    assert len(many.results) == task.MAX_METRICS
    for text in ("accepted=0/3 port=1", "accepted=1/3 port=2"):
        barrier.take(f"TCP barrier timeout on master: {text}", 1.0, is_output=True)
    assert barrier.missing_nodes == 2


TABLE_HEADER = " model ,performance, metric ,tp"
HEADER = "model, n_gpus ,performance,metric,status,dataname,launcher,nnodes,test_duration"


@pytest.mark.slow
def test_bounds_of_perf_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or cell above its limit makes the table unreadable; the last results of the first MAX_ROWS rows stay."""
    rows = "".join(f"m{number},8,1,tok,SUCCESS,\n" for number in range(results.MAX_RESULTS + 1))
    result = read_perf_csv(f"{HEADER}\n{rows}".encode())
    assert result is not None
    assert (len(result), next(iter(result))) == (results.MAX_RESULTS, ("m1", "tok"))
    assert read_perf_csv(f"{HEADER}\n".encode().ljust(results.MAX_CSV_BYTES, b"\n")) == {}
    assert read_perf_csv(f"{HEADER}\n".encode().ljust(results.MAX_CSV_BYTES + 1, b"\n")) is None
    cell = "m" * results.MAX_CELL_CHARACTERS
    assert read_perf_csv(f"{HEADER}\n{cell},8,1,x,SUCCESS,\n".encode()) is not None
    assert read_perf_csv(f"{HEADER}\n{cell}m,8,1,x,SUCCESS,\n".encode()) is None
    monkeypatch.setattr(results, "MAX_ROWS", 2)
    result = read_perf_csv(f"{HEADER}\na,8,1,x,SUCCESS,\nb,8,1,x,SUCCESS,\nc,8,1,x,SUCCESS,\n".encode())
    assert list(result or ()) == [("a", "x"), ("b", "x")]


def test_results_of_a_table() -> None:
    """Each model and metric has the last number of its rows; at most MAX_TABLE_RESULTS are shown, all are counted."""
    text = f"{TABLE_HEADER}\na,1.5,tok,8\na, 2.5 ,tok,4\nb,,tok,8\nc,soon,tok,8\nd\n"
    assert read_table(text.encode()) == ResultTable({("a", "tok"): 2.5}, filled=2)
    assert read_table(b"model,performance\na,1\n") is None
    rows = "".join(f"m{number},1,tok,8\n" for number in range(results.MAX_TABLE_RESULTS + 1))
    table = read_table(f"{TABLE_HEADER}\n{rows}".encode())
    assert table is not None
    assert (len(table.results), table.filled) == (results.MAX_TABLE_RESULTS, results.MAX_TABLE_RESULTS + 1)


def test_the_most_complete_table_counts() -> None:
    """Of a job's tables the one with the most results is used; at a tie, the table of the lowest node number."""
    filled = (("7", 4, 5), ("7", 1, 2), ("7", 2, 5), ("7", 2, 3), ("8", 0, 0))
    result = most_complete(NodeTable(job_id, node_rank, ResultTable({}, count)) for job_id, node_rank, count in filled)
    assert sorted((one.job_id, one.node_rank, one.table.filled) for one in result) == [("7", 2, 5), ("8", 0, 0)]


def test_job_id_of_madengine() -> None:
    """A rank's job id is Slurm's id in madengine's variable, not the hash of the rendezvous."""
    result = read_claim({"MAD_SLURM_JOB_ID": "812", "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "RANK": "1"}, "here")
    assert (result.job_id, result.scheduler) == ("812", "slurm")


class MadNode(ExporterNode):
    """A node with one rank of job 812, which runs as root in a container."""

    def __init__(self, folder: Path, **more: list[str]) -> None:
        paths = [f"{folder}/madengine-*_%j_node_*.{suffix}" for suffix in ("out", "err")]
        tables = [f"{folder}/%j/node_*/multi_results*.csv"]
        config = MadengineConfig(paths=paths, results=[f"{folder}/perf.csv"], tables=tables, **more)
        super().__init__("madengine", folder, lambda: MadengineExporter(config))
        self.key = self.observe(10, 0, ME + 1, job="812")
        self.start()

    def write(self, node_rank: int, fate: str, job: str = "812") -> None:
        """Write the files of a task, which a process of the job's user holds open."""
        pid = int(job) + node_rank
        self.proc.add(pid, uid=ME, cgroup=f"0::/system.slice/slurmstepd.scope/job_{job}/step_0\n")
        for number, texts, suffix in ((1, printed(node_rank, fate), "out"), (2, BEGIN + ENDS[fate], "err")):
            path = self.folder / f"madengine-m_{job}_node_{node_rank}.{suffix}"
            path.write_text("".join(f"{text}\n" for text in texts))
            self.proc.hold(pid, path, number)

    def shown(self) -> dict[str, float]:
        """Return the exported series, without the common prefix of their names."""
        return {name.removeprefix("madengine_"): value for name, value in super().shown().items()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MadNode]:
    """Provide a node."""
    made = MadNode(tmp_path)
    yield made
    made.end()


def test_worker_that_died_silently(node: MadNode) -> None:
    """If a worker is killed and madengine reports a success, the agent exports a contradiction."""
    node.write(1, "killed")
    assert node.look(20.0) == {"task_state/812/1/running/": 1.0}
    node.ranks.observe_exit(node.key, ExitStatus(known=True, signal=9))
    node.ranks.tick()
    assert node.look(LOST_SECONDS + 1) == {"task_state/812/1/lost/": 1.0, "contradicted/812/1/lost": 1.0}


def test_tasks_go_on_after_a_restart(node: MadNode, tmp_path: Path) -> None:
    """After a restart of the agent a task goes on, with the lines written in the meantime."""
    node.write(1, "killed")
    node.look(20.0)
    with (tmp_path / "madengine-m_812_node_1.err").open("a") as file:
        file.write(f"{MARK}task script exiting with code 143\n")
    node.restart()
    shown = node.look(20.0)
    assert "task_state/812/1/exited/143" in shown
    assert shown["contradicted/812/1/exit_code"] == 1.0


def test_tasks_are_bounded(node: MadNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are followed up to the limit; a new task replaces a task of the job with the most."""
    monkeypatch.setattr(exporter, "MAX_TASKS", 2)
    for number in range(3):
        node.write(number, "ends")
    assert len([name for name in node.look(20.0) if name.startswith("task_state/812/")]) == 2
    node.observe(11, 0, ME + 2, job="913")
    node.write(0, "ends", job="913")
    jobs = [name.split("/")[1] for name in node.look(20.0) if name.startswith("task_state/")]
    assert sorted(jobs) == ["812", "913"]


def look(tables: str) -> Callable[[], tuple[NodeTable, ...]]:
    """Return a function that reads the tables of this pattern."""
    reader = SiteReader([], [tables], [], FakeClock())
    return lambda: reader.look(NOBODY).tables


def write_table(folder: Path, job: str, node_rank: int, rows: str) -> Path:
    """Write a table into a node's directory."""
    path = folder / job / f"node_{node_rank}" / "multi_results_x.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{TABLE_HEADER}\n{rows}")
    return path


def test_tables_are_read_again_when_they_change(tmp_path: Path) -> None:
    """A changed table is read again, keeps its rows while half written, and is dropped when removed."""
    path = write_table(tmp_path, "812", 1, "a,1,tok,8\n")
    tables = look(f"{tmp_path}/%j/node_*/multi_results*.csv")
    assert tables() == (NodeTable("812", 1, ResultTable({("a", "tok"): 1.0}, 1)),)
    for text, filled in (("mod", 1), (f"{TABLE_HEADER}\na,1,tok,8\nb,2,tok,8\n", 2)):
        path.write_text(text)
        assert [one.table.filled for one in tables()] == [filled]
    path.unlink()
    assert tables() == ()


def test_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are read up to the limit, large ones over several looks; a table above its limit is refused."""
    monkeypatch.setattr(site_files, "MAX_TABLES", 2)
    paths = [write_table(tmp_path, "812", node_rank, "a,1,tok,8\n") for node_rank in range(3)]
    for number, path in enumerate(paths):
        os.utime(path, (100 + number, 100 + number))
    pattern = f"{tmp_path}/%j/node_*/*.csv"
    assert [one.node_rank for one in look(pattern)()] == [1, 2]
    monkeypatch.setattr(whole_file, "LOOK_BYTES", 1)
    slow = look(pattern)
    assert [[one.node_rank for one in slow()] for _ in range(2)] == [[2], [1, 2]]
    monkeypatch.setattr(site_files, "MAX_TABLE_BYTES", paths[2].stat().st_size)
    paths[2].write_text(paths[2].read_text() + "\n")
    short = look(pattern)
    short()
    assert [one.node_rank for one in short()] == [1]


def test_a_lines_result_comes_first(node: MadNode, tmp_path: Path) -> None:
    """A file written in a container belongs to its control group's job; a result in the log wins over the table's."""
    node.write(0, "ends")
    write_table(tmp_path, "812", 0, "m,7,samples_per_second,8\nm,8,tok,8\n")
    assert node.look(20.0) == {
        "task_state/812/0/exited/0": 1.0,
        "performance/812/0/m/samples_per_second": 1001.5,
        "performance/812/0/m/tok": 8.0,
    }


def test_nothing_is_no_data(tmp_path: Path) -> None:
    """Without configuration the exporter has no source; a pattern without a job id is refused."""
    idle = MadengineExporter(MadengineConfig())
    with asyncio.Runner() as runner:
        runner.run(idle.start(lent("madengine", FakeClock(), tmp_path)))
        with pytest.raises(NoData):
            runner.run(idle.update())
        runner.run(idle.drain())
    for key in ("tables", "manifests"):
        with pytest.raises(msgspec.ValidationError):  # no job id
            msgspec.convert({key: ["/o/node_*/x.csv"]}, MadengineConfig)
