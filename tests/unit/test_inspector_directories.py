"""An exporter with several directories: failures in one directory, and the ring sizes of writers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inspector_records import append, line
from test_inspector_exporter import OPERATIONS, SERIES, Bench
from test_inspector_formats import overflowing

from exporters.inspector.exporter import Checkpoint
from exporters.inspector.format.passes import MIN_WATCHED_LINES, ring_sizes
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.reclaim import Reclaim, Reclaimer

OTHER_SERIES = ("job", "2", *SERIES[2:])


def two_directories(root: Path) -> tuple[Path, Path]:
    """Make two directories, one with an empty log of pid 7 and one with an empty log of pid 8."""
    directories = (root / "a", root / "b")
    for directory, pid in zip(directories, (7, 8), strict=True):
        directory.mkdir()
        (directory / f"here-pid{pid}.log").touch()
    return directories


def write(directories: tuple[Path, ...], sn: int) -> None:
    """Append a record to each log."""
    for directory in directories:
        [path] = directory.iterdir()
        append(path, line(sn, pid=int(path.stem.partition("-pid")[2])))


def test_ring_sizes_are_known_after_a_restart(tmp_path: Path) -> None:
    """The ring size of a restored writer is known before the first turn."""
    path = tmp_path / "here-pid7.log"
    path.touch()
    first = Bench(tmp_path).following()
    path.write_bytes(line(0))
    first.look()
    first.look(3.0)
    first.drain()
    append(path, b"".join(overflowing(4, 128, 40)))
    second = Bench(tmp_path, restored=first.state.published)
    second.ranks.settings[7] = {"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE": "128"}
    second.following()
    shown = second.look(3.0)["rankwatch_inspector_missing_records_total"]
    assert (shown["job", "1", "overflow"], shown["job", "1", "filtered_or_lost"]) == (4 * 40 - 1, 0)
    second.drain()


def test_a_turn_that_cannot_be_taken_in_costs_its_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one directory's results raise an error, no update fails, and the other's count. Later both count."""
    directories = two_directories(tmp_path)
    bench = Bench(*directories).following()
    write(directories, 0)
    real = bench.ranks.observe_records

    def observe(writer: Any, *rest: Any) -> None:
        if writer.pid == 7:
            raise RuntimeError
        real(writer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(bench.ranks, "observe_records", observe)
        for sn in (1, 2):
            assert list(bench.look()[OPERATIONS]) == [OTHER_SERIES]
            write(directories, sn)
    assert bench.context.failures.skipped == 2
    assert bench.context.note.text == f"cannot read {directories[0]}: see the log"
    assert [writer.pid for writer, *_ in bench.ranks.observed] == [8, 8]
    assert bench.look()[OPERATIONS] == {SERIES: 3, OTHER_SERIES: 3}
    assert not bench.context.note.text
    bench.drain()


def test_what_cannot_be_given_back_costs_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reclaim error is counted, and the turn's totals are shown."""
    directories = two_directories(tmp_path)
    bench = Bench(*directories, reclaim=Reclaim(enabled=True)).start()

    def fail(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(Reclaimer, "_run", fail)
    bench.look()
    write(directories, 0)
    bench.state.durable = b"anything"
    assert bench.look(6.0)[OPERATIONS] == {SERIES: 1, OTHER_SERIES: 1}
    assert bench.look()["rankwatch_inspector_reclaim_errors_total"] == {("RuntimeError",): 2}
    bench.state.durable = None
    bench.drain()


def test_threads_end_although_the_last_turn_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the reader's last turn raises, the exporter still frees its budget and ends every thread."""
    directories = two_directories(tmp_path)
    bench = Bench(*directories).following()
    write(directories, 0)
    bench.look()
    closed = []

    def close(self: DirectoryReader) -> None:
        closed.append(self)

    monkeypatch.setattr(DirectoryReader, "close", close)
    monkeypatch.setattr(DirectoryReader, "turn", lambda *_, **__: 1 / 0)
    threads = [directory.thread for directory in bench.exporter._directories]
    with pytest.raises(ZeroDivisionError):
        bench.drain()
    assert len(closed) == 2
    assert all(thread._stopped for thread in threads)
    assert bench.admission.taken == 0


@pytest.mark.parametrize("damage", ["inherited", "a"])
def test_a_damaged_part_of_the_checkpoint_costs_that_part_alone(tmp_path: Path, damage: str) -> None:
    """A damaged part of the checkpoint affects no other; a directory with a damaged part starts at its files' ends."""
    directories = two_directories(tmp_path)
    bench = Bench(*directories).following()
    write(directories, 0)
    bench.look()
    bench.drain()
    assert bench.state.published is not None
    saved = msgspec.msgpack.decode(bench.state.published, type=Checkpoint)
    if damage == "a":
        saved.sections[str(directories[0])] = b"\x91" * 2000
    else:
        saved.inherited = msgspec.Raw(msgspec.msgpack.encode({"sums": 7}))
    second = Bench(*directories, restored=msgspec.msgpack.encode(saved)).following()
    write(directories, 1)
    lost = damage == "a"
    assert second.look()[OPERATIONS] == {SERIES: 1 if lost else 2, OTHER_SERIES: 2}
    second.drain()


@pytest.mark.parametrize("restored", [b"", b"\x91" * 100_000, b"\x81\xa1x", b"\xc1"], ids=["none", "deep", "cut", "no"])
def test_no_section_of_the_checkpoint_keeps_the_exporter_from_starting(tmp_path: Path, restored: bytes) -> None:
    """With any invalid checkpoint section, the exporter starts, reads, and replaces the section."""
    bench = Bench(tmp_path, restored=restored).following(7)
    (tmp_path / "here-pid7.log").write_bytes(line(0))
    assert bench.look()[OPERATIONS] == {SERIES: 1}
    bench.drain()
    assert msgspec.msgpack.decode(bench.state.published or b"", type=Checkpoint).sections


def test_a_reader_is_used_from_its_own_thread_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader is made, run, reclaimed and closed in the thread of its directory."""
    used: set[tuple[str, str]] = set()

    def watched(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            used.add((name, threading.current_thread().name))
            return real(self, *arguments, **more)

        monkeypatch.setattr(kind, name, call)

    for name in ("__init__", "turn", "owned", "totals", "close"):
        watched(DirectoryReader, name)
    watched(Reclaimer, "run")
    directories = two_directories(tmp_path)
    bench = Bench(*directories).following()
    write(directories, 0)
    bench.look()
    bench.drain()
    names = {"__init__", "turn", "owned", "totals", "close", "run"}
    assert used == {(name, thread) for name in names for thread in ("inspector-0", "inspector-1")}


@pytest.mark.parametrize(("text", "watched"), [("63", False), ("64", True), ("off", False), ("0", False), ("-1", True)])
def test_small_rings_are_not_watched(text: str, watched: bool) -> None:
    """Rings below the limit do not split lines into passes, because small passes make reading slow."""
    sizes = ring_sizes({"NCCL_INSPECTOR_DUMP_P2P_RING_SIZE": text, "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE": "-1"})
    assert sizes.smallest_watched() == (sizes.p2p if watched else sizes.collective)
    assert sizes.smallest_watched() >= MIN_WATCHED_LINES
