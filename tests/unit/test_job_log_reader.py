"""The logs that a node reads for its jobs, and hostile logs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_clock import FakeClock
from job_log_jobs import CATALOGUE, OWNER, job
from lent import lent
from proc_tree import ProcTree
from rank_table import view

from agent.sdk.ranks import UNKNOWN_RANK, Owner
from agent.sdk.system import ProcFS
from agent.tail.hang_guard import HangGuard, HungSources, WaitingCall
from exporters.job_log import ownership, reader
from exporters.job_log.jobs import ERROR_FILE, LoggedJob
from exporters.job_log.ownership import ClaimedLog, claimed
from exporters.job_log.reader import JobLogReader, LogSection, PublishedLogs

LINE = "[rank1]: ValueError: x\n"
POD = "11111111-2222-3333-4444-555555555555"


class Node:
    """A reader with a tree of logs, and the processes of a fake /proc."""

    def __init__(self, root: Path, *patterns: str, section: LogSection | None = None) -> None:
        self.root = root
        self.logs = root / "logs"
        self.proc = root / "proc"
        for folder in (self.logs, self.proc / "self"):
            folder.mkdir(parents=True, exist_ok=True)
        self.tree = ProcTree(self.proc)
        self.clock = FakeClock()
        self.hung = HungSources()
        self.reader = JobLogReader(
            lent("job_log", self.clock, root, hangs=HangGuard(self.hung)),
            [f"{self.logs}/{pattern}" for pattern in patterns or ("*.out", "%j.out")],
            CATALOGUE,
            lambda _: True,
            section or LogSection(),
        )

    def write(self, name: str, text: str | bytes = LINE, mode: str = "ab") -> Path:
        """Append to a log."""
        path = self.logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text.encode() if isinstance(text, str) else text)
        os.chown(path, OWNER, -1)
        return path

    def run(
        self, pid: int, output: Path, *, parent: int = 1, comm: str = "python", uid: int = OWNER, title: str = ""
    ) -> None:
        """Add a process that writes its output into a file."""
        self.tree.add(pid, name=comm, parent=parent, uid=uid, title=title)
        for number in (1, 2):
            self.tree.hold(pid, output, number)

    def look(self, *jobs: LoggedJob) -> PublishedLogs:
        """Move the clock to the next search for files, and read once."""
        self.clock.advance(reader.DISCOVER_SECONDS)
        return self.reader.look({one.job_id: one for one in jobs or (job(),)})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Provide a node with logs named after jobs."""
    return Node(tmp_path)


@pytest.fixture
def unnamed(tmp_path: Path) -> Node:
    """Provide a node whose logs match no pattern."""
    return Node(tmp_path, "none/*.log")


def counts(logs: PublishedLogs) -> dict[tuple[str, str], int]:
    """Return the counts of events, by job and rank."""
    return {(one.job_id, kind[0]): count for one in logs.jobs for kind, count in one.events.items()}


def test_no_user_forges_anothers_log(node: Node) -> None:
    """A log of another user, by name or by link, gives no event for the job."""
    node.write("4711.out")
    others = job(uids=frozenset({OWNER + 1}))
    assert counts(node.look(others)) == {}
    (node.logs / "4712.out").symlink_to(node.logs / "4711.out")
    assert counts(node.look(others, job("4712"))) == {}


def held(path: str = "/x", rank: str = "2") -> ClaimedLog:
    """Return an output of a process of job 4711."""
    return ClaimedLog("4711", rank, path)


