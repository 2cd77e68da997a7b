"""A user with many record files on a node (the crowd) does not affect another user's records (the victim)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import FakeClock
from inspector_reading import EVERYONE, make, published, read
from inspector_records import append, line
from lent import Admission

from agent.sdk.files import Share
from agent.tail import followed_files as followed_files_module, follower as follower_module
from agent.tail.file import Position
from agent.tail.followed_files import LostPositions
from agent.tail.listing import FollowLimits, Listing
from agent.tail.shares import share_of
from exporters.inspector.reading import reader as reader_module, writers as writers_module
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.record_files import FileState
from exporters.inspector.reading.turn import TurnResult

CROWD, VICTIM = 2000, 1000
LINES = 50
IN_2096 = 3_976_214_400
LOOK_SECONDS = 31.0
"""Longer than the pause between two searches."""


def share_by_name(status: os.stat_result, directory: str) -> Share:
    """Return the crowd's share for files with a second link, so that the test needs no root to change owners."""
    return Share(CROWD if status.st_nlink > 1 else VICTIM, directory)


@pytest.fixture(autouse=True, scope="module")
def _shares() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower_module, "share_of", share_by_name)
        yield


class Node:
    """A directory with the files of the crowd and the victim, together or in two subdirectories.

    ``apart``: crowd and victim have one user id and differ by their directories."""

    def __init__(self, root: Path, *, apart: bool) -> None:
        self.root = root / "records"
        self.crowd_directory, self.victim_directory = (
            (self.root / "a", self.root / "z") if apart else (self.root, self.root)
        )
        self.spare = root / "spare"
        for path in (self.root, self.crowd_directory, self.victim_directory, self.spare):
            path.mkdir(exist_ok=True)
        self.clock = FakeClock()
        self.reader = DirectoryReader(self.root, self.clock, Admission().admit, from_beginning=True)

    def crowd(self, number: int, content: bytes = b"", modified: int | None = None) -> Path:
        """Write one of the crowd's files."""
        path = self.crowd_directory / f"crowd-pid{number}.log"
        path.write_bytes(content)
        os.link(path, self.spare / path.name)
        if modified is not None:
            os.utime(path, (modified, modified))
        return path

    def victim(self, pid: int = 7, lines: int = LINES, first: int = 0) -> None:
        """Write lines to one of the victim's files."""
        records = b"".join(line(sn, hostname="victim", pid=pid) for sn in range(first, first + lines))
        append(self.victim_directory / f"victim-pid{pid}.log", records)

    def turn(self, *, last: bool = False, seconds: float = 0.0) -> TurnResult:
        """Let time pass and run one turn."""
        self.clock.advance(seconds)
        return self.reader.turn(EVERYONE, last=last)

    def settle(self) -> None:
        """Read until nothing waits."""
        while self.turn(seconds=0.25).waiting:
            pass

    def operations(self) -> dict[tuple[int, str], int]:
        """Return the victim's operations, by pid and size class."""
        operations: Counter[tuple[int, str]] = Counter()
        for writer in published(self.turn(last=True)).writers:
            if writer.writer_key.hostname == "victim":
                for key, total in writer.totals.items():
                    operations[writer.writer_key.pid, key.size] += total.operations
        return dict(operations)

    def skipped(self) -> dict[str, int]:
        """Return the skipped items by reason."""
        return dict(published(self.turn(last=True)).skipped)


ALONE = {(7, "8192"): LINES}
"""The victim's operations if no crowd exists."""


