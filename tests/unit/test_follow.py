import contextlib
import errno
import itertools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from fake_clock import FakeClock
from hypothesis import HealthCheck, given, settings, strategies as st

from agent.tail import listing
from agent.tail.file import FINGERPRINT_BYTES, FollowedFile, Position
from agent.tail.followed_files import LostPositions
from agent.tail.follower import IDLE_SECONDS, Follower
from agent.tail.listing import FollowLimits, Listing

LIMITS = FollowLimits()


def follow(root: Path, clock: FakeClock | None = None, limits: FollowLimits = LIMITS, **options: Any) -> Follower:
    """Return a follower of logs; its clock stands still unless the test passes a clock."""
    logs = Listing(root, lambda name: name.endswith(".log"), limits)
    return Follower(logs, (clock or FakeClock()).monotonic, **options)


def drain(follower: Follower, file: FollowedFile) -> bytes:
    """Read one file up to its current end."""
    parts = []
    while (chunk := follower.read(file)) is not None:
        parts.append(chunk.data)
    return b"".join(parts)


def poll(follower: Follower) -> bytes:
    """Search for files and read all of them."""
    return b"".join(drain(follower, file) for file in sorted(follower.discover(), key=lambda file: file.path))


def begun(root: Path, content: bytes, **options: Any) -> tuple[Path, Follower]:
    """Return a file with this content, and a follower that has read it."""
    path, follower = root / "a.log", follow(root, **options)
    path.write_bytes(content)
    poll(follower)
    return path, follower


def append(path: Path, content: bytes) -> None:
    """Append to a file."""
    with path.open("ab") as writer:
        writer.write(content)


def open_descriptors(directory: Path) -> int:
    """Return the number of this process's open files below a directory; a descriptor closed meanwhile is skipped."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            paths.append(descriptor.readlink())
    return sum(path.is_relative_to(directory) for path in paths)


def test_what_is_no_file_is_neither_opened_nor_followed(tmp_path: Path) -> None:
    """A FIFO, a socket and links to a file and to a directory are not read, do not block, and are counted."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.log").write_bytes(b"secret\n")
    root = tmp_path / "root"
    root.mkdir()
    os.mkfifo(root / "fifo.log")
    (root / "link.log").symlink_to(outside / "secret.log")
    (root / "directory").symlink_to(outside)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket.log"))
        follower = follow(root)
        assert poll(follower) == b""
    assert follower.skipped["not_a_regular_file"] == 3


@pytest.mark.parametrize("fails", [False, True])
def test_unlinked_file_is_let_go_when_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """An unlinked file is read while it grows; after a minute without new bytes its descriptor is closed, only once."""

    def close(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        works(descriptor)
        if fails and ".log" in path:
            raise OSError(errno.EIO, "a FUSE file system replies so to a flush")

    clock, before = FakeClock(), open_descriptors(tmp_path)
    path, follower = begun(tmp_path, b"one\n", clock=clock)
    path.unlink()
    clock.now += IDLE_SECONDS - 1
    poll(follower)
    assert open_descriptors(tmp_path) == before + 1
    clock.now += 1
    works = os.close
    monkeypatch.setattr(os, "close", close)
    assert follower.discover() == []
    assert open_descriptors(tmp_path) == before


def test_reused_inode_is_another_generation(tmp_path: Path) -> None:
    """A new file with the inode of a deleted one has a new generation."""
    path, _ = begun(tmp_path, b"one\n")
    identity = (path.stat().st_dev, path.stat().st_ino)
    assert [file.generation for file in follow(tmp_path, generations={identity: 3}).discover()] == [3]
    lost = LostPositions([], {}, Counter())
    lost.retire(Position(*identity, 3, "gone.log", 5, b"12345"))
    assert lost.generations == {identity: 4}


@pytest.mark.parametrize("resumed", [False, True])
def test_a_second_writer_at_the_front(tmp_path: Path, resumed: bool) -> None:
    """If the first line changed but the last line read did not, reading goes on after that line; this is counted."""
    path, follower = begun(tmp_path, b"one\ntwo\nthree\n")
    with path.open("rb+") as second, path.open("ab") as first:
        second.write(b"uno\ndu")
        first.write(b"four\n")
    if resumed:
        follower = follow(tmp_path, resume=follower.positions())
    assert (poll(follower), follower.skipped["overwritten"]) == (b"four\n", 1)
    append(path, b"five\n")
    assert poll(follower) == b"five\n"
    assert (follower.skipped["overwritten"], [file.generation for file in follower.files()]) == (1, [0])


@pytest.mark.parametrize(
    "content", [b"uno\ndue\ntreee\nquattro\n", b"uno\ndue\n\0\0\0\0\0\0four\n", b"uno\ntwo\nThree\nfour\n"]
)
def test_another_last_line_is_another_filling(tmp_path: Path, content: bytes) -> None:
    """If the first line and the last read line changed, the whole file is read again."""
    path, follower = begun(tmp_path, b"one\ntwo\nthree\n")
    path.write_bytes(content)
    assert poll(follower).replace(b"\n\n", b"\n") == content.replace(b"\0" * 6, b"")
    assert ([file.generation for file in follower.files()], follower.skipped["overwritten"]) == ([1], 0)


@pytest.mark.parametrize("line_bytes", [1, FINGERPRINT_BYTES, FINGERPRINT_BYTES + 1])
def test_the_last_line_is_kept_within_bounds(tmp_path: Path, line_bytes: int) -> None:
    """A position holds at most 512 bytes of the last line, and nothing of the line before."""
    _, follower = begun(tmp_path, b"first\n" + b"x" * (line_bytes - 1) + b"\n")
    [position] = follower.positions()
    assert position.tail == b"x" * (min(line_bytes, 512) - 1) + b"\n"


def test_limits(tmp_path: Path) -> None:
    """A file, entry or directory above a limit is skipped and counted."""
    for number in range(3):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}" / "a.log").write_bytes(b"x\n")
    assert len(follow(tmp_path, limits=FollowLimits(directories=3)).discover()) == 3
    for limits, reason in (
        (FollowLimits(directories=2), "directory_limit"),
        (FollowLimits(files=2), "file_limit"),
        (FollowLimits(entries=2), "entry_limit"),
    ):
        follower = follow(tmp_path, limits=limits)
        assert (len(follower.discover()) <= 2, follower.skipped[reason]) == (True, 1)


