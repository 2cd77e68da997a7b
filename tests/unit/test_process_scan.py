"""Running and ended rank processes, their files, and OOM kills."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proc_tree import ProcTree
from scanned_node import Node

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import OpenFile, ProcFS
from exporters.process import observation
from exporters.process.observation import MAX_NEW_PER_USER, NEW_RANK_SECONDS, THREADS_SECONDS
from exporters.process.oom_kills import OomCount, OomLedger, memory_files, oom_now, oomd_kills, unified_groups
from exporters.process.scan import MAX_NEW, ScanResult, held_files
from exporters.process.usage.groups import MAX_LEVELS

KEY = ProcessKey(10, 5000)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Provide an empty node."""
    return Node(tmp_path)


@pytest.mark.parametrize("where", ["stat", "environment", "cgroup", "thread_stat", "thread_ids"])
def test_an_odd_process_costs_itself_alone(node: Node, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A process with malformed files is counted and skipped; other ranks are found."""
    read = getattr(node.scanner._proc, where)

    def odd(pid: int, *more: Any) -> Any:
        if pid == 20:
            raise OverflowError("odd")
        return read(pid, *more)

    monkeypatch.setattr(node.scanner._proc, where, odd)
    for pid in (10, 20, 30):
        node.add_rank(pid)
    for _ in range(2):
        scan = node.look()
        assert {key.pid for key in scan.observed} - {20} == {10, 30}
        assert scan.gone == ()
    assert node.failures.skipped > 0


def test_a_known_rank_that_makes_no_sense_has_not_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known rank with an unreadable stat line is neither ended nor new."""
    node.add_rank(10)
    assert [facts.key.pid for facts in node.look().new] == [10]
    with monkeypatch.context() as patch:
        patch.setattr(node.scanner._proc, "stat", lambda _pid: int("no number"))
        assert (node.look().gone, node.known) == ((), [KEY])
    scan = node.look()
    assert (scan.new, scan.gone, list(scan.observed)) == ((), (), [KEY])


def test_a_restarted_file_is_linked_at_the_next_scan(node: Node) -> None:
    """A process that made a new record file is linked to it in the first look with records of the new file."""
    files = {}
    for number, host in ((3, "h"), (4, "other")):
        files[number], writer = node.log(10, host)
        node.add_rank(10, files=files)
        assert node.look(writer).links == ((writer, KEY),)


def test_a_clock_that_is_set_counts_for_the_next_rank(node: Node) -> None:
    """A rank's start time is computed from the kernel's boot time at the rank's discovery."""
    starts = []
    for pid in (10, 20):
        node.add_rank(pid)
        starts.append(node.look().new[0].start_seconds)
        (node.proc.root / "stat").write_text("btime 1700003600\n")
    assert starts[1] - starts[0] == 3600.0


def test_writer_in_another_pid_namespace(node: Node) -> None:
    """A writer's pid is matched in its pid namespace; of equal pids, the process that holds the file open is used."""
    first, writer_key = node.log(7, "a")
    second, _ = node.log(7, "b")
    node.proc.add(100, namespace_pids=(100, 7), files={3: first})
    node.proc.add(200, namespace_pids=(200, 7), files={3: second})
    scan = node.look(writer_key)
    assert ([facts.key.pid for facts in scan.new], scan.new[0].namespace_pid) == ([100], 7)
    assert scan.links == ((writer_key, ProcessKey(100, 5000)),)
    assert scan.held == {(writer_key.device, writer_key.inode): str(first)}


def test_descriptors_unreadable(node: Node) -> None:
    """If descriptors are unreadable, a writer's pid counts only outside containers."""
    _, outside = node.log(100)
    _, inside = node.log(7)
    node.proc.add(100)
    node.proc.add(200, namespace_pids=(200, 7))
    for pid in (100, 200):
        (node.proc.root / f"{pid}/fd").rmdir()
    scan = node.look(outside, inside)
    assert [facts.key.pid for facts in scan.new] == [100]
    assert scan.links == ((outside, ProcessKey(100, 5000)),)
    assert scan.unreadable == 1


@pytest.mark.parametrize("end", [ProcTree.remove, lambda proc, pid: proc.add(pid, start=6000)])
def test_a_rank_that_ends_while_it_is_read(node: Node, end: Callable[[ProcTree, int], object]) -> None:
    """A process that ends during its discovery is no rank and not unreadable, even if another process gets its pid."""
    node.add_rank(10)
    node.scanner._proc.cgroup = lambda pid: {"": str(end(node.proc, pid))}  # type: ignore[method-assign]
    scan = node.look()
    assert (scan.new, scan.observed, scan.unreadable) == ((), {}, 0)


def test_zombie_has_left(node: Node) -> None:
    """A zombie has ended, unless other threads of the process still run."""
    node.add_rank(10)
    node.look()
    node.add_rank(10, state="Z")
    assert node.look().gone == ()
    node.proc.add(10, state="Z")
    assert node.look().gone == (KEY,)


@pytest.mark.slow
def test_new_ranks_of_a_look_are_bounded(node: Node) -> None:
    """A new rank above MAX_NEW is found in the next look; a rank that the table refused is not reported again."""
    for pid in range(10, 10 + MAX_NEW + 1):
        node.add_rank(pid)
    assert [len(node.look().new) for _ in range(2)] == [MAX_NEW, 1]
    node.refused, node.known = node.known, []
    assert node.look().new == ()


@pytest.mark.slow
def test_users_take_turns_in_a_look(node: Node) -> None:
    """A user's ranks are found in the first look, however many ranks another user has."""
    for pid in (*range(10, 10 + 2 * MAX_NEW), 9000, 9001):
        node.add_rank(pid, uid=1000 if pid >= 9000 else 1001)
    assert {9000, 9001} <= {facts.key.pid for facts in node.look().new}


class Group:
    """A control group of ranks, and the ledger that assigns its kills to exits."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.file = node.sys / "fs/cgroup/job/memory.events"
        self.file.parent.mkdir(parents=True)
        self.kills(0)
        self.ledger = OomLedger()
        self.result: ScanResult | None = None

    def add(self, pid: int, **state: Any) -> None:
        self.node.add_rank(pid, cgroup="0::/job\n", **state)

    def kills(self, number: int) -> None:
        self.file.write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {number}\noom_group_kill 0\n")

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.result = self.node.look()
            self.ledger.keep(known.oom for known in self.result.observed.values())

    def is_oom(self, pid: int) -> bool:
        """Return whether a SIGKILL counts as an OOM kill if it ends the process now."""
        assert self.result is not None
        before = self.result.observed[ProcessKey(pid, 5000)].oom
        return self.ledger.assign(before, oom_now(before))


@pytest.fixture
def group(node: Node) -> Group:
    """Provide an empty group."""
    return Group(node)


def test_look_between_oom_kill_and_exit(group: Group) -> None:
    """One scan between an OOM kill and the exit does not hide the kill; after two scans the exit is no OOM kill."""
    group.add(10)
    group.look()
    for kills, looks, is_oom in ((1, 1, True), (2, 2, False)):
        group.kills(kills)
        group.look(looks)
        assert group.is_oom(10) is is_oom


@pytest.mark.parametrize("dying", [{"pending": 1 << 8}, {"exiting": True}])
@pytest.mark.parametrize("looks", [1, 2, 30])
def test_oom_kill_of_a_process_that_takes_long_to_die(group: Group, dying: dict[str, Any], looks: int) -> None:
    """An exit long after its OOM kill still counts as caused by it; a pending SIGKILL stays recorded."""
    group.add(10)
    group.look(2)
    group.kills(1)
    group.add(10, **dying)
    group.look(looks)
    group.add(10, exiting=True)  # SIGKILL is no longer pending while it is handled
    group.look(looks)
    assert group.is_oom(10)
    assert group.result is not None
    assert group.result.observed[KEY].kill_pending == ("pending" in dying)


def test_a_new_control_group_of_the_same_name(group: Group) -> None:
    """A group's kills are forgotten with its last rank: a new group of the same name counts from zero."""
    for pid, kills in ((10, 3), (11, 1)):
        group.kills(0)
        group.add(pid)
        group.look(2)
        group.kills(kills)
        for _ in range(kills):
            assert group.is_oom(pid)
        group.node.proc.remove(pid)
        group.look(2)


class Step:
    """A Slurm job step in which each rank has its own group below the step's."""

    def __init__(self, node: Node) -> None:
        self.pids = [100 * number for number in range(1, 9)]
        self.slice = node.sys / "fs/cgroup/system.slice"
        self.step = self.slice / "slurmstepd.scope/job_7/step_0/user"
        self.ledger = OomLedger()
        for pid in self.pids:
            self._count(self.step / f"task_{pid}", 0, 0)
            group = f"/system.slice/slurmstepd.scope/job_7/step_0/user/task_{pid}"
            node.add_rank(pid, cgroup=f"0::{group}\n")
        self.count(0)
        for _ in range(2):
            self.observed = node.look().observed

    def _count(self, group: Path, kills: int, groups: int) -> None:
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.events").write_text(f"oom_kill {kills}\noom_group_kill {groups}\n")

    def count(self, kills: int, groups: int = 0) -> None:
        """Set the kernel's counts in the step's group and in the groups above it."""
        above = [parent for parent in self.step.parents if parent.is_relative_to(self.slice)]
        for group in (self.step, *above):
            self._count(group, kills, groups)

    def is_oom(self, pid: int) -> bool:
        before = self.observed[ProcessKey(pid, 5000)].oom
        return self.ledger.assign(before, oom_now(before))


@pytest.fixture
def step(node: Node) -> Step:
    """Provide a step of eight ranks."""
    return Step(node)


@pytest.mark.parametrize("gone", ["task_100", "", "../../.."])
def test_group_that_went_with_its_process(step: Step, gone: str) -> None:
    """If a task's group is removed, the nearest group above counts its kill, for one victim per kill."""
    step.count(1)
    shutil.rmtree((step.step / gone).resolve())
    assert step.is_oom(100)
    assert gone == "task_100" or not step.is_oom(200)
    shutil.rmtree(step.step.parent, ignore_errors=True)
    assert not step.is_oom(300)


def test_group_that_was_killed_as_a_whole(step: Step) -> None:
    """All ranks of a group that was killed as a whole are OOM victims."""
    step.count(1, groups=1)
    for pid in step.pids:
        shutil.rmtree(step.step / f"task_{pid}")
    assert [step.is_oom(pid) for pid in step.pids] == [True] * 8


def test_group_that_could_not_be_read_before(node: Node) -> None:
    """A counter that was unreadable before a kill proves nothing."""
    node.add_rank(10, cgroup="0::/job\n")
    before, file = node.look().observed[KEY].oom, node.sys / "fs/cgroup/job/memory.events"
    file.parent.mkdir(parents=True)
    file.write_text("oom_kill 3\n")
    assert not OomLedger().assign(before, oom_now(before))


def test_whose_file_a_process_that_cannot_be_looked_into_wrote(node: Node) -> None:
    """If descriptors are unreadable, a process counts as a file's writer only if it runs as the file's user."""
    _, writer_key = node.log(10)
    node.proc.add(10, uid=1000)
    shutil.rmtree(node.proc.root / "10/fd")
    node.file_uid = 1001
    assert node.evidence(writer_key) == {}
    node.file_uid = 1000
    scan = node.look(writer_key)
    assert [facts.evidence for facts in scan.new] == ["records"]
    assert scan.links == ((writer_key, KEY),)


@pytest.mark.parametrize(("flags", "linked"), [("0100001", True), ("0100002", True), ("0100000", False)])
def test_who_only_reads_a_file_did_not_write_it(flags: str, linked: bool, node: Node) -> None:
    """A process with the right pid that holds a file open for reading is not its writer."""
    path, writer_key = node.log(10)
    node.add_rank(10)
    node.proc.hold(10, path, 7, flags)
    assert bool(node.look(writer_key).links) == linked


def test_the_files_user_comes_first(node: Node) -> None:
    """Of processes with the same pid in their namespaces, one that holds the file is its writer, and one of the file's
    user comes first."""
    path, writer_key = node.log(3)
    other, _ = node.log(3, "other")
    for pid, uid, held in ((9, 1000, other), (10, 1001, path), (11, 1000, path)):
        node.proc.add(pid, uid=uid, namespace_pids=(pid, 3), threads={pid + 100: "NCCL RAS"}, files={7: held})
    node.file_uid = 1000
    assert node.look(writer_key).links == ((writer_key, ProcessKey(11, 5000)),)


def held_by(proc: Path, *ranks: list[OpenFile]) -> dict[tuple[int, int], str]:
    """Return the files that ranks with these descriptors hold; their pids start at 1."""
    return held_files(ProcFS(proc), {ProcessKey(pid, 1): files for pid, files in enumerate(ranks, 1)})


def test_held_files_of_ranks_come_by_turns(tmp_path: Path) -> None:
    """The first file of each rank comes before any second file, so that a rank with many files delays no other."""
    crowd = [OpenFile(number, f"/crowd-{number}", 1, number) for number in range(100)]
    victim = [OpenFile(3, "/victim", 2, 1)]
    assert list(held_by(tmp_path, crowd, victim).values())[:2] == ["/crowd-0", "/victim"]


@pytest.mark.parametrize("writer", [1, 2])
def test_the_path_of_a_held_file_is_its_writers(tmp_path: Path, writer: int) -> None:
    """A file's path is that of its writer, even if a reader has the file under another mount path."""
    files = []
    for pid in (1, 2):
        (tmp_path / f"{pid}/fdinfo").mkdir(parents=True)
        (tmp_path / f"{pid}/fdinfo/3").write_text(f"pos:\t0\nflags:\t010000{int(pid == writer)}\n")
        files.append([OpenFile(3, "/logs/x.log" if pid == writer else "/mine/x.log", 2, 1)])
    assert held_by(tmp_path, *files) == {(2, 1): "/logs/x.log"}


def test_finalized(node: Node) -> None:
    """A running rank that closed its record file has destroyed its communicators, unless it opens a new file."""
    log, _ = node.log(10)
    for files, after, finalized in (({3: log}, 1.0, False), ({}, 1.0, True), ({3: log}, THREADS_SECONDS, False)):
        node.add_rank(10, files=files)
        assert node.look(after=after).observed[KEY].finalized is finalized


def test_record_files_of_a_rank_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan checks at most MAX_LOGS record files of one rank, and these are the files that it holds."""
    monkeypatch.setattr(observation, "MAX_LOGS", 2)
    node.add_rank(10, files={number: node.log(10, str(number))[0] for number in (3, 4, 5)})
    assert len(node.look().held) == 2


@pytest.mark.parametrize("how", [{"exiting": True}, {"state": "Z"}, {"start": 6000}])
def test_descriptors_closed_by_death(node: Node, how: dict[str, object]) -> None:
    """Descriptors that the kernel closes when it kills a process are no sign of an orderly end."""
    log, _ = node.log(10)
    node.add_rank(10, files={3: log})
    node.look()

    def die(*_: object) -> bool:
        node.add_rank(10, **how)
        return False

    node.scanner._proc.holds = die  # type: ignore[method-assign]  # it dies between the look's reads
    assert not node.look().observed[KEY].finalized


def test_blocked_thread(node: Node) -> None:
    """An NCCL thread in state D counts as blocked since the first look with the same context switches."""

    def blocked_since(switches: int, after: float = THREADS_SECONDS) -> float | None:
        node.proc.add(10, threads={11: "NCCL Progress 0"}, thread_states={11: ("D", switches)})
        return node.look(after=after).observed[KEY].blocked_since

    since = blocked_since(42, 1.0)
    assert since == node.now
    assert blocked_since(42) == since
    assert blocked_since(43) == node.now
    node.proc.add(10, threads={11: "NCCL Progress 0", 12: "writer"}, thread_states={12: ("D", 1)})  # a data thread
    assert node.look(after=THREADS_SECONDS).observed[KEY].blocked_since is None


def test_new_ranks_are_searched_in_each_look_within_bounds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look reads the descriptors of MAX_NEW_PER_USER new ranks of a user; all other ranks wait 5 s."""
    searched: list[int] = []
    open_files = ProcFS.open_files

    def noted(self: ProcFS, pid: int, identify: object) -> object:
        searched.append(pid)
        return open_files(self, pid, identify)  # type: ignore[arg-type]

    crowd, victim = range(100, 101 + MAX_NEW_PER_USER), 10
    for pid in (*crowd, victim):
        node.add_rank(pid, uid=1000 if pid == victim else 1001)
    node.look()
    monkeypatch.setattr(observation.ProcFS, "open_files", noted)
    node.look(after=1.0)
    assert victim in searched
    assert len(searched) == 1 + MAX_NEW_PER_USER < 1 + len(crowd)
    searched.clear()
    node.look(after=NEW_RANK_SECONDS)
    assert len(searched) == len(crowd) + 1
    searched.clear()
    node.look(after=THREADS_SECONDS - 1.0)
    assert searched == []


STEP = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def test_counters_of_both_versions(tmp_path: Path) -> None:
    """Cgroup version 1 counts a group's own kills in memory.oom_control, version 2 also kills in the groups below."""
    base = tmp_path / "fs/cgroup"
    assert memory_files({"memory": "/job/0", "": "/x"}, tmp_path) == (f"{base}/memory/job/0/memory.oom_control",)
    assert memory_files({"": "/job/0"}, tmp_path) == (f"{base}/job/0/memory.events", f"{base}/job/memory.events")
    assert memory_files({"": "/"}, tmp_path) == (f"{base}/memory.events",)  # in a control group namespace
    assert memory_files({"": "/../other"}, tmp_path) == ()
    assert memory_files({}, tmp_path) == ()


def test_so_many_groups_are_looked_at(tmp_path: Path) -> None:
    """Of a deep tree the nearest MAX_LEVELS groups are used, which include all groups of a Slurm task."""
    deep = [f"g{number}" for number in range(MAX_LEVELS + 1)]
    scan = unified_groups({"": "/" + "/".join(deep)}, tmp_path)
    assert [Path(known).name for known in scan] == deep[::-1][:MAX_LEVELS]
    scan = unified_groups({"": STEP}, tmp_path)
    assert [Path(known).name for known in scan] == STEP[1:].split("/")[::-1]


class Oomd:
    """Directories with the marks of systemd-oomd, without the rights to set them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attributes: dict[tuple[str, str], bytes] = {}
        self.status = SimpleNamespace(st_uid=0, st_mode=0o40755)
        monkeypatch.setattr(os, "stat", lambda _path, **_: self.status)
        monkeypatch.setattr(os, "getxattr", self.getxattr)

    def getxattr(self, path: str, name: str, **_: bool) -> bytes:
        if (path, name) not in self.attributes:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self.attributes[path, name]


@pytest.fixture
def oomd(monkeypatch: pytest.MonkeyPatch) -> Oomd:
    """Provide directories without a mark."""
    return Oomd(monkeypatch)


@pytest.mark.parametrize("name", ["user.oomd_ooms", "user.oomd_kill"])
def test_systemd_oomd(oomd: Oomd, name: str) -> None:
    """Either mark of systemd-oomd shows that it killed the group since the rank was first seen."""
    assert oomd_kills("/job") == 0
    before = OomCount(oomd=(("/job", 0), ("/above", 2)))
    assert not oom_now(before).by_oomd
    oomd.attributes["/above", name] = b"2"
    assert not oom_now(before).by_oomd
    oomd.attributes["/above", name] = b"3"
    assert oom_now(before).by_oomd


@pytest.mark.parametrize(("uid", "mode", "mark", "kills"), [
    (0, 0o40755, b"1", 1), (0, 0o40755, b"9" * 18, int("9" * 18)), (0, 0o40755, b"9" * 19, 0), (0, 0o40755, b"many", 0),
    (1000, 0o40755, b"1", None), (0, 0o40775, b"1", None), (0, 0o40757, b"1", None),
])  # fmt: skip
def test_only_root_may_mark(oomd: Oomd, uid: int, mode: int, mark: bytes, kills: int | None) -> None:
    """A mark does not count if it is no number, or if a user can write to its group."""
    oomd.status = SimpleNamespace(st_uid=uid, st_mode=mode)
    oomd.attributes["/job", "user.oomd_kill"] = mark
    assert oomd_kills("/job") == kills
