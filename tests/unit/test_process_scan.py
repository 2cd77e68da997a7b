"""Which processes are ranks, how they stand, and whose files are whose."""

from __future__ import annotations

from pathlib import Path

import pytest
from proc_tree import ProcTree

from agent.api import Origin, ProcessKey, Roots
from exporters.process.cgroups import memory_path, oom_kills, pod_and_container
from exporters.process.scan import (
    FORGET_SECONDS,
    LOOK_AGAIN_SECONDS,
    MAX_RANK_PROCESSES,
    OLD_SECONDS,
    THREADS_SECONDS,
    YOUNG_SECONDS,
    Found,
    Scanner,
)

NCCL_MAPS = "7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/x86_64-linux-gnu/libnccl.so.2.30.7\n"
GPU = {9: Path("/dev/nvidia0")}


class Node:
    """A made-up node and its scanner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.proc = ProcTree(path / "proc")
        self.sys = path / "sys"
        self.now = 1000.0
        self.known: list[ProcessKey] = []
        self.scanner = Scanner(Roots(proc=self.proc.root, sys=self.sys))

    def look(self, *origins: Origin, after: float = 1.0) -> Found:
        self.now += after
        found = self.scanner.look(self.now, self.known, origins)
        self.known = [key for key in [*self.known, *(facts.key for facts in found.new)] if key not in found.gone]
        return found

    def evidence(self, *origins: Origin, after: float = 1.0) -> dict[int, str]:
        return {facts.key.pid: facts.evidence for facts in self.look(*origins, after=after).new}

    def log(self, pid: int, host: str = "h") -> tuple[Path, Origin]:
        path = self.path / f"{host}-pid{pid}.log"
        path.touch()
        info = path.stat()
        return path, Origin(info.st_dev, info.st_ino, 0, host, pid)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty node."""
    return Node(tmp_path)


@pytest.mark.parametrize("thread", ["NCCL RAS", "NCCL Progress 0", "pt_nccl_watchdg", "pt_nccl_heartbt"])
def test_thread_makes_a_rank(node: Node, thread: str) -> None:
    """A thread that NCCL or PyTorch's NCCL process group made proves that the process initialised NCCL itself."""
    node.proc.add(10, threads={11: thread}, environment={"RANK": "3", "SECRET": "x"})
    facts = node.look().new
    assert [(f.key, f.evidence, f.environment) for f in facts] == [(ProcessKey(10, 5000), "thread", {"RANK": "3"})]
    assert facts[0].start_seconds == 1_700_000_000 + 50.0


@pytest.mark.parametrize("thread", ["nccl", "NCCLx", "cuda-EvtHandlr", "python3"])
def test_other_threads_do_not(node: Node, thread: str) -> None:
    """Other threads prove nothing, and an inherited RANK names a rank but creates none."""
    node.proc.add(10, threads={11: thread}, environment={"RANK": "3"})
    assert node.evidence() == {}


def test_launcher_shell_and_loaders(node: Node) -> None:
    """Of a launcher, a shell, a rank and its data loaders (forked: same files, same maps) only the rank is one."""
    log, origin = node.log(30)
    rank = {"environment": {"RANK": "0"}, "maps": NCCL_MAPS, "files": {3: log, **GPU}}
    node.proc.add(10, name="torchrun", environment={"WORLD_SIZE": "8"})
    node.proc.add(20, name="bash", parent=10, environment={"RANK": "0"})
    node.proc.add(30, parent=20, threads={31: "cuda-EvtHandlr"}, **rank)  # type: ignore[arg-type]
    node.proc.add(40, parent=30, **rank)  # type: ignore[arg-type]
    node.proc.add(41, parent=40, **rank)  # type: ignore[arg-type]
    assert node.evidence(origin) == {30: "records"}


