"""NVRx: accepted cycle files, the series of a job, and restarts of the agent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exporter_node import ExporterNode
from inspector_records import append
from rank_table import RankTable

from agent.core.identity import WriterKey
from agent.helper.client import HelperError
from agent.sdk.exporter import NoData
from exporters.nvrx import exporter, reading
from exporters.nvrx.events import JobEvents
from exporters.nvrx.exporter import LINK, NvrxConfig, NvrxExporter
from exporters.nvrx.reading import CycleRequest, read_one

ME = os.getuid()
RUNNING = {
    "job_id": "4700",
    "cycle_number": 2,
    "cycle_start_time": "2026-11-22T00:34:20Z",
    "cycle_end_time": "",
    "active_nodes": "n[01-03]",
    "standby_nodes": "n[04-05]",
}
EVENT = "x - Cycle: 1 Event: {} Node: n01_7_0 Rank: 1 Time: 2023-11-14 22:13:{:06.3f} UTC"  # 1.7e9 is 22:13:20
FAILED = EVENT.format("failure_detected", 21)
SILENT = "[{}] [workload:?({}) infra:0(?)] rank_monitor_server.py:4 Did not get initial heartbeat. Waited 5 seconds"


class Node(ExporterNode):
    """A node with ranks of job 4711, whose processes have ``inside`` as their root."""

    def __init__(self, folder: Path) -> None:
        config = NvrxConfig(paths=[f"{folder}/logs/{name}" for name in ("%j.log", "*_%j.log")])
        super().__init__("nvrx", folder, lambda: NvrxExporter(config))
        self.inside = folder / "inside"
        (self.inside / "nvrx").mkdir(parents=True)
        self.start()

    def log(self, text: str, name: str = "4711", pid: int = 10, number: int = 1, flags: str = "0100001") -> Path:
        """Write a launcher's output, which a process holds open."""
        path = self.folder / f"logs/{name}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
        self.proc.hold(pid, path, number, flags)
        return path

    def add_rank(self, pid: int = 10, rank: int = 0, job: str = "4711", uid: int = ME, **more: Any) -> Any:
        """Add a rank whose environment names a cycle file; ``more``: further variables, and fields of its facts."""
        self.proc.add(pid, uid=uid)
        (self.proc.root / str(pid) / "root").symlink_to(self.inside)
        variables = {LINK: "/nvrx/cycle_info.4700.current"} | more.pop("variables", {})
        return self.observe(pid, rank, uid, variables, job=job, **more)

    def write(self, number: int = 2, **changed: object) -> Path:
        """Write a cycle file and the link to it."""
        path = self.inside / f"nvrx/cycle_info.4700.0.{number}"
        path.write_text(json.dumps(RUNNING | {"cycle_number": number} | changed))
        link = self.inside / "nvrx/cycle_info.4700.current"
        link.unlink(missing_ok=True)
        link.symlink_to(path.name)
        return path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Provide a node."""
    made = Node(tmp_path)
    yield made
    made.end()


def test_half_written_cycle_leaves_the_last(node: Node) -> None:
    """While a new cycle is half written, the last valid one is shown for a minute; an older cycle never replaces it."""
    node.add_rank()
    node.write(2)
    node.look()
    path = node.write(3)
    whole = path.read_text()
    path.write_text(whole[:40])
    assert node.look()["nvrx_cycle/4711"] == 2.0
    path.write_text(whole)
    assert node.look()["nvrx_cycle/4711"] == 3.0
    node.write(1)
    assert node.look()["nvrx_cycle/4711"] == 3.0
    assert node.look(exporter.STALE_SECONDS)["nvrx_cycle/4711"] == 3.0
    node.write(4).write_text(whole[:40])
    assert node.look(exporter.STALE_SECONDS - 1)["nvrx_cycle/4711"] == 3.0
    with pytest.raises(NoData):
        node.look(exporter.CYCLES_SECONDS)


def test_a_second_run_begins_its_cycles_again(node: Node) -> None:
    """A later cycle of the same attempt replaces a higher number, because a job can restart under its id."""
    node.add_rank()
    node.write(7, cycle_start_time="2026-11-22T00:34:20Z")
    node.look()
    node.write(0, cycle_start_time="2026-11-22T00:34:20.5Z")
    assert node.look()["nvrx_cycle/4711"] == 0.0


def test_a_cycle_is_forgotten_even_if_the_helper_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that was not read for a minute is not shown, even while the helper cannot start."""

    async def fail(*_: object) -> None:
        raise HelperError("no memory")

    node.add_rank()
    node.write()
    assert node.look()["nvrx_cycle/4711"] == 2.0
    monkeypatch.setattr(node.exporter._helper, "call", fail)
    with pytest.raises(HelperError):
        node.look(exporter.STALE_SECONDS)
    assert node.shown() == {}


