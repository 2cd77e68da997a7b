"""How rank processes stand."""

from pathlib import Path

import pytest
from scanned_node import Node

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process import standing
from exporters.process.standing import MAX_NEW_PER_USER, NEW_RANK_SECONDS, THREADS_SECONDS


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty node."""
    return Node(tmp_path)


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


def test_new_ranks_are_searched_in_each_look_within_bounds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look searches the descriptors of MAX_NEW_PER_USER new ranks of a user; others, and old ones, wait 5 s."""
    searched: list[int] = []
    open_files = ProcFS.open_files

    def noted(self: ProcFS, pid: int, identify: object) -> object:
        searched.append(pid)
        return open_files(self, pid, identify)  # type: ignore[arg-type]

    crowd, victim = range(100, 101 + MAX_NEW_PER_USER), 10
    for pid in (*crowd, victim):
        node.proc.add(pid, threads={pid + 1000: "NCCL RAS"}, uid=1000 if pid == victim else 1001)
    node.look()
    monkeypatch.setattr(standing.ProcFS, "open_files", noted)
    node.look(after=1.0)
    assert victim in searched
    assert len(searched) == 1 + MAX_NEW_PER_USER < 1 + len(crowd)
    searched.clear()
    node.look(after=NEW_RANK_SECONDS)
    assert len(searched) == len(crowd) + 1
    searched.clear()
    node.look(after=THREADS_SECONDS - 1.0)
    assert searched == []