def test_library_and_gpu_without_records(node: Node) -> None:
    """Without threads and records, the topmost process that maps the library and uses a GPU is the rank."""
    node.proc.add(31, parent=30, maps=NCCL_MAPS, files=GPU)  # found before its parent: pids may wrap
    node.proc.add(30, maps=NCCL_MAPS, files=GPU)
    assert node.evidence() == {30: "library"}


def test_server_that_only_imports(node: Node) -> None:
    """A server that maps the library but uses no GPU is no rank; its workers are."""
    node.proc.add(10, name="vllm", maps=NCCL_MAPS)
    node.proc.add(11, parent=10, maps=NCCL_MAPS, files=GPU)
    node.proc.add(12, parent=10, maps=NCCL_MAPS, files=GPU)
    assert node.evidence() == {11: "library", 12: "library"}


def test_orphan_of_a_rank_is_none(node: Node) -> None:
    """A forked child that outlives its rank, adopted by init, does not become a rank."""
    node.proc.add(30, maps=NCCL_MAPS, files=GPU)
    node.proc.add(40, parent=30, maps=NCCL_MAPS, files=GPU)
    assert node.evidence() == {30: "library"}
    node.proc.remove(30)
    node.proc.add(40, parent=1, maps=NCCL_MAPS, files=GPU)
    assert node.look().gone == (ProcessKey(30, 5000),)
    assert node.evidence(after=LOOK_AGAIN_SECONDS) == {}


def test_late_initialisation(node: Node) -> None:
    """A process is looked at again when its threads change in number, and after half a minute anyway."""
    node.proc.add(10)
    assert node.evidence() == {}
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert node.evidence() == {10: "thread"}
    node.proc.add(20)
    assert node.evidence() == {}
    node.proc.add(20, maps=NCCL_MAPS, files=GPU)
    assert node.evidence() == {}
    assert node.evidence(after=LOOK_AGAIN_SECONDS) == {20: "library"}


def test_reused_pid(node: Node) -> None:
    """The same pid with another start time is another process: the one is gone, the other looked at."""
    node.proc.add(10, threads={11: "NCCL RAS"})
    node.look()
    node.proc.add(10, threads={11: "NCCL RAS"}, start=9000)
    found = node.look()
    assert found.gone == (ProcessKey(10, 5000),)
    assert [facts.key for facts in found.new] == [ProcessKey(10, 9000)]


def test_writer_in_another_pid_namespace(node: Node) -> None:
    """A writer's own pid is matched in its pid namespace, and by the file held open among equals."""
    first, origin = node.log(7, "a")
    second, _ = node.log(7, "b")
    node.proc.add(100, namespace_pids=(100, 7), files={3: first})
    node.proc.add(200, namespace_pids=(200, 7), files={3: second})
    found = node.look(origin)
    assert [facts.key.pid for facts in found.new] == [100]
    assert found.new[0].namespace_pid == 7
    assert found.links == ((origin, ProcessKey(100, 5000)),)
    assert found.held == {(origin.device, origin.inode)}


def test_descriptors_unreadable(node: Node) -> None:
    """Where descriptors may not be read, a writer's pid is believed outside containers only."""
    _, outside = node.log(100)
    _, inside = node.log(7)
    node.proc.add(100)
    node.proc.add(200, namespace_pids=(200, 7))
    for pid in (100, 200):
        (node.proc.root / f"{pid}/fd").rmdir()
    found = node.look(outside, inside)
    assert [facts.key.pid for facts in found.new] == [100]
    assert found.links == ((outside, ProcessKey(100, 5000)),)
    assert found.unreadable == 1


def test_finalized(node: Node) -> None:
    """A rank that closed its record file while it runs has destroyed its communicators; a new file takes that back."""
    log, _ = node.log(10)
    node.proc.add(10, threads={11: "NCCL RAS"}, files={3: log})
    key = ProcessKey(10, 5000)
    assert not node.look().standing[key].finalized
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert node.look().standing[key].finalized
    node.proc.add(10, threads={11: "NCCL RAS"}, files={3: log})
    assert not node.look(after=THREADS_SECONDS).standing[key].finalized


