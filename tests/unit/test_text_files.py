"""Text files that match patterns: their names, owners and lines, and hostile writers."""

import os
from pathlib import Path

import pytest

from agent.tail import listing, patterns, text_files
from agent.tail.file import MAX_LINE_BYTES, SCAN_BYTES
from agent.tail.listing import Subdirectory
from agent.tail.patterns import MAX_PATTERN_PARTS, compiled_path_pattern
from agent.tail.text_files import BACKLOG_BYTES, MAX_NAMED, MAX_TEXT_BYTES, PIECE_BYTES, TextFiles

ENOUGH = 1 << 30


def files_of(root: Path, *patterns_: str) -> TextFiles:
    """Return the files below ``root`` that match the patterns."""
    return TextFiles([f"{root}/{pattern}" for pattern in patterns_], lambda: 0.0)


def discovered(root: Path, *patterns_: str) -> TextFiles:
    """Search for files, and return them."""
    files = files_of(root, *patterns_)
    files.discover()
    return files


def lines(files: TextFiles) -> list[bytes]:
    """Return all lines that can be read."""
    return [line for piece in files.read(ENOUGH) for line in piece.lines()]


def write(path: Path, text: bytes) -> None:
    """Append to a file, and make its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


def test_what_is_no_pattern() -> None:
    """A pattern is absolute, without empty names, `..` or `**`, and has at most one job id."""
    long = "/a" * (MAX_PATTERN_PARTS + 1)
    for text in ("", "relative/*.log", "/", "/a/", "/a//b", "/a/../b", "/a/**/b", "/%j/%j", "/a\0b", long):
        with pytest.raises(ValueError, match=r"not an absolute path|more than"):
            compiled_path_pattern(text)


def test_lines_are_cut_and_may_hold_anything(tmp_path: Path) -> None:
    """A long line is cut, a line above the follower's limit is skipped, and bytes stay as they are."""
    exact = b"x" * MAX_TEXT_BYTES
    write(tmp_path / "a.log", exact + b"\n" + exact + b"y\n" + b"z" * (MAX_LINE_BYTES + 1) + b"\n\xff\x80\n")
    files = discovered(tmp_path, "*.log")
    assert lines(files) == [exact, exact, b"\xff\x80"]


def test_a_hole_is_read_in_bounded_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system shows a hole as data, a turn searches a limited part of it; no line is lost."""
    write(tmp_path / "a.log", b"one\n")
    files = discovered(tmp_path, "*.log")
    assert lines(files) == [b"one"]
    os.truncate(tmp_path / "a.log", 5 * SCAN_BYTES)
    write(tmp_path / "a.log", b"two\n")
    monkeypatch.setattr(os, "lseek", lambda _descriptor, position, _how: position)
    turns = [[piece.data for piece in files.read(PIECE_BYTES)] for _ in range(3)]
    assert turns == [[b"", b""], [b"", b""], [b"two\n"]]


def test_resuming_reads_on(tmp_path: Path) -> None:
    """Reading continues at the saved positions; of more than 16 MiB of new data only the last 16 MiB are read."""
    write(tmp_path / "a.log", b"first\n")
    files = discovered(tmp_path, "*.log")
    assert lines(files) == [b"first"]
    write(tmp_path / "a.log", b"second\n")
    again = TextFiles([f"{tmp_path}/*.log"], lambda: 0.0, resume=files.positions())
    again.discover()
    assert lines(again) == [b"second"]
    positions = again.positions()
    write(tmp_path / "a.log", b"old line\n" + b"0123456789abcde\n" * (BACKLOG_BYTES // 16))
    third = TextFiles([f"{tmp_path}/*.log"], lambda: 0.0, resume=positions)
    third.discover()
    assert b"old line" not in lines(third)


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Links to other users' files or directories are not followed; the configured base can be a link."""
    secret = tmp_path / "secret/x.log"
    write(secret, b"secret\n")
    write(tmp_path / "real/user/a.log", b"line\n")
    (tmp_path / "real/user/b.log").symlink_to(secret)
    (tmp_path / "real/other").symlink_to(tmp_path / "secret")
    (tmp_path / "base").symlink_to(tmp_path / "real")
    files = discovered(tmp_path, "base/*/*.log")
    assert lines(files) == [b"line"]


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a user replaces a directory by a link during a search, the link is not followed."""
    write(tmp_path / "secret/x.log", b"secret\n")
    write(tmp_path / "base/user/a.log", b"line\n")
    real = listing.fairly_chosen

    def replaced(folders: list[Subdirectory], limit: int) -> list[Subdirectory]:
        if folders:
            (tmp_path / "base/user").rename(tmp_path / "away")
            (tmp_path / "base/user").symlink_to(tmp_path / "secret")
        return real(folders, limit)

    monkeypatch.setattr(listing, "fairly_chosen", replaced)
    assert files_of(tmp_path, "base/*/*.log").discover() == []


def test_named_files_are_followed_too(tmp_path: Path) -> None:
    """Files whose paths are given to ``discover`` are followed like matching files, at most MAX_NAMED of them."""
    write(tmp_path / "x/stdout", b"line\n")
    files = files_of(tmp_path, "*.log")
    stdout, missing = f"{tmp_path}/x/stdout", f"{tmp_path}/missing"
    assert [file.path for file in files.discover([stdout, missing])] == [stdout]
    assert lines(files) == [b"line"]
    files.discover([missing] * MAX_NAMED + [f"{tmp_path}/x/second"])
    assert [file.path for file in files.discover([stdout])] == [stdout]


def test_a_log_that_outgrows_the_reading_delays_no_other(tmp_path: Path) -> None:
    """While one file grows faster than it is read, a line in another file is read in the same look."""
    for name in ("fast.log", "slow.log"):
        write(tmp_path / name, b"line\n")
    files = discovered(tmp_path, "*.log")
    assert lines(files) == [b"line"] * 2
    budget = 4 * PIECE_BYTES
    for turn in range(3):
        write(tmp_path / "fast.log", b"line\n" * (2 * budget // 5))
        write(tmp_path / "slow.log", b"turn %d\n" % turn)
        assert b"turn %d" % turn in [line for piece in files.read(budget) for line in piece.lines()]


def test_every_user_has_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look's budget is spent on the users in turns, one file each; the next look continues with the next file."""
    for number in range(4):
        write(tmp_path / f"{number}.log", b"x" * 99 + b"\n")
    monkeypatch.setattr(text_files, "PIECE_BYTES", 100)
    files = files_of(tmp_path, "*.log")
    for file in files.discover():
        file.share = file.share._replace(uid=1 if file.path.endswith("3.log") else 0)
    assert sorted([piece.file.share.uid for piece in files.read(200)]) == [0, 1]
    assert files.waiting
    assert [piece.file.share.uid for piece in files.read(ENOUGH)] == [0, 0]
    assert not files.waiting


def test_a_job_id_is_bounded() -> None:
    """A job id in a name has at most 20 digits."""
    pattern = compiled_path_pattern("/logs/%j.out")
    assert pattern.job_id("/logs/" + "1" * 20 + ".out") == "1" * 20
    assert pattern.job_id("/logs/" + "1" * 21 + ".out") is None
    assert patterns.compiled_path_pattern("/logs/*.out").job_id("/logs/1.out") is None
