"""The log of a restart cycle: the job of the log, and the files that are never opened."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from job_log_jobs import OWNER, job
from proc_tree import ProcTree
from rank_table import view
from test_job_log_reader import Node, counts

from agent.sdk.ranks import RankView
from exporters.job_log.jobs import LoggedJob
from exporters.job_log.ownership import CYCLE_FILE, MAX_CYCLE_BYTES, MAX_PATH, CycleLogs

RECORDED = Path(__file__).parents[1] / "data/nvrx/nvrx/cycle_info.4711.1.1"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Cycles:
    """Files below a rank's root directory, and the logs that its cycle file names."""

    def __init__(self, folder: Path) -> None:
        self.inside, self.proc = folder / "inside", ProcTree(folder / "proc")
        self.logs = CycleLogs(folder / "proc")
        (self.inside / "logs").mkdir(parents=True)

    def file(self, name: str, text: str = "", uid: int = OWNER) -> Path:
        """Write a file of a user."""
        path = self.inside / name
        path.write_text(text)
        os.chown(path, uid, -1)
        return path

    def cycle(self, log: object, uid: int = OWNER, **more: object) -> None:
        """Write a cycle file for this log, as NVRx does."""
        self.file("cycle", json.dumps(json.loads(RECORDED.read_text()) | {"cycle_log_file": log} | more), uid)

    def rank(self, pid: int = 4000, of: str = "4711", path: str = "/cycle", uid: int = OWNER) -> RankView:
        """Return a rank whose environment names a cycle file."""
        root = self.proc.root / f"{pid}/root"
        root.parent.mkdir(exist_ok=True)
        root.is_symlink() or root.symlink_to(self.inside)
        return view(pid, "0", of, environment={CYCLE_FILE: path}, uid=uid, parent_pid=1)

    def of(self, *ranks: RankView) -> dict[str, str]:
        """Return the logs of these ranks (by default one rank), keyed by job."""
        views = ranks or (self.rank(),)
        jobs = [LoggedJob(one.label.job_id, ranks=(one,)) for one in views]
        return {claim.job_id: os.path.basename(claim.path) for claim in self.logs.of(jobs).values()}


@pytest.fixture
def cycles(tmp_path: Path) -> Cycles:
    """Provide a rank with a log."""
    made = Cycles(tmp_path)
    made.file("logs/c0.log")
    return made


def paths_out(cycles: Cycles) -> Mapping[str, str]:
    """Return paths to files that are not the job's log, keyed by kind."""
    (cycles.inside.parent / "outside").write_text("secret")
    cycles.file("others.log", uid=OWNER + 1)
    cycles.file("roots.log", uid=0)
    os.link(cycles.inside / "roots.log", cycles.inside / "logs/hard.log")
    (cycles.inside / "logs/soft.log").symlink_to("c0.log")
    (cycles.inside / "logs/out.log").symlink_to(cycles.inside.parent / "outside")
    (cycles.inside / "dev").symlink_to("/dev")
    os.mkfifo(cycles.inside / "logs/fifo.log")
    os.chown(cycles.inside / "logs/fifo.log", OWNER, -1)
    return {
        "another user's": "/others.log", "root's": "/roots.log", "root's, by a hard link": "/logs/hard.log",
        "a link": "/logs/soft.log", "a link out": "/logs/out.log", "a path out": "/../outside",
        "a FIFO": "/logs/fifo.log", "a directory": "/logs",
        "a device": "/dev/null", "nothing": "/logs/gone.log", "a NUL": "/logs/c0.log\0",
    }  # fmt: skip


def test_files_that_a_cycle_file_cannot_name(cycles: Cycles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file, a link, a special file and a path out of the rank's root are neither followed nor opened."""
    paths = paths_out(cycles)
    opened, real = [], os.open
    for what, path in paths.items():
        cycles.cycle(path)
        monkeypatch.setattr(os, "open", lambda at, flags, **more: (opened.append(flags), real(at, flags, **more))[1])
        assert cycles.of() == {}, what
        monkeypatch.undo()
    assert sum(not flags & os.O_PATH for flags in opened) == len(paths)  # only the cycle files were opened


def test_a_directory_of_a_log_can_be_a_link(cycles: Cycles) -> None:
    """A log belongs to the rank's job even if a directory in its path is a link."""
    (cycles.inside / "linked").symlink_to("logs")
    cycles.cycle("/linked/c0.log")
    assert cycles.of() == {"4711": "c0.log"}


def test_cycle_files_that_are_refused(cycles: Cycles) -> None:
    """A cycle file of another user, cut off, too long, or with an invalid path names no log."""
    cycles.cycle("/logs/c0.log", OWNER + 1)
    assert cycles.of() == {}
    for log in ("", "logs/c0.log", 7, "/" * (MAX_PATH + 1 - len("logs/c0.log")) + "logs/c0.log"):
        cycles.cycle(log)
        assert cycles.of() == {}, log
    cycles.cycle("/" * (MAX_PATH - len("logs/c0.log")) + "logs/c0.log")
    assert cycles.of() == {"4711": "c0.log"}
    text = (cycles.inside / "cycle").read_text()
    for written, is_read in (
        (text.ljust(MAX_CYCLE_BYTES), True),
        (text.ljust(MAX_CYCLE_BYTES + 1), False),
        (text[:-1], False),
        ('{"x": ' + "[" * 20_000, False),
    ):
        cycles.file("cycle", written)
        assert bool(cycles.of()) is is_read


def test_the_logs_of_a_jobs_cycles_are_read(tmp_path: Path) -> None:
    """A failure that is in the logs of two cycles counts twice, for the rank in the line's prefix."""
    node, cycles = Node(tmp_path, "none/*.log"), Cycles(tmp_path)
    ranks = (cycles.rank(),)
    for number in range(2):
        cycles.file(f"logs/c{number}.log", "1: Traceback (most recent call last):\n1: ValueError: x\n")
        cycles.cycle(f"/logs/c{number}.log")
        logs = node.look(job(ranks=8)._replace(ranks=ranks))
    assert counts(logs) == {("4711", "1"): 2}
