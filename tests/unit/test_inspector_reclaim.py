"""Freed disk space: which files are punched and deleted, and which never are."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from fake_clock import FakeClock
from inspector_reading import all_of, make, published
from inspector_records import append, line
from proc_tree import ProcTree

from agent.sdk.exporter import Logger
from agent.sdk.system import ProcFS
from exporters.inspector.exporter import Checkpoint
from exporters.inspector.format.records import Result
from exporters.inspector.reading import reclaim as module
from exporters.inspector.reading.reclaim import KEPT_BYTES, MIN_DELETE_AFTER_SECONDS, Reclaim, Reclaimer

DAY_SECONDS = 86_400.0
LINES = 8000
"""These records are more than 1.5 MB."""


class Bench:
    """A directory, its reader and its reclaimer; ``save`` writes the checkpoint to disk."""

    def __init__(self, path: Path, **config: object) -> None:
        self.root = path / "inspector"
        self.root.mkdir()
        self.log = self.root / "here-pid7.log"
        self.clock = FakeClock()
        self.proc = ProcTree(path / "proc")
        self.proc.add(1)
        self.config = Reclaim(enabled=True, **config)  # type: ignore[arg-type]
        self.durable: bytes | None = None
        self.start(None)

    def start(self, section: bytes | None) -> None:
        """Make a new reader, as after a restart of the agent."""
        self.reader = make(self.root, self.clock, section, from_beginning=section is None)
        self.reclaimer = Reclaimer(f"{self.root}/", self.config, self.clock, ProcFS(self.proc.root), Logger("test"))

    def write(self, count: int, first: int = 0) -> None:
        """Add records to the log."""
        append(self.log, b"".join(line(sn) for sn in range(first, first + count)))

    def read(self, *, save: bool = True) -> dict[Result, int]:
        """Read all files, save the checkpoint, and reclaim."""
        self.clock.advance(10.0)
        turn = all_of(self.reader)
        assert turn.section is not None
        self.section = turn.section
        if save:
            self.save()
        self.reclaimer.run(self.durable, self.reader.owned())
        return published(turn).results

    def save(self) -> None:
        """Save the current offsets to disk."""
        self.durable = msgspec.msgpack.encode(Checkpoint({f"{self.root}/": self.section}))

    def age(self, seconds: float) -> None:
        """Make the log ``seconds`` old."""
        os.utime(self.log, (self.clock.time() - seconds,) * 2)


def test_holes_below_the_durable_offset(tmp_path: Path) -> None:
    """Read and saved data becomes a hole after the first block; the file keeps its size, and reading goes on."""
    bench = Bench(tmp_path)
    bench.write(LINES)
    before, size = bench.log.read_bytes(), bench.log.stat().st_size
    blocks = bench.log.stat().st_blocks
    assert bench.read() == {Result.ACCEPTED: LINES}
    freed = (blocks - bench.log.stat().st_blocks) * 512
    assert freed > size - 3 * KEPT_BYTES
    after, end = bench.log.read_bytes(), size // KEPT_BYTES * KEPT_BYTES
    assert after == before[:KEPT_BYTES] + bytes(end - KEPT_BYTES) + before[end:]
    bench.write(5, LINES)
    assert bench.read() == {Result.ACCEPTED: LINES + 5}
    bench.start(bench.section)
    bench.write(5, LINES + 5)
    assert bench.read() == {Result.ACCEPTED: LINES + 10}
    assert bench.reclaimer.errors == {}


def test_what_is_not_saved_stays(tmp_path: Path) -> None:
    """Data after the last saved checkpoint stays, because a killed agent reads it again."""
    bench = Bench(tmp_path)
    bench.write(10)
    bench.read()
    saved = bench.section
    bench.write(LINES, 10)
    whole = bench.log.read_bytes()
    bench.read(save=False)
    assert bench.log.read_bytes() == whole
    bench.start(saved)
    assert bench.read() == {Result.ACCEPTED: LINES + 10}


@pytest.mark.parametrize("config", [{"punch_holes": False}, {"punch_holes": False, "delete_after_seconds": None}])
def test_nothing_is_done_that_was_not_asked_for(tmp_path: Path, config: dict[str, object]) -> None:
    """If neither option is set, no file changes, however old it is."""
    bench = Bench(tmp_path, **config)
    bench.write(LINES)
    bench.age(DAY_SECONDS)
    whole = bench.log.read_bytes()
    bench.read()
    assert bench.log.read_bytes() == whole
    assert not Reclaim().enabled


def test_a_small_gain_is_left(tmp_path: Path) -> None:
    """No hole of less than a megabyte is made."""
    bench = Bench(tmp_path)
    bench.log.write_bytes(line() + b"\n" * (module.PUNCH_STEP_BYTES - len(line()) - 1))
    whole = bench.log.read_bytes()
    bench.read()
    assert bench.log.read_bytes() == whole
    append(bench.log, b"\n")
    bench.read()
    assert bench.log.stat().st_blocks * 512 < bench.log.stat().st_size


def test_files_of_writers_long_gone(tmp_path: Path) -> None:
    """An old file without a writer is deleted when it is completely read and saved, even if its last line is cut."""
    bench = Bench(tmp_path, delete_after_seconds=DAY_SECONDS)
    bench.write(10)
    append(bench.log, line()[:20])
    bench.age(DAY_SECONDS - 20.0)
    bench.read()
    assert bench.log.exists()
    bench.clock.advance(20.0)
    bench.read()
    assert not bench.log.exists()
    assert bench.read() == {Result.ACCEPTED: 10}


def test_a_file_with_unread_lines_is_not_deleted(tmp_path: Path) -> None:
    """An old file with a line beyond the saved checkpoint stays."""
    bench = Bench(tmp_path, delete_after_seconds=DAY_SECONDS)
    bench.write(10)
    bench.read()
    bench.write(1, 10)
    bench.age(2 * DAY_SECONDS)
    bench.read(save=False)
    assert bench.log.exists()


@pytest.mark.parametrize("blind", [False, True])
def test_a_live_writer_keeps_its_file(tmp_path: Path, blind: bool) -> None:
    """A file stays while a process with its pid, even in a pid namespace, could hold it open."""
    bench = Bench(tmp_path, delete_after_seconds=DAY_SECONDS)
    bench.write(10)
    bench.age(2 * DAY_SECONDS)
    bench.proc.add(300, namespace_pids=(300, 7), files={3: bench.log})
    if blind:
        (bench.proc.root / "300/fd/3").unlink()
        (bench.proc.root / "300/fd").rmdir()
    bench.read()
    assert bench.log.exists()
    bench.proc.add(300, namespace_pids=(300, 7))  # the same pid, another process
    bench.read()
    assert not bench.log.exists()


def test_hidden_processes_keep_their_files(tmp_path: Path) -> None:
    """If other users' processes are hidden, nothing is deleted."""
    bench = Bench(tmp_path, delete_after_seconds=DAY_SECONDS)
    bench.write(10)
    bench.age(2 * DAY_SECONDS)
    bench.proc.remove(1)
    bench.read()
    assert bench.log.exists()


