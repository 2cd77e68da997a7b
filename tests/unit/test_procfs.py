"""Reads of /proc and of whole files."""

import os
import re
from pathlib import Path

import msgspec
import pytest
from proc_tree import ProcTree, stat_line

from agent.core.identity import ProcessKey
from agent.ranks.records import is_record_file
from agent.system import whole_file
from agent.system.process_lines import parse_stat
from agent.system.procfs import MAX_ENVIRONMENT_BYTES, ProcFS
from agent.system.whole_file import ChangedFiles, read_changed


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    """Provide an empty /proc."""
    return ProcTree(tmp_path / "proc")


@pytest.mark.parametrize("name", ["python3", "a b", "evil) R 1 (x", "", "новый", ")))) "])
def test_stat_of_any_name(name: str) -> None:
    """The name is in parentheses and can have parentheses and blanks; PF_KTHREAD marks a kernel thread."""
    stat = parse_stat(stat_line(7, name, "D", 3, 0x00400040, 5, 123456, 139))
    assert (stat.comm, stat.state, stat.parent_pid, stat.threads, stat.exit_code) == (name, "D", 3, 5, 139)
    assert stat.key == ProcessKey(7, 123456)
    kthread = parse_stat(stat_line(7, name, "S", 0, 0x00200040, 1, 5, 0))
    assert (stat.kernel_thread, kthread and kthread.kernel_thread) == (False, True)


def test_own_process_by_the_real_proc() -> None:
    """/proc of this process agrees with the interpreter."""
    proc = ProcFS(Path("/proc"))
    stat, status = proc.stat(os.getpid()), proc.status(os.getpid())
    assert (stat.parent_pid, status.uid, status.namespace_pids[0]) == (os.getppid(), os.getuid(), os.getpid())
    assert proc.environment(os.getpid()) is not None
    assert re.fullmatch(r"[0-9a-f-]{36}", proc.boot_id())
    assert proc.boot_seconds() > 1e9
    assert os.getpid() in proc.pids()


def test_vanished_process(tree: ProcTree) -> None:
    """For a process that has exited, every read gives None or an empty value."""
    proc = ProcFS(tree.root)
    assert (proc.stat(9), proc.status(9), proc.environment(9), proc.open_files(9, is_record_file)) == (
        None,
        None,
        None,
        None,
    )
    assert (proc.thread_ids(9), proc.thread_name(9, 9), proc.namespace(9, "pid"), proc.cgroup(9)) == ([], "", 0, {})
    assert proc.maps_library(9, re.compile(b"x")) is None


def test_environment_is_bounded(tree: ProcTree) -> None:
    """An environment is cut at its limit, and bytes that are not UTF-8 are accepted."""
    tree.add(9, environment={})
    (tree.root / "9/environ").write_bytes(b"RANK=3\0BAD=\xff\xfe\0" + b"X" * MAX_ENVIRONMENT_BYTES)
    environment = ProcFS(tree.root).environment(9)
    assert (environment["RANK"], environment["BAD"]) == ("3", "\ufffd\ufffd")
    assert sum(len(key) for key in environment) < MAX_ENVIRONMENT_BYTES


def test_open_files_and_holding(tree: ProcTree, tmp_path: Path) -> None:
    """Only files that can be record files are examined; a descriptor is followed to its file."""
    log, other = tmp_path / "h-pid9.log", tmp_path / "lr-pid9.log.d/rank0.log"
    log.touch()
    other.parent.mkdir()
    other.touch()
    tree.add(9, files={3: log, 4: other, 5: Path("socket:[1]")})
    proc = ProcFS(tree.root)
    files = {file.fd: file for file in proc.open_files(9, is_record_file) or []}
    info = log.stat()
    assert (files[3].device, files[3].inode, files[4].inode) == (info.st_dev, info.st_ino, 0)
    assert 5 not in files
    held = files[3]
    assert proc.holds(9, held)
    assert proc.holds(9, msgspec.structs.replace(held, target="its former name"))  # renamed: the inode decides
    assert not proc.holds(9, msgspec.structs.replace(held, fd=4))
    assert not proc.holds(9, msgspec.structs.replace(held, fd=6))


def test_pending_kill(tree: ProcTree) -> None:
    """A pending SIGKILL is read from the signal masks; another pending signal is ignored."""
    tree.add(8, pending=1 << 8)
    tree.add(9, pending=1 << 14)
    proc = ProcFS(tree.root)
    eight, nine = proc.status(8), proc.status(9)
    assert eight.kill_pending
    assert not nine.kill_pending


def test_a_user_forges_no_control_group(tree: ProcTree) -> None:
    """Only a newline ends a line of /proc/PID/cgroup: a user may make groups with other separators in their names."""
    tree.add(9)
    for separator in "\x0b\x0c\r\x1c\x85\u2028":
        path = f"/user.slice/mine{separator}0::/system.slice/slurmstepd.scope/job_4711"
        (tree.root / "9/cgroup").write_bytes(f"1:cpu:/a\n0::{path}\n".encode())
        assert ProcFS(tree.root).cgroup(9) == {"cpu": "/a", "": path}


OWN_UID = os.getuid()


def test_a_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    """A changed file is read once, up to one byte above its limit."""
    path = tmp_path / "file"
    path.write_text("12345")
    content = read_changed(str(path), 4, None)
    assert content[1] == b"12345"
    assert read_changed(str(path), 4, content[0]) is None
    path.write_text("123456")
    again = read_changed(str(path), 4, content[0])
    assert again[1] == b"12345"


def test_files_that_change_at_each_look_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a large file changes at each look, other files, old or new, are read."""
    monkeypatch.setattr(whole_file, "LOOK_BYTES", 1)
    files, paths = ChangedFiles(9, bytes), [str(tmp_path / name) for name in "abc"]
    for number in range(4):
        for path in paths:
            Path(path).write_bytes(b"x" * (number + 1))
        files.look(dict.fromkeys(paths))
    assert [len(files.contents[path]) for path in paths] == [4, 2, 3]


def test_nothing_but_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not read: a directory, a FIFO and, if an owner is given, a link or another user's file; no descriptor stays open.

    A FIFO is not even opened: this would release a job that waits for its own reader."""
    path = tmp_path / "file"
    path.write_text("x")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    flags_of: dict[str, int] = {}
    monkeypatch.setattr(
        os, "open", lambda name, flags, open=os.open: flags_of.update({name: flags}) or open(name, flags)
    )
    for name, uid in (("", None), ("fifo", None), ("link", OWN_UID), ("gone", OWN_UID)):
        with pytest.raises(OSError, match="No such file" if name == "gone" else "not a regular file"):
            read_changed(str(tmp_path / name), 4, None, uid)
    assert flags_of[str(tmp_path / "fifo")] & os.O_PATH
    assert read_changed(str(path), 4, None, OWN_UID + 1) is None
    assert read_changed(str(path), 4, None, OWN_UID) is not None
    assert read_changed(str(tmp_path / "link"), 4, None) is not None
    assert len(os.listdir("/proc/self/fd")) == before