@pytest.mark.parametrize("how", [{"exiting": True}, {"state": "Z"}, {"start": 6000}])
def test_descriptors_closed_by_death(node: Node, how: dict[str, object]) -> None:
    """Descriptors that the kernel closed while it tore the process down are no orderly end."""
    log, _ = node.log(10)
    node.proc.add(10, threads={11: "NCCL RAS"}, files={3: log})
    key = ProcessKey(10, 5000)
    node.look()

    def die(*_: object) -> bool:
        node.proc.add(10, threads={11: "NCCL RAS"}, **how)  # type: ignore[arg-type]
        return False

    node.scanner._proc.holds = die  # type: ignore[method-assign]  # it dies between the look's reads
    assert not node.look().standing[key].finalized


def test_zombie_has_left(node: Node) -> None:
    """A zombie that nobody reaps has left, unless other threads of it still run."""
    key = ProcessKey(10, 5000)
    node.proc.add(10, threads={11: "NCCL RAS"})
    node.look()
    node.proc.add(10, state="Z", threads={11: "NCCL RAS"})
    assert node.look().gone == ()
    node.proc.add(10, state="Z")
    assert node.look().gone == (key,)


def test_control_group_made_anew(node: Node) -> None:
    """Strikes of a control group are forgotten with its last rank: another of the same name counts from zero."""
    folder = node.sys / "fs/cgroup/made.slice"
    folder.mkdir(parents=True)
    for pid, kills in ((10, 3), (11, 1)):
        (folder / "memory.events").write_text("oom_kill 0\n")
        node.proc.add(pid, threads={100 + pid: "NCCL RAS"})
        node.look()
        node.look()
        (folder / "memory.events").write_text(f"oom_kill {kills}\n")
        for _ in range(kills):
            assert node.scanner.oom_killed(ProcessKey(pid, 5000))
        node.proc.remove(pid)
        node.look()
        node.look()
        node.look(after=FORGET_SECONDS + 1.0)


def test_blocked_thread(node: Node) -> None:
    """A vital thread in D with the same switch count is blocked since it was first seen so; a switch ends that."""
    key = ProcessKey(10, 5000)
    stuck = {"threads": {11: "NCCL Progress 0"}, "thread_states": {11: ("D", 42)}}
    node.proc.add(10, **stuck)  # type: ignore[arg-type]
    since = node.look().standing[key].blocked_since
    assert since == node.now
    assert node.look(after=THREADS_SECONDS).standing[key].blocked_since == since
    node.proc.add(10, threads={11: "NCCL Progress 0"}, thread_states={11: ("D", 43)})
    assert node.look(after=THREADS_SECONDS).standing[key].blocked_since == node.now
    node.proc.add(10, threads={11: "NCCL Progress 0"})
    assert node.look(after=THREADS_SECONDS).standing[key].blocked_since is None


def test_other_thread_may_block(node: Node) -> None:
    """A data thread in D (a checkpoint to a slow file system) says nothing about NCCL."""
    node.proc.add(10, threads={11: "NCCL RAS", 12: "writer"}, thread_states={12: ("D", 1)})
    assert node.look().standing[ProcessKey(10, 5000)].blocked_since is None


def test_bound_of_ranks(node: Node) -> None:
    """One rank process over the bound is left out."""
    for pid in range(10, 10 + MAX_RANK_PROCESSES + 1):
        node.proc.add(pid, threads={100_000 + pid: "NCCL RAS"})
    assert len(node.look().new) == MAX_RANK_PROCESSES