@pytest.mark.parametrize(("uid", "name_id", "holds", "path", "claim"), [
    (1000, "4711", None, "/x", ClaimedLog("4711")),
    (0, "4711", None, "/x", ClaimedLog("4711")),
    (1001, "4711", None, "/x", None),
    (1000, "99", None, "/x", None),
    (1000, None, None, "/x", None),
    (1000, None, held(), "/x", held()),
    (1001, None, held(), "/x", None),
    (0, None, None, f"/var/log/pods/ns_p_{POD}/main/0.log", ClaimedLog("4711")),
    (1000, None, None, f"/var/log/pods/ns_p_{POD}/main/0.log", None),
    (0, None, None, f"/var/log/pods/ns_p_{POD.replace('1', '2')}/main/0.log", None),
])  # fmt: skip
def test_what_proves_whose_a_log_is(
    uid: int, name_id: str | None, holds: ClaimedLog | None, path: str, claim: ClaimedLog | None
) -> None:
    """A log's job comes from its writer, the id in its name or its pod's directory, if its user or root owns it."""
    known = job(uids=frozenset({1000}), pods=frozenset({POD}))
    assert claimed(path, uid, name_id, holds, {"4711": known}, {"4711": [known]}) == claim


def test_the_last_words_of_ranks_that_were_silent_are_read(unnamed: Node, tmp_path: Path) -> None:
    """The last lines of a job that was silent for minutes are counted, even if no process holds the file now.

    An agent started after the exits reads these lines, too.
    """
    path = unnamed.write("mine.txt", "hello\n")
    unnamed.run(4000, path)
    unnamed.look()
    unnamed.clock.advance(600.0)
    unnamed.look()
    section = msgspec.msgpack.decode(unnamed.reader.section(), type=LogSection)
    unnamed.write("mine.txt", "ValueError: x\n")
    shutil.rmtree(unnamed.proc / "4000")
    assert sum(counts(unnamed.look()).values()) == 1
    again = Node(tmp_path, "none/*.log", section=section)
    assert sum(counts(again.look()).values()) == 1
    again.look(job("5000"))
    assert not msgspec.msgpack.decode(again.reader.section(), type=LogSection).outputs, "the job is gone"


@pytest.mark.parametrize("name", ["mine.txt", "4711.out"])
def test_a_log_that_hangs_keeps_its_job_and_its_position(node: Node, tmp_path: Path, name: str) -> None:
    """A log is left out while its file system hangs; afterwards its last lines count, and no line counts twice."""
    path = node.write(name)
    if name == "mine.txt":
        node.run(4000, path)
    node.look()
    again = Node(tmp_path, section=msgspec.msgpack.decode(node.reader.section(), type=LogSection))
    source = str(path if name == "mine.txt" else node.logs)  # a directory of configured paths
    entry = again.hung.add(WaitingCall(str(path), source, 0.0))
    assert entry is not None
    shutil.rmtree(node.proc / "4000", ignore_errors=True)
    for _ in range(2):
        assert counts(again.look()) == {("4711", "1"): 1}
        again.clock.advance(reader.FORGET_SECONDS + 1)
    assert msgspec.msgpack.decode(again.reader.section(), type=LogSection).positions
    node.write(name)
    again.hung.remove(entry)
    assert counts(again.look()) == {("4711", "1"): 2}


def test_a_saved_output_of_another_user_now(unnamed: Node, tmp_path: Path) -> None:
    """After a restart, a file that has the inode of a job's output but another user's is not read for the job."""
    unnamed.run(4000, unnamed.write("mine.txt"))
    unnamed.look()
    again = Node(tmp_path, "none/*.log", section=msgspec.msgpack.decode(unnamed.reader.section(), type=LogSection))
    shutil.rmtree(unnamed.proc / "4000")
    unnamed.write("mine.txt")
    assert counts(again.look(job(uids=frozenset({OWNER + 1})))) == {("4711", "1"): 1}