@pytest.fixture(params=[False, True], ids=["users", "directories"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """Provide a node: in one run the crowd is another user, in the other a second directory of the same user."""
    return Node(tmp_path, apart=request.param)


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Lower the limits of listings."""
    small = FollowLimits(**limits)
    monkeypatch.setattr(Listing.__init__, "__defaults__", (small,))


@pytest.mark.slow
def test_empty_files_of_the_future(node: Node) -> None:
    """4,200 empty files with times in 2096 displace no file of another user: a new one is read at the next search."""
    for number in range(4200):
        node.crowd(number, modified=IN_2096)
    node.turn()
    node.victim()
    node.turn(seconds=LOOK_SECONDS)
    assert node.operations() == ALONE
    assert node.skipped()["file_limit"] > 0


@pytest.mark.parametrize("content", [b"", line(0, hostname="crowd")], ids=["empty", "begun"])
def test_a_full_table_of_files(node: Node, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """If other users fill the table of files, a new user's file is still added at once."""
    limited(monkeypatch, files=8, open_files=8)
    node = Node(node.root.parent, apart=node.crowd_directory != node.victim_directory)
    for number in range(9):
        node.crowd(number, content, modified=IN_2096)
    node.turn()
    node.victim()
    node.turn(seconds=LOOK_SECONDS)
    assert node.operations() == ALONE


def test_open_descriptors(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users' endless files leave enough descriptors for a new user's file."""
    limited(monkeypatch, open_files=4)
    node = Node(node.root.parent, apart=node.crowd_directory != node.victim_directory)
    monkeypatch.setattr(reader_module, "READ_BYTES", 1000)
    monkeypatch.setattr(reader_module, "TURN_SECONDS", 0.0)
    long = b"".join(line(sn, hostname="crowd") for sn in range(2000))
    for number in range(6):
        node.crowd(number, long)
    for _ in range(10):
        node.turn(seconds=0.25)
    node.victim(lines=2)
    for _ in range(6):
        node.turn(seconds=LOOK_SECONDS)
    assert node.operations() == {(7, "8192"): 2}


@pytest.mark.slow
def test_writers(node: Node) -> None:
    """If 70 files of 16 writers fill the table, another user's new writer evicts one; refused writers are counted."""
    for number in range(70):
        node.crowd(number, b"".join(line(0, hostname="crowd", pid=pid, id=f"0x{number + 1:x}") for pid in range(1, 17)))
    node.settle()
    node.victim()
    retired = sum(len(node.turn(seconds=LOOK_SECONDS).retired) for _ in range(3))
    assert (node.operations(), retired) == (ALONE, 1)
    assert node.skipped()["writer_limit"] > 70 * 16 - writers_module.MAX_WRITERS


def test_a_writer_let_go_of_takes_no_more_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of an evicted writer are refused, because its published totals are final."""
    monkeypatch.setattr(writers_module, "MAX_WRITERS", 2)
    node = Node(tmp_path, apart=True)
    logs = [node.crowd(number, line(number, hostname="crowd", pid=number)) for number in (1, 2)]
    node.settle()
    node.victim()
    [evicted] = node.turn(seconds=LOOK_SECONDS).retired
    assert evicted.writer_key.pid == 1
    append(logs[0], line(5, hostname="crowd", pid=1))
    view = published(node.turn(seconds=LOOK_SECONDS, last=True))
    assert sorted(one.writer_key.hostname for one in view.writers) == ["crowd", "victim"]
    assert view.results["origin_limit"] == 1


@pytest.mark.slow
def test_places(node: Node) -> None:
    """A crowd with many communicators leaves the victim's communicators their own series, none under `other`."""
    for number in range(16):
        node.crowd(number, b"".join(
            line(0, hostname="crowd", pid=pid, id=f"0x{comm + 1:x}", rank=rank)
            for pid in range(2) for comm in range(64) for rank in range(4)
        ))  # fmt: skip
    node.settle()
    assert node.skipped()["place_limit"] > 0
    node.victim()
    node.settle()
    node.turn(seconds=LOOK_SECONDS)
    assert node.operations() == ALONE


def test_bindings(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of remembered kinds of operations, the user with the most kinds loses some of them."""
    monkeypatch.setattr(writers_module, "MAX_BINDINGS_IN_ALL", 10)
    node.victim()
    node.crowd(1, b"".join(line(sn, hostname="crowd", coll_msg_size_bytes=sn + 1) for sn in range(10)))
    node.settle()
    remembered = {one.writer_key.hostname: len(one.bindings) for one in node.reader._writers}
    assert (remembered, node.skipped()["binding_limit"]) == ({"crowd": 0, "victim": 1}, 1)


def test_a_dear_piece_is_paid_by_who_brought_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose lines are ten times as slow to read gets no more time: the victim has half of each turn."""
    per_line = len(line(0))
    monkeypatch.setattr(reader_module, "READ_BYTES", 4 * per_line)
    node.crowd(1, b"".join(line(sn, hostname="crowd") for sn in range(600)))
    node.victim(lines=600)
    real = node.reader._follower.read
    spent: Counter[int] = Counter()

    def read(file: object, size: int) -> object:
        chunk = real(file, size)  # type: ignore[arg-type]
        uid = file.share.uid if node.crowd_directory == node.victim_directory else "/a/" in file.path  # type: ignore[attr-defined]
        seconds = 0.010 if uid in (CROWD, True) else 0.001
        node.clock.advance(seconds)
        spent[uid] += round(seconds * 1000)
        return chunk

    monkeypatch.setattr(node.reader._follower, "read", read)
    for _ in range(2):
        node.turn()
    assert len(spent) == 2
    assert max(spent.values()) - min(spent.values()) <= 2 * 11


def test_directories_of_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of directories, users take turns: many directories displace no other user's directory."""
    limited(monkeypatch, directories=4)
    root = tmp_path / "records"
    root.mkdir()
    names = [f"crowd{number}" for number in range(8)] + ["mine"]
    for number, name in enumerate(names):
        (root / name).mkdir()
        (root / name / "victim-pid7.log").write_bytes(line(0, hostname=name))
        os.utime(root / name, (IN_2096 + number if name != "mine" else 100,) * 2)
    real = os.stat

    def stat(path: str, **options: object) -> os.stat_result:
        status = real(path, **options)  # type: ignore[arg-type]
        uid = VICTIM if path == "mine" else CROWD
        return os.stat_result((*status[:4], uid, *status[5:10]), {
            "st_mtime_ns": status.st_mtime_ns, "st_atime_ns": status.st_atime_ns, "st_ctime_ns": status.st_ctime_ns,
        })  # fmt: skip

    monkeypatch.setattr("agent.tail.listing.os.stat", stat)
    view = read(make(root))
    hosts = {writer.writer_key.hostname for writer in view.writers}
    assert "mine" in hosts
    assert (len(hosts), view.skipped["directory_limit"]) == (4, 5)


def test_entries_of_all_subdirectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full subdirectory leaves the other ones their share of entries; entries above the limit are counted."""
    limited(monkeypatch, entries=20)
    root = tmp_path / "records"
    for name, count in (("a", 40), ("b", 3), ("c", 3)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{name}{number}-pid7.log").write_bytes(line(0, hostname=name, pid=number + 1))
    view = read(make(root))
    hosts = Counter(writer.writer_key.hostname for writer in view.writers)
    assert (hosts, view.skipped["entry_limit"]) == ({"a": 14, "b": 3, "c": 3}, 1)


def position(uid: int, inode: int) -> Position:
    """Return the position of a vanished file."""
    return Position(1, inode, 0, f"/records/{uid}-{inode}.log", 5, b"12345", b"", uid)


def test_positions_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who renames files without end displaces no other user's positions."""
    monkeypatch.setattr(followed_files_module, "MAX_LOST", 3)
    skipped: Counter[str] = Counter()
    lost = LostPositions([position(VICTIM, 1)], {}, skipped)
    for inode in range(10, 20):
        lost.save(position(CROWD, inode))
    assert [(one.uid, one.inode) for one in lost.values()] == [(VICTIM, 1), (CROWD, 18), (CROWD, 19)]
    assert skipped["left_limit"] == 8
    lost.save(position(VICTIM + 1, 2))
    assert {one.uid for one in lost.values()} == {VICTIM, VICTIM + 1, CROWD}


@pytest.mark.parametrize(
    ("file_mode", "directory_mode", "shared"),
    [(0o644, 0o755, 0), (0o666, 0o755, 1), (0o644, 0o777, 1), (0o644, 0o1777, 0), (0o664, 0o775, 0)],
)
def test_shared_input_is_marked(tmp_path: Path, file_mode: int, directory_mode: int, shared: int) -> None:
    """Files that other users can write or replace are counted."""
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "here-pid7.log").write_bytes(line(0))
    (directory / "here-pid7.log").chmod(file_mode)
    directory.chmod(directory_mode)
    files = read(make(tmp_path)).files
    assert (files[FileState.WRITABLE_BY_OTHERS], files[FileState.FOLLOWED]) == (shared, 1)


def test_a_file_is_its_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts in the share of its user and its directory."""
    monkeypatch.setattr(follower_module, "share_of", share_of)
    path = tmp_path / "here-pid7.log"
    path.write_bytes(line(0))
    uid = os.geteuid()
    if uid == 0:
        uid = CROWD
        os.chown(path, uid, -1)
    reader = make(tmp_path)
    reader.turn(EVERYONE)
    assert [file.share for file in reader.owned().values()] == [Share(uid, str(tmp_path))]
    reader.close()