class Group:
    """A cgroup's OOM counter."""

    def __init__(self, node: Node) -> None:
        self.file = node.sys / "fs/cgroup/job/memory.events"
        self.file.parent.mkdir(parents=True)
        self.kills(0)

    def kills(self, number: int) -> None:
        self.file.write_text(f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {number}\noom_group_kill 0\n")


def test_one_strike_has_one_victim(node: Node) -> None:
    """An OOM kill in a cgroup of two ranks is the doing of the first that left, not of the second."""
    group = Group(node)
    for pid in (10, 20):
        node.proc.add(pid, threads={pid + 1: "NCCL RAS"}, cgroup="0::/job\n")
    node.look()
    node.look()
    assert not node.scanner.oom_killed(ProcessKey(10, 5000))
    group.kills(1)
    assert node.scanner.oom_killed(ProcessKey(10, 5000))
    assert not node.scanner.oom_killed(ProcessKey(20, 5000))


def test_look_between_strike_and_exit(node: Node) -> None:
    """A look that comes between the strike and the exit does not hide it; older strikes are no cause."""
    group = Group(node)
    node.proc.add(10, threads={11: "NCCL RAS"}, cgroup="0::/job\n")
    node.look()
    group.kills(1)
    node.look()
    assert node.scanner.oom_killed(ProcessKey(10, 5000))
    group.kills(2)
    node.look()
    node.look()
    assert not node.scanner.oom_killed(ProcessKey(10, 5000))


def test_ranks_are_forgotten(node: Node) -> None:
    """A rank that left can be asked about for a minute, then it is forgotten."""
    group = Group(node)
    node.proc.add(10, threads={11: "NCCL RAS"}, cgroup="0::/job\n")
    node.look()
    node.proc.remove(10)
    node.look()
    node.look()
    group.kills(1)
    node.look(after=FORGET_SECONDS + 1)
    assert not node.scanner.oom_killed(ProcessKey(10, 5000))


POD = "c7a3f8b2-1f2e-4d5c-9a8b-7c6d5e4f3a2b"
CONTAINER = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("path", "pod", "container"),
    [
        (f"/kubepods/burstable/pod{POD}/{CONTAINER}", POD, CONTAINER),
        (
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            POD,
            CONTAINER,
        ),
        (f"/system.slice/docker-{CONTAINER}.scope", "", CONTAINER),
        (f"/docker/{CONTAINER}", "", CONTAINER),
        ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "", ""),
        ("/", "", ""),
    ],
)
def test_pod_and_container(path: str, pod: str, container: str) -> None:
    """Kubernetes and container runtimes name pod and container in the cgroup path."""
    assert pod_and_container({"": path}) == (pod, container)


def test_oom_counter_of_both_versions(tmp_path: Path) -> None:
    """Version 1 counts in memory.oom_control, version 2 in memory.events; a missing file counts nothing."""
    assert memory_path({"memory": "/job", "": "/x"}, tmp_path) == str(
        tmp_path / "fs/cgroup/memory/job/memory.oom_control"
    )
    assert memory_path({"": "/x"}, tmp_path) == str(tmp_path / "fs/cgroup/x/memory.events")
    assert memory_path({}, tmp_path) == ""
    control = tmp_path / "memory.oom_control"
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills(str(control)) == 3
    assert oom_kills(str(tmp_path / "gone")) is None


def test_old_processes_are_looked_at_now_and_then(node: Node) -> None:
    """A process seen for ten minutes is looked at every ten seconds; a young one at each look."""
    node.proc.add(10)
    node.look()
    node.look(after=YOUNG_SECONDS)
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert node.evidence(after=OLD_SECONDS - 1) == {}
    assert node.evidence() == {10: "thread"}


def test_recording_settings_and_directory(node: Node) -> None:
    """Of a rank's environment its recording settings are kept too, and the directory it works in."""
    settings = {"NCCL_INSPECTOR_ENABLE": "1", "RANK": "0"}
    node.proc.add(10, threads={11: "NCCL RAS"}, environment={**settings, "TOKEN": "t"})
    (node.proc.root / "10/cwd").symlink_to("/home/u")
    [facts] = node.look().new
    assert (facts.environment, facts.directory) == (settings, "/home/u")
