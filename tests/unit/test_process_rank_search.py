"""Which processes are ranks."""

import os
import threading
from pathlib import Path

import pytest
from scanned_node import GPU, NCCL_MAPS, Node

from agent.sdk.ranks import ProcessKey
from agent.sdk.system import ProcFS
from exporters.process.rank_search import LOOK_AGAIN_SECONDS, NAMED_SECONDS, OLD_SECONDS, YOUNG_SECONDS
from exporters.process.scan import ScanResult


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """An empty node."""
    return Node(tmp_path)


@pytest.mark.parametrize("thread", ["NCCL RAS", "NCCL Progress 0", "pt_nccl_watchdg", "pt_nccl_heartbt"])
def test_thread_makes_a_rank(node: Node, thread: str) -> None:
    """A thread that NCCL or PyTorch's NCCL process group made makes a rank; an inherited RANK alone makes none."""
    node.proc.add(9, threads={8: "NCCLx", 7: "nccl", 6: "cuda-EvtHandlr", 5: "python3"}, environment={"RANK": "3"})
    node.proc.add(10, threads={11: thread}, environment={"RANK": "3", "SECRET": "x"})
    facts = node.look().new
    assert [(f.key, f.evidence, f.environment) for f in facts] == [(ProcessKey(10, 5000), "thread", {"RANK": "3"})]
    assert facts[0].start_seconds == 1_700_000_000 + 50.0


def test_launcher_shell_and_loaders(node: Node) -> None:
    """Of a launcher, a shell, a rank and its data loaders (forked: same files, same maps) only the rank is one."""
    log, writer_key = node.log(30)
    rank = {"environment": {"RANK": "0"}, "maps": NCCL_MAPS, "files": {3: log, **GPU}}
    node.proc.add(10, name="torchrun", environment={"WORLD_SIZE": "8"})
    node.proc.add(20, name="bash", parent=10, environment={"RANK": "0"})
    node.proc.add(30, parent=20, threads={31: "cuda-EvtHandlr"}, **rank)  # type: ignore[arg-type]
    node.proc.add(40, parent=30, **rank)  # type: ignore[arg-type]
    node.proc.add(41, parent=40, **rank)  # type: ignore[arg-type]
    assert node.evidence(writer_key) == {30: "records"}


def test_library_and_gpu_without_records(node: Node) -> None:
    """Without threads and records, the topmost process that maps the library and uses a GPU is the rank."""
    node.proc.add(31, parent=30, maps=NCCL_MAPS, files=GPU)  # found before its parent: pids may wrap
    node.proc.add(30, parent=10, maps=NCCL_MAPS, files=GPU)
    node.proc.add(12, parent=10, maps=NCCL_MAPS, files=GPU)
    node.proc.add(10, name="vllm", maps=NCCL_MAPS)
    assert node.evidence() == {12: "library", 30: "library"}


def test_orphan_of_a_rank_is_none(node: Node) -> None:
    """A forked child that outlives its rank, adopted by init, does not become a rank."""
    node.proc.add(30, maps=NCCL_MAPS, files=GPU)
    node.proc.add(40, parent=30, maps=NCCL_MAPS, files=GPU)
    assert node.evidence() == {30: "library"}
    node.proc.remove(30)
    node.proc.add(40, parent=1, maps=NCCL_MAPS, files=GPU)
    assert node.look().gone == (ProcessKey(30, 5000),)
    assert node.evidence(after=LOOK_AGAIN_SECONDS) == {}


def test_child_of_a_rank_from_before_a_restart(node: Node) -> None:
    """A forked child of a rank that the agent knew before its restart is none, at the first look too."""
    node.proc.add(30, threads={31: "NCCL RAS"}, maps=NCCL_MAPS, files=GPU)
    node.proc.add(40, parent=30, maps=NCCL_MAPS, files=GPU)
    node.known = [ProcessKey(30, 5000)]
    assert node.evidence() == {}


def test_late_initialisation(node: Node) -> None:
    """A process is looked at again when its threads change in number, and after half a minute anyway."""
    node.proc.add(10)
    assert node.evidence() == {}
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert node.evidence() == {10: "thread"}
    node.proc.add(20)
    assert (node.evidence(), node.evidence(after=NAMED_SECONDS)) == ({}, {})
    node.proc.add(20, maps=NCCL_MAPS, files=GPU)
    assert (node.evidence(), node.evidence(after=LOOK_AGAIN_SECONDS)) == ({}, {20: "library"})


def test_a_thread_that_is_named_after_the_look(node: Node) -> None:
    """A thread that had no name of its own yet when it was looked at makes a rank two seconds later."""
    node.proc.add(10, threads={11: "python3"})
    assert node.evidence() == {}
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert (node.evidence(), node.evidence(after=NAMED_SECONDS)) == ({}, {10: "thread"})


def test_old_processes_are_looked_at_now_and_then(node: Node) -> None:
    """A process seen for ten minutes is looked at every ten seconds; a young one at each look."""
    node.proc.add(10)
    node.look()
    node.look(after=YOUNG_SECONDS)
    node.proc.add(10, threads={11: "NCCL RAS"})
    assert (node.evidence(after=OLD_SECONDS - 1), node.evidence()) == ({}, {10: "thread"})


def test_a_process_that_hangs_in_exec_holds_up_no_look(node: Node) -> None:
    """What can be read of no process until a file system answers is left out; a rank in that state has not left."""
    for pid in (10, 30):
        node.proc.add(pid, threads={pid + 1: "NCCL RAS"}, environment={"RANK": "0"})
    assert node.evidence().keys() == {10, 30}
    node.proc.add(20)
    for pid in (20, 30):
        home = node.proc.root / str(pid)
        (home / "stat").unlink()
        os.mkfifo(home / "stat")  # who opens it waits
        (home / "statm").write_text("1 1 0 0 0 1 0\n")
    found: list[ScanResult] = []
    look = threading.Thread(target=lambda: found.append(node.look()), daemon=True)
    look.start()
    look.join(20)
    assert ([each.gone for each in found], [key.pid for key in found[0].standing]) == ([()], [10])


def test_a_process_that_runs_is_not_in_exec(node: Node) -> None:
    """The memory of a process that runs has a text, and a kernel's thread has none at all."""
    assert not ProcFS(Path("/proc")).is_in_exec(os.getpid())
    proc = ProcFS(node.proc.root)
    node.proc.add(10)
    for text, expected in (("0 0 0 0 0 0 0\n", False), ("9 1 0 0 0 3 0\n", False), ("33 3 0 0 0 33 0\n", True)):
        (node.proc.root / "10/statm").write_text(text)
        assert proc.is_in_exec(10) is expected
        assert (proc.open_files(10, bool) is None) is expected
