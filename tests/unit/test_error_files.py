"""The exception in torchrun's error file: rank, category and name of the exception."""

from __future__ import annotations

import json
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from job_log_jobs import CATALOGUE, OWNER, job
from proc_tree import ProcTree
from rank_table import view

from agent.sdk.ranks import Owner, RankView
from exporters.job_log import error_files
from exporters.job_log.error_files import ErrorFiles, Raised, read_error
from exporters.job_log.jobs import ERROR_FILE

LAUNCHER = 3000
STARTED = 1_000_000.0


def saved(message: object) -> bytes:
    """Return the file that PyTorch 2.13 writes for an exception."""
    extra = {"py_callstack": "Traceback (most recent call last):\n", "timestamp": "1795000000"}
    return json.dumps({"message": {"message": message, "extraInfo": extra}}).encode()


class Node:
    """Error files of a job of user OWNER, below the root directory of its launcher or of process 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = ProcTree(root / "proc")
        for pid, uid in ((1, 0), (LAUNCHER, OWNER)):
            self.tree.add(pid, uid=uid)
            (root / f"proc/{pid}/root/tmp").mkdir(parents=True)
        self.files = ErrorFiles(root / "proc", CATALOGUE)
        self.now = 0.0

    def write(self, raw: bytes, *, rank: int = 3, pid: int = LAUNCHER, uid: int = OWNER, at: float = STARTED) -> Path:
        """Write the file of a rank."""
        path = self.root / f"proc/{pid}/root/tmp/{rank}.json"
        path.write_bytes(raw)
        os.chown(path, uid, -1)
        os.utime(path, (at, at))
        return path

    def look(self, *ranks: int, contained: bool = False, uid: int = OWNER) -> list[tuple[str, str, str]]:
        """Return rank, category and exception of new files, after the exit of these ranks."""
        self.now += 1.0
        exited = ended(*(ranks or (3,)), contained=contained, uid=uid)
        new = self.files.new({"4711": job(ranks=100)._replace(ranks=exited)}, self.now)
        return [(rank.label.rank, raised.category, raised.name) for _, rank, raised in new]


def ended(*ranks: int, contained: bool = False, uid: int = OWNER, owner: str = "") -> tuple[RankView, ...]:
    """Return ranks that have exited."""
    return tuple(
        view(
            4000 + rank, str(rank), exited=True, parent_pid=LAUNCHER, uid=uid, container="c" * contained,
            start_seconds=STARTED, environment={ERROR_FILE: f"/tmp/{rank}.json"}, owner=Owner("user", owner),
        )
        for rank in ranks
    )  # fmt: skip


def test_what_a_message_means() -> None:
    """A message has the category of an equal log line; only exceptions that Python or PyTorch defines are named."""
    cases = {
        "OutOfMemoryError: CUDA out of memory. Tried": ("cuda_oom", "root", "torch.OutOfMemoryError", False),
        "KeyError: 'tokens'\nsecret": ("program_error", "root", "KeyError", True),
        "PasswordHunter2: no": ("program_error", "root", "exception", True),
        "DistBackendError: NCCL error in: x, remote process exited or there was a network error": None,
        "": ("program_error", "root", "exception", True),
    }
    for message, due in cases.items():
        raised = read_error(saved(message), CATALOGUE, 5.0)
        assert raised is not None
        if due is None:
            assert (raised.role, raised.name) == ("cascade", "torch.DistBackendError")
        else:
            assert raised == Raised(*due, 5.0)
    plain = read_error(b'{"message": "ValueError: x"}', CATALOGUE, 5.0)
    assert plain is not None
    assert plain.name == "ValueError"


def test_what_is_no_error_file() -> None:
    """A cut file, other JSON, binary data and Ctrl-C give no exception."""
    cut, interrupted = saved("ValueError: x")[:-5], saved("KeyboardInterrupt: ")
    for raw in (
        b"",
        cut,
        interrupted,
        b"[]",
        b'{"message": 5}',
        b"\xff\x00",
        saved(5),
        b"[" * 100_000,
        b'{"x": ' + b"[" * 20_000,
    ):
        assert read_error(raw, CATALOGUE, 5.0) is None


def test_files_that_blame_no_rank(tmp_path: Path) -> None:
    """A file of an earlier run, a file above MAX_BYTES, a link to a file outside the root and a FIFO raise nothing."""
    text = saved("KeyError: 1")
    node = Node(tmp_path)
    node.write(text, at=STARTED - 60.0)
    assert node.look() == []
    path = node.write(text + b" " * (error_files.MAX_BYTES + 1 - len(text)))
    assert node.look() == []
    path.unlink()
    outside = tmp_path / "outside.json"
    outside.write_bytes(text)
    path.symlink_to(outside)
    assert node.look() == []
    path.unlink()
    os.mkfifo(path)
    assert node.look() == []
    path.unlink()
    node.write(text + b" " * (error_files.MAX_BYTES - len(text)))
    assert len(node.look()) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_file_of_another_user(tmp_path: Path) -> None:
    """An error file of another user gives the rank no cause."""
    node = Node(tmp_path)
    node.write(saved("KeyError: 1"), uid=OWNER + 1)
    assert node.look() == []


def test_launcher_has_exited(tmp_path: Path) -> None:
    """If the launcher has exited, a rank's file is read below the host's root, except for a rank in a container."""
    node = Node(tmp_path)
    node.tree.add(LAUNCHER, uid=OWNER + 1)  # another user's process has the pid now
    node.write(saved("KeyError: 1"), pid=1)
    assert node.look(contained=True) == []
    assert node.look() == [("3", "program_error", "KeyError")]


def test_limit_of_files_per_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn tries MAX_READS files, owners in turn; the next turn tries the rest, then missing files again."""
    monkeypatch.setattr(error_files, "MAX_READS", 2)
    node = Node(tmp_path)
    node.write(saved("KeyError: 1"), rank=7)
    assert [len(node.look(5, 6, 7)) for _ in range(2)] == [0, 1]
    for rank in range(3):
        node.write(saved("KeyError: 1"), rank=rank)
    assert [len(node.look(0, 1, 2)) for _ in range(3)] == [2, 1, 0]
    jobs = {
        name: job(name)._replace(ranks=ended(*ranks, owner=owner))
        for name, ranks, owner in (("a", (10, 11), "5"), ("b", (12,), "5"), ("c", (13,), "6"))
    }
    for rank in range(10, 14):
        node.write(saved("KeyError: 1"), rank=rank)
    assert {rank.label.rank for _, rank, _ in node.files.new(jobs, node.now)} == {"10", "13"}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that hangs delays a turn by GRACE_SECONDS; other users' files are still read."""
    hangs, opened = threading.Event(), error_files.open_inside

    def open_slowly(root: str, path: str, uid: int) -> AbstractContextManager[int]:
        if path == "/tmp/3.json":
            hangs.wait()
        return opened(root, path, uid)

    monkeypatch.setattr(error_files, "open_inside", open_slowly)
    monkeypatch.setattr(error_files, "GRACE_SECONDS", 0.05)
    node = Node(tmp_path)
    try:
        node.write(saved("KeyError: 1"))
        assert node.look(3) == []
        node.write(saved("KeyError: 1"), rank=4, pid=1, uid=OWNER + 1)
        assert node.look(4, uid=OWNER + 1) == [("4", "program_error", "KeyError")]
    finally:
        hangs.set()