def test_a_log_with_a_long_path_is_not_read(unnamed: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with a path above the limit is not read: a user's paths must not exceed the size of the checkpoint."""
    path = unnamed.write("mine.txt")
    unnamed.run(4000, path)
    for most, read in ((len(str(path)) - 1, {}), (len(str(path)), {("4711", "1"): 1})):
        monkeypatch.setattr(reader, "MAX_PATH_BYTES", most)
        assert counts(unnamed.look()) == read


def test_an_output_whose_name_is_no_text(unnamed: Node) -> None:
    """An output with a name that is not UTF-8 is read, and its position is saved."""
    unnamed.run(4000, unnamed.write(os.fsdecode(b"mine\xff.txt")))
    assert counts(unnamed.look()) == {("4711", "1"): 1}
    assert msgspec.msgpack.decode(unnamed.reader.section(), type=LogSection).positions


def test_a_silent_containers_last_words_are_read(unnamed: Node, tmp_path: Path) -> None:
    """The last lines in the log of a silent container are counted."""
    alias = tmp_path / "alias.txt"  # on the node, this path leads to a different file
    inside = Path(f"{tmp_path}/image{alias}")
    inside.parent.mkdir(parents=True)
    inside.write_text("hello\n")
    os.chown(inside, OWNER, -1)
    alias.symlink_to(inside)
    unnamed.run(4000, alias)
    (unnamed.proc / "4000/root").symlink_to(tmp_path / "image")
    for _ in range(2):
        assert unnamed.look().available
        unnamed.clock.advance(600.0)
    with inside.open("a") as file:
        file.write("ValueError: x\n")
    shutil.rmtree(unnamed.proc / "4000")
    assert sum(counts(unnamed.look()).values()) == 1
    for _ in range(2):
        unnamed.clock.advance(reader.MAX_DISCOVER_SECONDS)
        unnamed.look()
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(inside)]


def slurm_step(node: Node, log: Path, title: str = "slurmstepd-wlm: [4711.batch]", uid: int = 0) -> None:
    """Add a batch script and its srun below their slurmstepd, and a rank below another slurmstepd."""
    node.run(3000, Path("/dev/null"), comm="slurmstepd-wlm", uid=uid, title=title)
    node.run(3001, log, parent=3000, comm="slurm_script")
    node.run(3002, Path("/dev/null"), parent=3001, comm="srun")
    node.run(3003, Path("/dev/null"), comm="slurmstepd", uid=0, title="slurmstepd: [4711.0]")
    node.run(4000, Path("/dev/null"), parent=3003)


def test_a_batch_scripts_output_is_its_jobs(unnamed: Node) -> None:
    """The output of Slurm's batch script and of its srun belongs to the job without a pattern."""
    log, other = unnamed.write("slurm.txt", "ValueError: x\n"), unnamed.write("srun.txt", "ValueError: x\n")
    slurm_step(unnamed, log)
    unnamed.tree.hold(3002, other, 9)
    assert counts(unnamed.look()) == {("4711", UNKNOWN_RANK): 2}


@pytest.mark.parametrize(("title", "uid", "script_uid"), [
    ("slurmstepd: [4711.batch]", OWNER, OWNER),
    ("slurmstepd: [4712.batch]", 0, OWNER),
    ("slurmstepd: [4711.extern]", 0, OWNER),
    ("slurmstepd: [4711.batch]", 0, OWNER + 1),
], ids=["not-roots", "another-job", "another-step", "another-user"])  # fmt: skip
def test_what_is_no_batch_script_of_the_job(unnamed: Node, title: str, uid: int, script_uid: int) -> None:
    """A script's output is not the job's if slurmstepd does not run as root, or if job, step or user differ."""
    slurm_step(unnamed, unnamed.write("slurm.txt", "ValueError: x\n"), title, uid)
    unnamed.run(3001, unnamed.logs / "slurm.txt", parent=3000, comm="slurm_script", uid=script_uid)
    assert counts(unnamed.look()) == {}