def test_lines_of_the_job(node: Node) -> None:
    """A file's lines belong to the job whose process writes it; progress of the job's ranks ends its recovery."""
    key = node.add_rank()
    node.log(f"{FAILED}\n{EVENT.format('worker_start_completed', 30.5)}")
    shown = node.look(20.0)
    assert shown["nvrx_events_total/4711/failure_detected"] == 1.0
    assert shown["recovery_seconds/4711/workers_started"] == pytest.approx(9.5)
    assert "recovery_seconds/4711/progress" not in shown
    process = node.ranks.running()[key]
    process.note_progress(1.7e9 + 10.4, 1.7e9 + 10.4)
    node.ranks.tick()
    assert "recovery_seconds/4711/progress" not in node.look()
    process.note_progress(1.7e9 + 14.0, 1.7e9 + 14.0)
    node.ranks.tick()
    assert node.look()["recovery_seconds/4711/progress"] == pytest.approx(13.0)


def test_the_rank_of_a_monitors_line(node: Node) -> None:
    """A monitor's line with host and local rank belongs to the newest rank with that number on the host."""
    node.add_rank()
    node.add_rank(11, rank=6)
    node.log("\n".join(SILENT.format(*of) for of in (("here", 2), ("here", 3), ("else", 2))))
    timeouts = {name: value for name, value in node.look(20.0).items() if "timeouts" in name}
    assert timeouts == {
        "nvrx_heartbeat_timeouts_total/4711/6/initial": 1.0,
        "nvrx_heartbeat_timeouts_total/4711/unknown/initial": 2.0,
    }


@pytest.mark.parametrize(
    ("variable", "uid", "ranks"),
    [("HOSTNAME", ME, {"0", "4"}), ("OTHER", ME, {"unknown"}), ("HOSTNAME", ME + 1, {"unknown"})],
)
def test_a_local_rank_of_two_pods(node: Node, variable: str, uid: int, ranks: set[str]) -> None:
    """The host name, if the job's user wrote it into records, distinguishes ranks of two pods with one local rank."""
    for pid, rank in ((10, 0), (11, 4)):
        pod = f"pod-{rank}"
        key = node.add_rank(pid, rank, parent=pid + 90, variables={variable: pod})
        writer = WriterKey(64, pid, 0, pod, pid)
        node.ranks.observe_records(writer, [], None, uid)
        node.ranks.link(writer, key)
    node.ranks.tick()
    node.log(f"{SILENT.format('pod-0', 0)}\n{SILENT.format('pod-4', 0)}")
    counted = {name.split("/")[2] for name in node.look(20.0) if "timeouts" in name}
    assert counted == ranks


def test_an_error_costs_the_lines_of_one_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a file's lines loses only these lines: the other file and the file's later lines are read."""
    node.add_rank()
    odd = node.log("poison", "a_4711", number=1)
    node.log(FAILED, "b_4711", number=2)
    real = JobEvents.take
    monkeypatch.setattr(JobEvents, "take", lambda job, text, *more: real(job, {"poison": None}.get(text, text), *more))
    assert node.look(20.0)["nvrx_events_total/4711/failure_detected"] == 1.0
    append(odd, FAILED.encode() + b"\n")
    assert node.look()["nvrx_events_total/4711/failure_detected"] == 2.0


def test_files_that_are_not_the_jobs(node: Node) -> None:
    """A file gives no event if the job only reads it, no process holds it, or it is of another user's job."""
    node.add_rank()
    node.add_rank(11, job="4712", uid=ME + 1)
    node.log(FAILED, flags="0100000")
    node.log(FAILED, "4712", pid=11)
    (node.folder / "logs/4713.log").write_text(f"{FAILED}\n")
    assert [name for name in node.look(20.0) if "total" in name] == []


def test_counts_go_on_after_a_restart(node: Node) -> None:
    """After a restart of the agent, even if it finds no rank at first, each line counts once, new lines included."""
    node.add_rank()
    log = node.log(FAILED)
    node.look()
    append(log, f"{EVENT.format('worker_terminated', 22)}\n".encode())
    (node.proc.root / "10/fd/1").unlink()  # its writer has closed it
    node.lends["ranks"] = node.ranks = RankTable(node.clock, "here", settle_at_once=True)
    node.restart()
    node.look()
    node.add_rank(11)
    shown = node.look()
    assert shown["nvrx_events_total/4711/failure_detected"] == 1.0
    assert shown["nvrx_events_total/4711/worker_terminated"] == 1.0


