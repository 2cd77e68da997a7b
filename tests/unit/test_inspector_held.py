"""Record files that ranks hold open are read at once, however many files their directory has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_clock import FakeClock
from inspector_reading import published
from inspector_records import append, line

from agent.tail.follower import Follower
from agent.tail.listing import FollowLimits, Listing
from exporters.inspector.reading import record_files
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.record_files import Ownership


def identity(path: Path) -> tuple[int, int]:
    """Return device and inode."""
    status = path.stat()
    return status.st_dev, status.st_ino


def holding(*paths: Path) -> Ownership:
    """Return the ownership on a node whose ranks hold these files open."""
    return Ownership({identity(path): str(path) for path in paths}, {"here": frozenset()})


def operations(reader: DirectoryReader, ownership: Ownership) -> int:
    """Return the number of all writers' operations after one turn."""
    writers = published(reader.turn(ownership, last=True)).writers
    return sum(total.operations for writer in writers for key, total in writer.totals.items())


def test_held_files_wait_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn adds at most MAX_HELD_PER_TURN held files; the next turn adds the rest."""
    monkeypatch.setattr(record_files, "MAX_HELD_PER_TURN", 2)
    reader = DirectoryReader(tmp_path, FakeClock(), lambda *_: True)
    assert operations(reader, holding()) == 0
    logs = [tmp_path / f"here-pid{pid}.log" for pid in (7, 8, 9)]
    for pid, log in zip((7, 8, 9), logs, strict=True):
        log.write_bytes(line(0, pid=pid))
    assert operations(reader, holding(*logs)) == 2
    assert operations(reader, holding(*logs)) == 3
    reader.close()


def test_a_held_file_beyond_the_entry_limit_is_followed(tmp_path: Path) -> None:
    """A held file beyond the limit of directory entries is read as it grows."""
    for number in range(8):
        (tmp_path / f"crowd-{number}").touch()
    log = tmp_path / list(os.scandir(tmp_path))[-1].name
    follower = Follower(Listing(tmp_path, lambda _name: True, FollowLimits(entries=7)), FakeClock().monotonic)
    assert str(log) not in {file.path for file in follower.discover()}
    follower.follow_held(str(log), identity(log))
    [file] = [file for file in follower.files() if file.path == str(log)]
    for number in range(3):
        append(log, b"%d\n" % number)
        follower.discover()
        chunk = follower.read(file)
        assert chunk is not None
        assert chunk.data == b"%d\n" % number
    follower.close()


@pytest.mark.parametrize(
    "path", ["outside.log", "root/../outside.log", "root/a/b/deep.log", "root/link/there.log", "root/other.log"]
)
def test_a_path_is_no_proof(tmp_path: Path, path: str) -> None:
    """A path that a process reports is followed only if it is at most one level below the directory, passes no link,
    and leads to the held file."""
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (root / "other.log").touch()
    for name in ("outside.log", "there.log", "root/a/b/deep.log"):
        (tmp_path / name).touch()
    follower = Follower(Listing(root, lambda _name: True), FakeClock().monotonic)
    follower.discover()
    known, file = {file.path for file in follower.files()}, tmp_path / path
    follower.follow_held(f"{tmp_path}/{path}", identity(file if path != "root/other.log" else tmp_path / "outside.log"))
    assert {file.path for file in follower.files()} == known
    follower.close()


def test_a_root_that_is_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    """A held file is found even if the configured directory is a link and the process reports the resolved path."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    follower = Follower(Listing(tmp_path / "root", lambda _name: True), FakeClock().monotonic)
    assert follower.discover() == []
    log = tmp_path / "real/x.log"
    log.touch()
    follower.follow_held(str(log), identity(log))
    assert [file.path for file in follower.files()] == [f"{tmp_path}/root/x.log"]
    follower.close()


def test_a_file_that_returns_to_a_full_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of files, a file that is evicted and followed again in one turn is read as it grows."""
    monkeypatch.setattr(Listing.__init__, "__defaults__", (FollowLimits(files=2),))
    clock = FakeClock()
    reader = DirectoryReader(tmp_path, clock, lambda *_: True, from_beginning=True)
    logs = [tmp_path / f"here-pid{pid}.log" for pid in (7, 8, 9)]
    for age, log in zip((90, 80), logs[:2], strict=True):
        log.write_bytes(line(0))
        os.utime(log, (clock.time() - age,) * 2)
    assert operations(reader, holding()) == 2
    for _ in range(2):
        clock.advance(61.0)
        operations(reader, holding())  # closes the idle files
    clock.now -= 0.5  # no search is due
    logs[2].write_bytes(line(0))
    append(logs[0], line(1))
    assert operations(reader, holding(logs[2], logs[0])) == 4
    for sn in range(2, 4):
        append(logs[0], line(sn))
        clock.advance(31.0)
        assert operations(reader, holding(logs[2], logs[0])) == 3 + sn
    reader.close()
