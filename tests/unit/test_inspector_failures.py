"""An error during the read of one file delays only that file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_clock import FakeClock
from inspector_reading import EVERYONE, all_of, make, published, read
from inspector_records import append, line

from agent.sdk.ranks import WriterKey
from agent.tail.reader import LineReader
from exporters.inspector.format.records import Result
from exporters.inspector.reading import intake, reader as module, record_files
from exporters.inspector.reading.record_files import MAX_RETRY_SECONDS, Ownership
from exporters.inspector.reading.turn import Published
from exporters.inspector.totals.aggregate import Aggregate

BAD_PID = 13


def three_files(root: Path) -> list[Path]:
    """Write the logs of three writers; the second one is the bad file."""
    paths = [root / f"here-pid{pid}.log" for pid in (7, BAD_PID, 21)]
    for path, pid in zip(paths, (7, BAD_PID, 21), strict=True):
        path.write_bytes(b"".join(line(sn, pid=pid) for sn in range(10)))
    return paths


def grow(paths: list[Path], first: int, last: int) -> None:
    """Add records ``first`` to ``last`` - 1 to each file."""
    for path in paths:
        pid = int(path.stem.partition("-pid")[2])
        append(path, b"".join(line(sn, pid=pid) for sn in range(first, last)))


def operations(view: Published) -> dict[int, int]:
    """Return the operations, keyed by the pid of their writer."""
    return {one.writer_key.pid: sum(total.operations for key, total in one.totals.items()) for one in view.writers}


Break = Callable[[pytest.MonkeyPatch, Exception], None]


def _bad(record_or_file: Any) -> bool:
    path = getattr(record_or_file, "path", None) or record_or_file.file.path
    return path.endswith(f"-pid{BAD_PID}.log")


def break_read(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make reads of the bad file raise."""
    real = LineReader.read

    def read(self: LineReader, file: Any, budget_bytes: int) -> Any:
        if _bad(file):
            raise error
        return real(self, file, budget_bytes)

    patch.setattr(LineReader, "read", read)


def break_second_look(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the second check of the bad file's first bytes raise: the check after the read."""
    real, looks = os.pread, {"count": 0}

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if length == 512 and os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"-pid{BAD_PID}.log"):
            looks["count"] += 1
            if looks["count"] % 2 == 0:
                raise error
        return real(descriptor, length, offset)

    patch.setattr("agent.tail.reader.os.pread", pread)


