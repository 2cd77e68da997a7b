"""Which rank processes there are and left, whose files are whose, and whom the OOM killer struck."""

from __future__ import annotations

from pathlib import Path

import pytest
from scanned_node import Node

from agent.api import ProcessKey
from exporters.process.scan import FORGET_SECONDS, MAX_RANK_PROCESSES


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty node."""
    return Node(tmp_path)


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
    first, writer_key = node.log(7, "a")
    second, _ = node.log(7, "b")
    node.proc.add(100, namespace_pids=(100, 7), files={3: first})
    node.proc.add(200, namespace_pids=(200, 7), files={3: second})
    found = node.look(writer_key)
    assert [facts.key.pid for facts in found.new] == [100]
    assert found.new[0].namespace_pid == 7
    assert found.links == ((writer_key, ProcessKey(100, 5000)),)
    assert found.held == {(writer_key.device, writer_key.inode)}


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


def test_recording_settings_and_directory(node: Node) -> None:
    """Of a rank's environment its recording settings are kept too, and the directory it works in."""
    settings = {"NCCL_INSPECTOR_ENABLE": "1", "RANK": "0"}
    node.proc.add(10, threads={11: "NCCL RAS"}, environment={**settings, "TOKEN": "t"})
    (node.proc.root / "10/cwd").symlink_to("/home/u")
    [facts] = node.look().new
    assert (facts.environment, facts.directory) == (settings, "/home/u")
