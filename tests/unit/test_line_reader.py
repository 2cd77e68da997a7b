import errno
import os
from pathlib import Path

import pytest
from test_follow import drain, follow, open_descriptors, poll

from agent.tail.listing import FollowLimits


def test_file_swapped_for_a_link_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, FIFO or file that replaces a file between search and open is counted, and not read."""
    (tmp_path / "secret").write_bytes(b"secret\n")
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).write_bytes(b"line\n")
    follower = follow(tmp_path)
    files = {Path(file.path).name: file for file in follower.discover()}
    for name in files:
        (tmp_path / name).unlink()
    (tmp_path / "a.log").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "b.log")
    os.link(tmp_path / "secret", tmp_path / "c.log")
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags, **more: (opened.append(flags), real(path, flags, **more))[1])
    assert [follower.read(file) for file in files.values()] == [None, None, None]
    assert follower.skipped["replaced"] == 3
    assert all(flags & (os.O_PATH | os.O_DIRECTORY) for flags in opened)


def test_unreadable_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened or read is counted by the error's name; the other files are read."""
    (tmp_path / "a.log").write_bytes(b"a\n")
    follower = follow(tmp_path)
    [file] = follower.discover()

    def fail(*_: object, **__: object) -> int:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", fail)
    assert follower.read(file) is None
    assert (follower.head(file), follower.skipped["EACCES"]) == (b"", 2)


def test_replaced_while_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file is replaced during a read, the data is dropped, and the new content is read from its start."""
    path = tmp_path / "a.log"
    path.write_bytes(b"old 1\nold 2\n")
    follower = follow(tmp_path)
    [file] = follower.discover()
    real, calls = os.pread, 0

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:  # after the check of the front, before the lines
            path.write_bytes(b"new 1\nnew 2\nnew 3\n")
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert follower.read(file) is None
    assert poll(follower) == b"new 1\nnew 2\nnew 3\n"


def test_head(tmp_path: Path) -> None:
    """`head` returns the first 4096 bytes of a file, and leaves no descriptor open."""
    (tmp_path / "a.log").write_bytes(b"x" * 5000)
    follower = follow(tmp_path)
    [file] = follower.discover()
    before = open_descriptors(tmp_path)
    assert follower.head(file) == b"x" * 4096
    assert open_descriptors(tmp_path) == before


def test_file_that_found_no_descriptor_is_read_later(tmp_path: Path) -> None:
    """A file with unread lines keeps its descriptor. A file without one is counted, and is read once one is free, even
    if it does not change."""
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    (tmp_path / "b.log").write_bytes(b"last words\n")
    follower = follow(tmp_path, limits=FollowLimits(open_files=1))
    first, second = sorted(follower.discover(), key=lambda file: file.path)
    assert follower.read(first, 4) is not None
    for _ in range(3):
        assert follower.read(second) is None
        follower.discover()
    assert follower.skipped["open_limit"] == 3
    drain(follower, first)
    assert poll(follower) == b"last words\n"


def test_error_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed read the file is read again at each poll, even if it does not change."""
    (tmp_path / "a.log").write_bytes(b"one\n")
    follower = follow(tmp_path)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr("agent.tail.reader.os.pread", fail)
        assert ([poll(follower) for _ in range(3)], follower.skipped["EIO"]) == ([b"", b"", b""], 3)
    assert poll(follower) == b"one\n"


def test_unlinked_files_do_not_keep_others_out(tmp_path: Path) -> None:
    """An unlinked file keeps its descriptor longer than a named one, unless all open files are unlinked."""
    follower = follow(tmp_path, limits=FollowLimits(open_files=2))
    for name in ("gone", "kept"):
        (tmp_path / f"{name}.log").write_bytes(b"one\n")
        poll(follower)
    (tmp_path / "gone.log").unlink()
    (tmp_path / "new.log").write_bytes(b"two\n")
    assert poll(follower) == b"two\n"
    assert sorted(Path(file.path).name for file in follower.files() if file.descriptor is not None) == [
        "gone.log",
        "new.log",
    ]
    (tmp_path / "new.log").unlink()
    (tmp_path / "newer.log").write_bytes(b"three\n")
    assert poll(follower) == b"three\n"