@pytest.mark.parametrize("mounted", [False, True])
def test_start_at_end_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: bool) -> None:
    """A directory that appears after the start is read from the beginning; if it is mounted, from its files' ends."""
    root = tmp_path / "root"
    follower = follow(root, start_at_end=True)
    assert follower.discover() == []
    assert not follower.available
    root.mkdir()
    (root / "a.log").write_bytes(b"first\n")
    if mounted:
        assert listing._device_of(str(root / "no" / "path")) == root.stat().st_dev
        monkeypatch.setattr(listing, "_device_of", lambda _root: 0)
    assert poll(follower) == (b"" if mounted else b"first\n")
    append(root / "a.log", b"next\n")
    (root / "b.log").write_bytes(b"new\n")
    assert poll(follower) == b"next\nnew\n"


def test_a_directory_that_fails_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a directory fails, new files elsewhere are read from their first byte; its own files and positions wait."""
    for name in ("good", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.log").write_bytes(b"before\n")
    _, first = begun(tmp_path / "broken", b"before\n")
    [position] = first.positions()
    append(tmp_path / "broken/a.log", b"meanwhile\n")
    works = listing.opened_below

    def fails(base: int, path: str) -> int:
        if path == "broken":
            raise OSError(errno.EIO, "the file server is gone")
        return works(base, path)

    for resume, waiting in (((), b""), ((position,), b"meanwhile\n")):
        monkeypatch.setattr(listing, "opened_below", fails)
        follower = follow(tmp_path, start_at_end=True, resume=resume)
        follower.discover()
        (tmp_path / "good/b.log").write_bytes(b"new\n")
        assert (poll(follower), follower.looked) == (b"new\n", True)
        monkeypatch.setattr(listing, "opened_below", works)
        assert poll(follower) == waiting
        (tmp_path / "broken/b.log").write_bytes(b"later\n")
        assert poll(follower) == b"later\n"
        for name in ("good", "broken"):
            (tmp_path / name / "b.log").unlink()


def test_a_file_that_fails_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While stat of a file fails, new files are read from their first byte; that file is later read from its end."""

    def fails() -> os.stat_result:
        raise OSError(errno.ENOTCONN, "a user's FUSE mount has ended")

    (tmp_path / "bad.log").write_bytes(b"before\n")
    works = listing.FoundEntry
    monkeypatch.setattr(listing, "FoundEntry", lambda name, inode, _: works(name, inode, fails))
    follower = follow(tmp_path, start_at_end=True)
    follower.discover()
    monkeypatch.setattr(listing, "FoundEntry", works)
    (tmp_path / "new.log").write_bytes(b"new\n")
    assert (poll(follower), follower.looked) == (b"new\n", True)
    append(tmp_path / "bad.log", b"later\n")
    assert poll(follower) == b"later\n"