def test_paths_that_lead_nowhere(node: Node, tmp_path: Path) -> None:
    """Another user's file, a path out of the job's root, a special file and a path with a NUL are refused."""
    node.proc.add(10)
    (node.proc.root / "10/root").symlink_to(node.inside)
    node.write()
    request = CycleRequest("/nvrx/cycle_info.4700.current", str(node.proc.root), 10, ME)
    assert [file.cycle.cycle for file in read_one(request)] == [2]
    assert read_one(CycleRequest(request.path, request.proc_root, 10, ME + 1)) == []
    (tmp_path / "secret").write_text(json.dumps(RUNNING))
    (node.inside / "out").symlink_to(tmp_path / "secret")
    os.mkfifo(node.inside / "fifo")
    for path in ("/../secret", "/out", "/fifo", "/nvrx", "/gone", "/a\0b"):
        assert read_one(CycleRequest(path, str(node.proc.root), 10, ME)) == []


def test_directories_of_a_site(tmp_path: Path) -> None:
    """The current link of each job gives its cycle; a link to another directory or to a cut file gives none."""
    for number in (2, 9, 10):
        (tmp_path / f"cycle_info.1.0.{number}").write_text(json.dumps(RUNNING | {"cycle_number": number}))
    (tmp_path / "cycle_info.2.0.0").write_text('{"cycle')
    (tmp_path / "cycle_info.3.0.0").symlink_to("cycle_info.1.0.2")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/cycle_info.4.0.0").write_text(json.dumps(RUNNING))
    for job, to in {"1": "cycle_info.1.0.10", "2": "cycle_info.2.0.0", "3": "cycle_info.3.0.0",
                    "4": "sub/cycle_info.4.0.0", "5": "cycle_info.5.0.0"}.items():  # fmt: skip
        (tmp_path / f"cycle_info.{job}.current").symlink_to(to)
    assert [file.cycle.cycle for file in read_one(CycleRequest(str(tmp_path)))] == [10]
    assert read_one(CycleRequest(str(tmp_path / "gone"))) == []


def test_jobs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are followed up to the limit, in cycles and in lines; one user's many jobs do not displace another's."""
    monkeypatch.setattr(exporter, "MAX_JOBS", 2)
    node = Node(tmp_path)
    node.write()
    for pid in range(20, 24):
        node.add_rank(pid, job=str(4680 + pid), uid=ME + 1)
    for pid, job in ((10, "4711"), (11, "4712")):
        node.add_rank(pid, job=job)
        node.log(FAILED, job, pid)
    shown = node.look(20.0)
    for family in ("nvrx_cycle/", "nvrx_events_total/"):
        assert len([name for name in shown if name.startswith(family)]) == 1
    node.end()


def test_a_job_with_many_ranks_in_its_lines_leaves_room_for_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks above a job's share of series count as rank `unknown`; a rank of another job has its own series."""
    monkeypatch.setattr(exporter, "MAX_ROWS", 40)
    beginning = "[2026-11-22 01:20:17,474] [WARNING] [RankMonServer4711@n07:{}]"
    text = f"{beginning} Did not get initial heartbeat. Waited 9.00 seconds."
    for pid, job, ranks in ((10, "4700", 100), (11, "4711", 1)):
        node.add_rank(pid, job=job)
        node.log("\n".join(text.format(rank) for rank in range(ranks)), job, pid)
        shown = node.look(20.0)
    rows = [name for name in shown if name.startswith("nvrx_heartbeat_timeouts_total/4700/")]
    assert 1 < len(rows) < 40
    assert shown["nvrx_heartbeat_timeouts_total/4700/unknown/initial"] == 100 - len(rows) + 1
    assert shown["nvrx_heartbeat_timeouts_total/4711/0/initial"] == 1


def test_links_of_ended_jobs_hide_no_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than MAX_FOUND links in a directory the links of jobs on the node are read, then the newest."""
    for number in range(12):
        (tmp_path / f"cycle_info.{number}.0.0").write_text(json.dumps(RUNNING | {"cycle_number": number}))
        link = tmp_path / f"cycle_info.{number}.current"
        link.symlink_to(f"cycle_info.{number}.0.0")
        os.utime(link, (0, number % 10), follow_symlinks=False)
    monkeypatch.setattr(reading, "MAX_FOUND", 2)
    assert [file.cycle.cycle for file in read_one(CycleRequest(str(tmp_path)))] == [9, 8]
    here = CycleRequest(str(tmp_path), job_ids=frozenset({"3"}))
    assert [file.cycle.cycle for file in read_one(here)] == [3, 9]


def test_a_directory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a directory at most MAX_ENTRIES entries are read."""
    (tmp_path / "cycle_info.0.0.0").write_text(json.dumps(RUNNING))
    for number in range(4):
        (tmp_path / f"cycle_info.{number}.current").symlink_to("cycle_info.0.0.0")
    assert len(read_one(CycleRequest(str(tmp_path)))) == 4
    monkeypatch.setattr(reading, "MAX_ENTRIES", 3)
    assert len(read_one(CycleRequest(str(tmp_path)))) in (2, 3)  # the file can be among the first three