def break_decode(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the decoder raise at lines of the bad writer."""
    real = intake.decode_lines

    def decode_lines(data: bytes) -> Any:
        if b'"pid":%d' % BAD_PID in data:
            raise error
        return real(data)

    patch.setattr(intake, "decode_lines", decode_lines)


def break_add(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the aggregate of the bad writer raise."""
    real = Aggregate.add

    def add(self: Aggregate, *arguments: Any) -> None:
        if self.writer_key.pid == BAD_PID:
            raise error
        real(self, *arguments)

    patch.setattr(Aggregate, "add", add)


def break_losses(name: str, patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make a method of the bad writer's losses raise."""
    real = Aggregate.__init__

    def make(self: Aggregate, writer_key: WriterKey, *arguments: Any, **more: Any) -> None:
        real(self, writer_key, *arguments, **more)
        if writer_key.pid == BAD_PID:
            patch.setattr(self.losses, name, Mock(side_effect=error))

    patch.setattr(Aggregate, "__init__", make)


def break_state(patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the owner check of the bad file raise."""
    real = record_files.RecordFiles._state

    def state(self: record_files.RecordFiles, record_file: record_files.RecordFile, ownership: Ownership) -> Any:
        if f"-pid{BAD_PID}" in record_file.file.path:
            raise error
        return real(self, record_file, ownership)

    patch.setattr(record_files.RecordFiles, "_state", state)


@pytest.mark.parametrize("error", [
    RuntimeError("secret of a job"), RecursionError("deep"), MemoryError(), OSError(5, "I/O"), OverflowError("big"),
], ids=lambda error: type(error).__name__)  # fmt: skip
@pytest.mark.parametrize("breaks", [
    break_read, break_second_look, break_decode, break_add, partial(break_losses, "begin_pass"),
    partial(break_losses, "end_pass"), break_state,
], ids=["read", "second_look", "decode", "add", "begin_pass", "end_pass", "state"])  # fmt: skip
def test_an_error_in_one_file_costs_that_file_alone(
    tmp_path: Path, breaks: Break, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The other files are read to their ends in the same turns, and the bad file is read once the error is over."""
    clock, paths = FakeClock(), three_files(tmp_path)
    reader = make(tmp_path, clock)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        breaks(patch, error)
        for number in range(4):
            clock.advance(0.25)
            reader.turn(EVERYONE, last=True)
            grow(paths, 10 + number, 11 + number)
        clock.advance(3.0)  # batches have ended
        turn = reader.turn(EVERYONE, last=True)
        shown = operations(published(turn))
        assert (shown[7], shown[21]) == (14, 14)
        assert turn.section is not None
        assert sum(published(turn).skipped.values()) >= 1
        assert "secret" not in caplog.text
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1
    grow(paths, 14, 15)
    clock.advance(MAX_RETRY_SECONDS)
    view = published(reader.turn(EVERYONE, last=True))
    shown, failed = operations(view), view.results.get(Result.FAILED, 0)
    assert (shown[7], shown[21], shown[BAD_PID] + failed) == (15, 15, 15)
    assert not failed or breaks not in (break_read, break_second_look)  # unread lines are read later
    assert view.lag_bytes == 0
    reader.close()


def test_lines_after_a_hole_fail_with_the_lines_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the lines before a hole raise, all lines of the chunk count as failed."""
    lines = [line(sn, pid=BAD_PID) for sn in range(3)]
    (tmp_path / "here-pid13.log").write_bytes(lines[0] + b"\0" * 9 + lines[1] + lines[2])
    break_decode(monkeypatch, RuntimeError())
    assert read(make(tmp_path)).results == {Result.FAILED: 3}


def test_retries_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that keeps failing is retried after 1, 2, 4 ... seconds, and at last once a minute."""
    three_files(tmp_path)
    clock = FakeClock()
    reader = make(tmp_path, clock)
    tried: list[float] = []
    real = LineReader.read

    def read(self: LineReader, file: Any, budget_bytes: int) -> Any:
        if _bad(file):
            tried.append(clock.monotonic())
            raise RuntimeError
        return real(self, file, budget_bytes)

    monkeypatch.setattr(LineReader, "read", read)
    for _ in range(4 * 400):
        reader.turn(EVERYONE)
        clock.advance(0.25)
    assert [later - earlier for earlier, later in pairwise(tried)][:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    reader.close()


@pytest.mark.parametrize("where", ["matching", "publish", "save"])
def test_a_turn_that_fails_keeps_what_it_has_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The next turn that succeeds has the evidence and totals of a failed turn."""
    three_files(tmp_path)
    clock = FakeClock()
    reader = make(tmp_path, clock)
    expired = next(one.writer_key for one in published(all_of(reader)).writers if one.writer_key.pid == 7)
    grow([tmp_path / "here-pid21.log"], 10, 11)
    clock.advance(5.0)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    turns = []
    with monkeypatch.context() as patch:
        targets = {"matching": (reader._shared.matching, "settle"), "publish": (reader, "_publish")}
        patch.setattr(*targets.get(where, (module.msgspec.msgpack, "encode")), fail)
        try:
            turns.append(reader.turn(EVERYONE, [expired]))
        except RuntimeError:
            assert where != "save"
    clock.advance(5.0)
    turns.append(reader.turn(EVERYONE, last=True))
    assert [one.writer_key for turn in turns for one in turn.retired] == [expired]
    assert [one.writer_key.pid for turn in turns for one in turn.evidence] == [21]
    assert turns[-1].section is not None
    assert operations(published(turns[-1])) == {BAD_PID: 10, 21: 11}
    reader.close()


def test_a_name_that_is_no_text_keeps_no_checkpoint_from_being_made(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is read, saved and resumed like any other."""
    clock, path = FakeClock(), os.fsencode(tmp_path) + b"/here-\xff-pid7.log"
    Path(os.fsdecode(path)).write_bytes(line(0))
    section = all_of(make(tmp_path, clock)).section
    assert section is not None
    append(Path(os.fsdecode(path)), line(1))
    assert operations(read(make(tmp_path, clock, section))) == {7: 2}


@pytest.mark.parametrize("error", [RuntimeError("odd"), PermissionError(13, "no")])
def test_a_file_that_fails_ever_since_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Ten minutes after a restart all counts are shown again, even if one file has failed since the restart."""
    clock, paths = FakeClock(), three_files(tmp_path)
    section = all_of(make(tmp_path, clock)).section
    grow(paths, 10, 20)
    break_read(monkeypatch, error)
    reader = make(tmp_path, clock, restored=section)
    for _ in range(600):
        clock.advance(1.0)
        turn = reader.turn(EVERYONE)
    assert published(turn).caught_up