@pytest.mark.parametrize("trick", ["link", "symlink", "replaced", "restarted", "directory"])
def test_other_files_are_never_touched(tmp_path: Path, trick: str) -> None:
    """Hard links, links, directories, and files that were replaced or written again are counted and stay unchanged."""
    bench = Bench(tmp_path, delete_after_seconds=DAY_SECONDS)
    bench.write(LINES)
    bench.read(save=False)
    bench.save()
    precious = tmp_path / "precious"
    if trick == "link":
        precious.hardlink_to(bench.log)
    elif trick == "restarted":
        bench.log.write_bytes(b"".join(line(sn, pid=8) for sn in range(LINES)))
        precious = bench.log
    else:
        precious.write_bytes(bench.log.read_bytes())
        bench.log.unlink()
        if trick == "symlink":
            bench.log.symlink_to(precious)
        elif trick == "replaced":
            precious.rename(bench.log)
            precious = bench.log
        else:
            bench.log.mkdir()
    whole = precious.read_bytes()
    bench.clock.advance(2 * DAY_SECONDS)
    bench.reclaimer.run(bench.durable, bench.reader.owned())
    assert precious.read_bytes() == whole
    expected = {"link": "linked", "symlink": "ELOOP", "directory": "EISDIR"}.get(trick, "replaced")
    assert bench.reclaimer.errors == {expected: 1}


def test_the_bound_of_deletion() -> None:
    """An age of less than a minute is refused."""
    msgspec.convert({"delete_after_seconds": MIN_DELETE_AFTER_SECONDS}, Reclaim)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"delete_after_seconds": MIN_DELETE_AFTER_SECONDS - 1}, Reclaim)