def test_resume(tmp_path: Path) -> None:
    """An unchanged file is read from its saved offset; it has caught up when all lines before the restart are read."""
    path, first = begun(tmp_path, b"one\n")
    positions = first.positions()
    first.close()
    append(path, b"two\nthr")
    follower = follow(tmp_path, resume=positions)
    [file] = follower.discover()
    assert not file.caught_up
    assert drain(follower, file) == b"two\n"
    assert file.caught_up
    assert (file.generation, file.from_start) == (0, False)


def test_positions_wait_for_an_absent_directory(tmp_path: Path) -> None:
    """Positions are kept until the directory has been read once, because it can be mounted late."""
    position = Position(1, 2, 0, "gone.log", 5, b"12345")
    follower = follow(tmp_path / "mount", resume=[position])
    follower.discover()
    assert follower.positions() == [position]
    (tmp_path / "mount").mkdir()
    follower.discover()
    assert follower.positions() == []


# A model: writers do what real writers can do, and a follower polls from time to time.

LINE = re.compile(rb"L\d{6};")


class Written:
    """A file as its writer knows it: complete ``lines`` that no writer destroyed, and the unfinished line ``half``."""

    def __init__(self, handle: BinaryIO) -> None:
        self.handle = handle
        self.lines: list[bytes] = []
        self.half = b""
        self.is_polled = False


class World:
    """One file name with its writers, and the follower under test; ``given_lines``: all lines that it returned."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.number = 0
        self.name = 0
        self.path = root / "0.log"
        self.unlinked: list[Written] = []
        self.opened: list[Written] = []
        self.file = self._open()
        self.follower = follow(root)
        self.given_lines: list[bytes] = []
        self.saved: tuple[list[Position], list[bytes]] = ([], [])

    def _open(self) -> Written:
        self.opened.append(Written(self.path.open("wb", buffering=0)))
        return self.opened[-1]

    def _next(self) -> bytes:
        self.number += 1
        return b"L%06d;" % self.number

    def append(self, file: Written | None = None) -> None:
        file = file or self.file
        line = self._next()
        if file.half:
            rest = file.half[3:]
            file.handle.write(rest + b"\n")
            file.lines.append(file.half)
            file.half = b""
        file.handle.write(line + b"\n")
        file.lines.append(line)

    def append_half(self) -> None:
        if not self.file.half:
            self.file.half = self._next()
            self.file.handle.write(self.file.half[:3])

    def append_to_gone(self) -> None:
        for file in self.unlinked:
            self.append(file)

    def begin_anew(self) -> None:
        self.file.handle.truncate(0)
        self.file.handle.seek(0)
        self.file.lines = []
        self.file.half = b""
        self.append()

    def copytruncate(self) -> None:
        """Truncate the file; its writer goes on at the old offset, which leaves a hole."""
        self.file.handle.truncate(0)
        self.file.lines = []
        if self.file.half:
            self.file.handle.write(b"\n")
            self.file.half = b""

    def rename(self) -> None:
        self.name += 1
        self.path = self.path.rename(self.root / f"{self.name}.log")

    def replace(self) -> None:
        self.path.unlink()
        if self.file.is_polled:
            self.unlinked.append(self.file)
        self.file = self._open()

    def look(self) -> None:
        expected = [line for file in (*self.unlinked, self.file) for line in file.lines]
        already = set(self.given_lines)
        new = [line for line in poll(self.follower).split(b"\n") if LINE.fullmatch(line)]
        assert (len(new), sorted(new)) == (len(set(new)), sorted(line for line in expected if line not in already))
        self.given_lines += new
        self.file.is_polled = True

    def checkpoint(self) -> None:
        self.saved = (self.follower.positions(), list(self.given_lines))

    def crash(self) -> None:
        self.follower.close()
        positions, given_lines = self.saved
        self.follower = follow(self.root, resume=positions)
        self.given_lines = list(given_lines)
        self.unlinked = []
        self.file.is_polled = False

    def close(self) -> None:
        self.follower.close()
        for file in self.opened:
            file.handle.close()


STEPS = ("append", "append_half", "append_to_gone", "begin_anew", "copytruncate", "rename", "replace", "look")


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Path]:
    """Provide a new directory name for each example."""
    return (tmp_path / str(number) for number in itertools.count())


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from((*STEPS, "look", "append", "checkpoint", "crash")), max_size=30))
def test_no_line_lost_and_none_twice(roots: Iterator[Path], steps: list[str]) -> None:
    """Whatever writers do, each line that exists at a poll is returned once, even after a crash and restart."""
    root = next(roots)
    root.mkdir()
    world = World(root)
    try:
        for step in (*steps, "look"):
            getattr(world, step)()
    finally:
        world.close()
