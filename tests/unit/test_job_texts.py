"""Text files of jobs: their owners, and the node that reads them."""

import os
from pathlib import Path

import pytest
from fake_clock import FakeClock
from lent import lent
from proc_tree import ProcTree
from rank_table import Table, environment, owned

from agent.export import job_texts
from agent.export.job_texts import HOLDERS_SECONDS, LOOK_SECONDS
from agent.ranks.rank.facts import Owner
from agent.sdk.files import JobTexts
from agent.sdk.ranks import RankSnapshot
from agent.system import outputs as file_holders
from agent.system.outputs import writers_of
from agent.system.procfs import ProcFS
from agent.tail.file import Position

ME = os.getuid()


def users_of(*jobs: tuple[int, str, int]) -> RankSnapshot:
    """Return a node's ranks, one of each job, given as (pid, job id, uid)."""
    table = Table(once=True)
    for pid, job, uid in jobs:
        table.add_facts(owned(pid, environment(0, job=job, port=str(pid)), Owner("user", str(uid)), uid=uid))
    table.tick()
    return table.ranks.snapshot()


def hold(proc: ProcTree, pid: int, path: Path, uid: int, flags: str) -> None:
    """Add a process that holds a file open."""
    proc.add(pid, uid=uid)
    proc.hold(pid, path, flags=flags)


def test_a_name_is_of_its_users_jobs_alone() -> None:
    """A file with a job id belongs to that job of its user; a file without one belongs to the user's only job."""
    users = users_of((1, "4711", 7), (2, "4712", 7), (3, "4713", 8))
    assert (users.job_of(7, "4711"), users.job_of(8, "4711")) == ("4711", "")
    assert users.job_of(7, "9") == users.job_of(9, "9") == ""
    assert users.job_of(7, None) == users.job_of(9, None) == ""
    assert (users.job_of(8, None), users.job_ids) == ("4713", {"4711", "4712", "4713"})


def test_who_writes_a_file(tmp_path: Path) -> None:
    """A file's writer is a process of the file's user or of root that has the file open for writing."""
    proc = ProcTree(tmp_path / "proc")
    files = [tmp_path / f"{number}.log" for number in range(4)]
    for file in files:
        file.write_text("x")
    hold(proc, 1, files[0], 7, "0100001")
    hold(proc, 2, files[1], 7, "0100000")
    hold(proc, 3, files[2], 8, "0100001")
    hold(proc, 4, files[3], 0, "0102002")
    writers = writers_of(ProcFS(proc.root), {str(file): 7 for file in files})
    assert writers == {(file.stat().st_dev, file.stat().st_ino): "" for file in (files[0], files[3])}


def test_for_which_job_a_file_is_written(tmp_path: Path) -> None:
    """A file's job is the job of its writer's control group, if users cannot create that group."""
    proc, log = ProcTree(tmp_path / "proc"), tmp_path / "out"
    log.touch()
    hold(proc, 1, log, 7, "0100001")
    for cgroup, job_id in (
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", "4711"),
        ("0::/system.slice/n1_slurmstepd.scope/job_4711\n", "4711"),
        ("4:memory:/slurm/uid_1000/job_4711/step_batch\n0::/\n", "4711"),
        ("0::/user.slice/user-7.slice/user@7.service/system.slice/slurmstepd.scope/job_4711\n", ""),
        ("0::/system.slice/slurmstepd.scope/job_4711x\n", ""),
        ("0::/../slurm/uid_7/job_4711\n", ""),
    ):
        (proc.root / "1/cgroup").write_text(cgroup)
        assert list(writers_of(ProcFS(proc.root), {str(log): 7}).values()) == [job_id]


def test_file_of_a_job_that_is_gone(tmp_path: Path) -> None:
    """A file of an ended job counts for another job of the user only once a process of the other job writes it."""
    proc, log = ProcTree(tmp_path / "proc"), tmp_path / "out"
    log.write_text("first\n")
    hold(proc, 10, log, ME, "0100001")
    (proc.root / "10/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711\n")
    clock = FakeClock()
    texts = JobTexts(lent("x", clock, tmp_path), [str(log)])
    assert [text.job_id for text in texts.turn(users_of((10, "4711", ME)))] == ["4711"]
    proc.remove(10)
    with log.open("a") as file:
        file.write("last\n")
    clock.advance(LOOK_SECONDS)
    later = users_of((11, "4712", ME))
    assert (texts.turn(later), texts.files(later)) == ([], [])
    hold(proc, 11, log, ME, "0100001")
    (proc.root / "11/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4712\n")
    for line, lines in (("of the next job\n", [["last", "of the next job"]]), ("more\n", [["more"]])):
        with log.open("a") as file:
            file.write(line)
        clock.advance(HOLDERS_SECONDS)
        assert [text.lines for text in texts.turn(later) if text.job_id == "4712"] == lines
    texts.close()


def test_saved_positions_are_shared_by_users(tmp_path: Path) -> None:
    """The checkpoint keeps the newest MAX_POSITIONS positions, with equal shares of all users."""
    of_users = [7] + [8] * job_texts.MAX_POSITIONS
    saved = [Position(1, inode, 0, f"/{inode}", 1, b"x", uid=uid) for inode, uid in enumerate(of_users)]
    texts = JobTexts(lent("x", FakeClock(), tmp_path), ["/*"], saved)
    assert {position.inode for position in texts.positions()} == {0, *range(2, job_texts.MAX_POSITIONS + 1)}
    texts.close()


def test_processes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for a file's writer examines at most MAX_PROCESSES processes."""
    monkeypatch.setattr(file_holders, "MAX_PROCESSES", 2)
    proc = ProcTree(tmp_path / "proc")
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    for number, log in enumerate(logs):
        log.touch()
        hold(proc, 10 + number, log, ME, "0100001")
    assert len(writers_of(ProcFS(proc.root), {str(log): ME for log in logs})) == 2


def test_recorded_data_are_read_whole(tmp_path: Path) -> None:
    """In a single pass over recorded data, every file is read to its end."""
    (tmp_path / "4711.log").write_text("line\n" * 400_000)
    (tmp_path / "out").write_text("word\n")
    ctx = lent("x", FakeClock(), tmp_path, once=True)
    texts = JobTexts(ctx, [f"{tmp_path}/%j.log", f"{tmp_path}/out"])
    news = texts.turn(RankSnapshot())
    assert (sum(len(text.lines) for text in news), {text.job_id for text in news}) == (400_001, {"4711", "recorded"})
    texts.close()
