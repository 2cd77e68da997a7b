"""Small files are read whole when they have changed, and nothing but files."""

import os
from pathlib import Path

import pytest

from agent.system.whole_file import read_changed

ME = os.getuid()


def test_a_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    """What a file holds is told once for each change, up to a byte more than its bound."""
    path = tmp_path / "file"
    path.write_text("12345")
    found = read_changed(str(path), 4, None)
    assert found is not None
    assert found[1] == b"12345"
    assert read_changed(str(path), 4, found[0]) is None
    path.write_text("123456")
    again = read_changed(str(path), 4, found[0])
    assert again is not None
    assert again[1] == b"12345"


def test_nothing_but_files_is_read(tmp_path: Path) -> None:
    """A directory, a FIFO and, where an owner is asked for, a link or another's file are none; no descriptor stays."""
    path = tmp_path / "file"
    path.write_text("x")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for odd in (tmp_path, tmp_path / "fifo"):
        assert read_changed(str(odd), 4, None) is None
    assert read_changed(str(path), 4, None, ME + 1) is None
    assert read_changed(str(path), 4, None, ME) is not None
    assert read_changed(str(tmp_path / "link"), 4, None) is not None
    for name in ("link", "gone"):
        with pytest.raises(OSError, match=name):
            read_changed(str(tmp_path / name), 4, None, ME)
    assert len(os.listdir("/proc/self/fd")) == before