def test_an_id_of_two_groups_of_ranks(unnamed: Node) -> None:
    """If rank groups share a Slurm id, a script's log belongs to the only group of the script's user, or to none."""
    slurm_step(unnamed, unnamed.write("slurm.txt", "ValueError: x\n"))
    assert counts(unnamed.look(job(), job("4711-b", ids=frozenset({"4711"})))) == {}
    others = job("4711-u7", ids=frozenset({"4711"}), uids=frozenset({OWNER + 1}))
    assert counts(unnamed.look(job(), others)) == {("4711", UNKNOWN_RANK): 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_pid_that_is_another_process_by_now_proves_nothing(unnamed: Node) -> None:
    """Output of a process that reused the script's pid does not belong to the job."""
    slurm_step(unnamed, Path("/dev/null"))
    unnamed.look()
    log = unnamed.write("daemon.log", "ValueError: x\n")
    os.chown(log, 0, 0)
    unnamed.run(3001, log, uid=0)
    assert counts(unnamed.look()) == {}


def test_processes_below_a_batch_step_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of processes below a batch step, the processes that started first are examined."""
    monkeypatch.setattr(ownership, "MAX_BELOW", 2)
    slurm_step(node, node.write("slurm.txt"))
    assert [one.pid for one in ownership.batch_processes(ProcFS(node.proc))] == [3001, 3002]
    monkeypatch.setattr(ownership, "MAX_BELOW", 1)
    assert [one.pid for one in ownership.batch_processes(ProcFS(node.proc))] == [3001]


def test_ranks_own_outputs_need_no_pattern(unnamed: Node) -> None:
    """A file with one writing rank counts for that rank; a file of several ranks or their launcher, for the job."""
    of_rank, of_ranks, launcher = (unnamed.write(f"{name}.txt", "ValueError: x\n") for name in "abc")
    unnamed.run(4000, of_rank, parent=3900)
    unnamed.run(4001, of_ranks, parent=3900)
    unnamed.run(4002, of_ranks)
    unnamed.run(3900, launcher)
    ranks = tuple(view(4000 + rank, str(rank), parent_pid=3900) for rank in range(4))
    logs = unnamed.look(job(ranks=8)._replace(ranks=ranks))
    assert counts(logs) == {("4711", "0"): 1, ("4711", UNKNOWN_RANK): 2}


def test_a_file_that_a_second_rank_writes_later(unnamed: Node) -> None:
    """Once a second rank has opened a rank's output file, new lines count for the job, even after the close."""
    output = unnamed.write("ours.txt", "ValueError: x\n")
    unnamed.run(4000, output)
    unnamed.look()
    unnamed.run(4001, output)
    unnamed.write("ours.txt", "ValueError: y\n")
    unnamed.look()
    for path in (unnamed.proc / "4001").glob("fd/*"):
        path.unlink()
    unnamed.look()
    unnamed.write("ours.txt", "ValueError: z\n")
    assert counts(unnamed.look()) == {("4711", "0"): 1, ("4711", UNKNOWN_RANK): 2}


def test_an_output_of_two_jobs_has_no_job(unnamed: Node) -> None:
    """A file counts for no job if processes of two jobs write to it."""
    output = unnamed.write("both.txt")
    unnamed.run(4000, output)
    unnamed.run(5000, output)
    other = job("4712", ranks=8)._replace(ranks=(view(5000, "0", parent_pid=1),))
    assert counts(unnamed.look(job(), other)) == {}


def test_a_file_of_one_job_after_another(unnamed: Node) -> None:
    """After a job's end, a file counts for the next job once that job's ranks write to it."""
    output = unnamed.write("both.txt", "hello\n")
    unnamed.run(4000, output)
    unnamed.look()
    shutil.rmtree(unnamed.proc / "4000")
    unnamed.run(5000, output)
    after = job("4712")._replace(ranks=(view(5000, "0", parent_pid=1),), pids={})
    unnamed.write("both.txt")
    assert counts(unnamed.look(job(started_seconds=1.0), after)) == {("4711", "1"): 1}
    unnamed.write("both.txt")
    assert counts(unnamed.look(job(), after)) == {("4711", "1"): 1, ("4712", "1"): 1}


def mounts(path: Path, kind: str) -> str:
    """Return the line of mountinfo for the file system of ``path``."""
    device = path.stat().st_dev
    return f"36 35 {os.major(device)}:{os.minor(device)} / /logs rw - {kind} server:/logs rw\n"


@pytest.mark.parametrize(("kind", "shared"), [("lustre", True), ("nfs4", True), ("fuse.beegfs", True), ("ext4", False)])
def test_one_node_reads_what_many_see(node: Node, kind: str, shared: bool) -> None:
    """On a shared file system a node reads a log if a local process has it open or the job's first rank is local."""
    log = node.write("4711.out")
    (node.proc / "self/mountinfo").write_text(mounts(node.logs, kind))
    without_first = job()._replace(ranks=job().ranks[1:])
    assert counts(node.look(without_first)) == ({} if shared else {("4711", "1"): 1})
    node.run(77, log, comm="bash")
    node.clock.advance(reader.HOLDERS_SECONDS)
    assert counts(node.look(without_first)) == {("4711", "1"): 1}
    assert counts(node.look()) == {("4711", "1"): 1}


def test_what_was_saved_waits_for_its_job(node: Node, tmp_path: Path) -> None:
    """A saved job without known ranks is saved again, and dropped after FORGET_SECONDS."""
    node.write("4711.out")
    node.look()
    section = msgspec.msgpack.decode(node.reader.section(), type=LogSection)
    again = Node(tmp_path, section=section)
    again.look(job("5000"))
    assert msgspec.msgpack.decode(again.reader.section(), type=LogSection).positions != []
    again.clock.advance(reader.FORGET_SECONDS + 1)
    again.look(job("5000"))
    assert msgspec.msgpack.decode(again.reader.section(), type=LogSection) == LogSection()


def test_hostile_content(node: Node) -> None:
    """A line of 1 MB, binary data, holes and progress bars without a newline hide no other line."""
    node.write("4711.out", b"y" * (1 << 20) + b"y\n" + bytes(range(256)) * 256 + b"\n" + LINE.encode())
    node.write("4711.out", b"\r".join(b"%d%%|" % number for number in range(50_000)) + b"\n" + LINE.encode())
    with (node.logs / "4711.out").open("r+b") as file:
        file.seek(1 << 23)
        file.write(LINE.encode())
    result = node.look()
    assert counts(result)["4711", "1"] == 3


@pytest.mark.slow
def test_a_backlog_takes_a_tenth_of_a_core(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn reads for a limited CPU time; the rest waits for the next turn."""
    used = iter(range(1000))
    monkeypatch.setattr(reader.time, "thread_time", lambda: next(used) * reader.READ_CPU_SECONDS / 2)
    node.write("4711.out", LINE + LINE * 1000 + LINE * ((1 << 24) // len(LINE)))
    turns = [counts(node.look())["4711", "1"] for _ in range(3)]
    assert 0 < turns[0] < turns[1] < turns[2] < (1 << 24) // len(LINE)


def test_what_watchdogs_say_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of ranks' positions in collectives, the job with the most positions loses its positions."""
    monkeypatch.setattr(reader, "MAX_COLLECTIVE_ENTRIES", 4)
    position = (
        "[rank{}]:[E1 ProcessGroupNCCL.cpp:6] [PG ID 2 PG GUID 5(tp) Rank 1]  failure detected by watchdog at work "
        "sequence id: 9 PG status: last enqueued work: 7, last completed work: 6\n"
    )
    jobs = (job(), job("4712"))
    node.write("4711.out", "".join(position.format(rank) for rank in range(3)))
    node.write("4712.out", position.format(0))
    logs = node.look(*jobs)
    assert {one.job_id: len(one.positions) for one in logs.jobs} == {"4711": 3, "4712": 1}
    node.write("4711.out", position.format(3))
    logs = node.look(*jobs)
    assert {one.job_id: len(one.positions) for one in logs.jobs} == {"4711": 0, "4712": 1}


def test_an_event_has_the_time_at_which_it_was_written(node: Node) -> None:
    """An event has the time of the file's last change, even if searches for files are rare."""
    path = node.write("4711.out", "hello\n")
    now = node.clock.time()
    os.utime(path, (now, now))
    node.look()
    node.clock.advance(50.0)
    node.write("4711.out", "NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)\n")
    os.utime(path, (now + 50.0, now + 50.0))
    node.reader._discover_at = float("inf")  # the last search took long
    [logs] = node.look().jobs
    assert logs.root is not None
    assert logs.root.seconds == now + 50.0


def test_the_time_of_an_error_file_is_not_later_than_now(node: Node) -> None:
    """An error file with a time far in the future does not stay recent, and the checkpoint stays readable."""
    path = node.proc / "1/root/raised.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode({"message": "KeyError: 1"}))
    os.chown(path, OWNER, -1)
    os.utime(path, (2.0**41, 2.0**41))
    exited = view(4000, "0", exited=True, parent_pid=1, uid=OWNER, environment={ERROR_FILE: "/raised.json"})
    [logs] = node.look(job()._replace(ranks=(exited,))).jobs
    assert logs.root is not None
    assert logs.root.seconds == node.clock.time()
    assert msgspec.msgpack.decode(node.reader.section(), type=LogSection).jobs


def test_logs_of_new_ranks_are_looked_for_soon(unnamed: Node, tmp_path: Path) -> None:
    """If searches for files are rare, a new rank causes one more search, ten seconds after the last search."""
    unnamed.look(job("1"))
    unnamed.reader._discover_at = float("inf")  # the last search took long
    unnamed.run(4000, unnamed.write("mine.txt", "ValueError: x\n"))
    other = job("4712", ranks=8, pids={4000: "0"})
    pids = {"0": 4000, "1": 9000}
    here = tuple(view(pid, rank, parent_pid=1) for rank, pid in pids.items())
    fresh = other._replace(ranks=here)
    unnamed.clock.advance(reader.NEW_RANKS_SECONDS - 2 * reader.DISCOVER_SECONDS)
    assert counts(unnamed.look(fresh)) == {}
    assert sum(counts(unnamed.look(fresh)).values()) == 1
    unnamed.write("later.txt", "ValueError: x\n")
    unnamed.run(9000, tmp_path / "logs/later.txt")
    unnamed.reader._discover_at = float("inf")
    unnamed.clock.advance(10 * reader.NEW_RANKS_SECONDS)
    assert sum(counts(unnamed.look(fresh)).values()) == 1


@pytest.mark.slow
def test_ten_thousand_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_CLAIMED logs of jobs on this node are read, owners in turn; logs of other jobs are never opened."""
    monkeypatch.setattr(reader, "MAX_CLAIMED", 3)
    node = Node(tmp_path, "%j.out")
    os.utime(node.write("4711.out"), (1.0, 1.0))
    jobs = [*(job(str(number)) for number in range(4)), job()]
    jobs[-1] = jobs[-1]._replace(ranks=(view(4000, "0", owner=Owner("user", "another")),))
    for number in range(3000):
        node.write(f"{number}.out")
    read = {job_id for job_id, _ in counts(node.look(*jobs))}
    assert (len(read), "4711" in read) == (3, True)


def test_an_error_costs_one_piece(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in one piece of a log loses only that piece."""
    node.write("4711.out")
    real: Any = reader.events

    def fails(data: bytes, catalogue: Any) -> Any:
        if b"poison" in data:
            raise ValueError("poison")
        return real(data, catalogue)

    monkeypatch.setattr(reader, "events", fails)
    node.look()
    node.write("4711.out", "poison\n")
    node.look()
    node.write("4711.out", LINE)
    assert counts(node.look()) == {("4711", "1"): 2}
