import os
from pathlib import Path

import pytest

from agent.tail.file import CHUNK_BYTES, MAX_LINE_BYTES, Chunk, FollowedFile, end_of_lines, is_replaced, next_lines
from agent.tail.shares import Share


def read_all(path: Path) -> tuple[list[Chunk], FollowedFile]:
    """Read a file to its end, as a follower would."""
    status = path.stat()
    share, size_bytes = Share(0, ""), status.st_size
    file = FollowedFile(status.st_dev, status.st_ino, str(path), size_bytes, 0.0, share, size_at_start=size_bytes)
    descriptor = os.open(path, os.O_RDONLY)
    chunks = []
    while (chunk := next_lines(descriptor, file, MAX_LINE_BYTES)) is not None:
        chunks.append(chunk)
        assert len(chunks) < 10_000
    os.close(descriptor)
    return chunks, file


@pytest.mark.parametrize(("fingerprint", "offset", "size_bytes", "head", "replaced"), [
    (b"", 0, 9, b"something", False),
    (b"abc\n", 4, 9, b"abc\nmore.", False),
    (b"abc\n", 4, 3, b"abc", True),
    (b"abc\n", 9, 4, b"abc\n", True),
    (b"abc\n", 4, 9, b"xyz\nmore.", True),
    (b"abc\n", 4, 9, b"\0\0\0\0\0\0\0\0\n", False),
    (b"abc\n", 4, 9, b"\0\0\0c\nmore", True),
    (b"abc\n", 4, 2, b"\0\0", True),
    (b"\0\0\0\0", 4, 9, b"new.more\n", True),
])  # fmt: skip
def test_is_replaced(fingerprint: bytes, offset: int, size_bytes: int, head: bytes, replaced: bool) -> None:
    """A file that shrank or begins with other bytes was truncated, unless all its first bytes are NULs (a hole)."""
    assert is_replaced(fingerprint, offset, size_bytes, head) == replaced


@pytest.mark.parametrize(("length", "overlong"), [(CHUNK_BYTES + 5, 0), (MAX_LINE_BYTES, 0), (MAX_LINE_BYTES + 1, 1)])
def test_longest_line(tmp_path: Path, length: int, overlong: int) -> None:
    """A line of the maximum length is read; a longer line is skipped and counted, and the next line is read."""
    path = tmp_path / "a.log"
    path.write_bytes(b"y" * length + b"\nnext\n")
    chunks, _ = read_all(path)
    assert sum(chunk.overlong for chunk in chunks) == overlong
    assert b"".join(chunk.data for chunk in chunks) == (b"" if overlong else b"y" * length + b"\n") + b"next\n"


def test_overlong_line_still_growing(tmp_path: Path) -> None:
    """The offset stays at the start of an overlong line until its newline arrives; then the line is counted once."""
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n" + b"z" * (3 * MAX_LINE_BYTES))
    chunks, file = read_all(path)
    assert ([chunk.data for chunk in chunks if chunk.data], file.offset) == ([b"first\n"], len(b"first\n"))
    assert file.scanned == 3 * MAX_LINE_BYTES
    with path.open("ab") as writer:
        writer.write(b"z\nlast\n")
    descriptor = os.open(path, os.O_RDONLY)
    assert next_lines(descriptor, file, CHUNK_BYTES) == Chunk(b"", 1, 0)
    assert next_lines(descriptor, file, CHUNK_BYTES) == Chunk(b"last\n", 0, 0)
    os.close(descriptor)


@pytest.mark.parametrize("hole_bytes", [1, 4096, CHUNK_BYTES, 5_000_000, 3_000_000_000])
def test_hole_before_a_line(tmp_path: Path, hole_bytes: int) -> None:
    """A hole of any size is skipped, and its bytes are counted."""
    path = tmp_path / "a.log"
    with path.open("wb") as writer:
        writer.seek(hole_bytes)
        writer.write(b"line\n")
    chunks, file = read_all(path)
    assert b"".join(chunk.data for chunk in chunks) == b"line\n"
    assert (sum(chunk.hole_bytes for chunk in chunks), file.offset) == (hole_bytes, hole_bytes + 5)


def test_hole_at_the_end_is_left(tmp_path: Path) -> None:
    """NULs at the end of a file are neither skipped nor counted, because data can follow."""
    path = tmp_path / "a.log"
    path.write_bytes(b"line\n" + b"\0" * 10_000)
    chunks, file = read_all(path)
    assert (chunks, file.offset) == ([Chunk(b"line\n", 0, 0)], 5)


@pytest.mark.parametrize("hole_bytes", [10_000, 2 * MAX_LINE_BYTES + 1])
def test_lines_after_or_in_a_hole_at_the_end_are_read(tmp_path: Path, hole_bytes: int) -> None:
    """Lines that follow NULs at the end, or replace these NULs, are read, however long the hole was."""
    for start in (hole_bytes, 0):
        path = tmp_path / f"{start}.log"
        path.write_bytes(b"\0" * hole_bytes)
        chunks, file = read_all(path)
        assert chunks == []
        with path.open("r+b") as writer:
            writer.seek(start)
            writer.write(b"line\n" * 2)
        descriptor = os.open(path, os.O_RDONLY)
        chunk = next_lines(descriptor, file, CHUNK_BYTES)
        os.close(descriptor)
        assert chunk is not None
        assert chunk.data.strip(b"\n") == b"line\nline"


@pytest.mark.parametrize("hole_bytes", [3, 2 * MAX_LINE_BYTES])
def test_hole_inside_a_line(tmp_path: Path, hole_bytes: int) -> None:
    """A hole inside a line cuts the line in two, and the NULs are counted."""
    path = tmp_path / "a.log"
    path.write_bytes(b'{"cut' + b"\0" * hole_bytes + b'tail"}\nnext\n')
    chunks, _ = read_all(path)
    lines = b"".join(chunk.data for chunk in chunks).split(b"\n")
    assert [line for line in lines if line] == [b'{"cut', b'tail"}', b"next"]
    assert sum(chunk.hole_bytes for chunk in chunks) == hole_bytes


@pytest.mark.parametrize(("content", "size_bytes", "end"), [
    (b"", 0, 0),
    (b"abc", 3, 0),
    (b"a\nb\nc", 5, 4),
    (b"a\nb\n", 4, 4),
    (b"a\nb\nc\n", 3, 2),
    (b"x" * (MAX_LINE_BYTES + 1), MAX_LINE_BYTES + 1, MAX_LINE_BYTES + 1),
])  # fmt: skip
def test_end_of_lines(tmp_path: Path, content: bytes, size_bytes: int, end: int) -> None:
    """Reading from the end starts after the last newline, so that an unfinished line is read when it is complete."""
    path = tmp_path / "a.log"
    path.write_bytes(content)
    _, file = read_all(path)
    descriptor = os.open(path, os.O_RDONLY)
    assert end_of_lines(descriptor, file, size_bytes) == end
    os.close(descriptor)
