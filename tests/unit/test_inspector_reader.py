import os
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from hypothesis import HealthCheck, given, settings, strategies as st
from inspector_expected import expected
from inspector_reading import all_of, make, published, sums_of
from inspector_records import append, line

from agent.tail.file import Chunk, FollowedFile
from exporters.inspector.format.records import Result
from exporters.inspector.reading import reader as module, writers as writers_module
from exporters.inspector.reading.intake import take
from exporters.inspector.reading.record_files import (
    FIRST_PIECE_BYTES,
    LEAST_PIECE_BYTES,
    FileState,
    Ownership,
    is_local,
    is_log,
    named_hostname,
    written_hostname,
)
from exporters.inspector.totals.frozen import WriterTotals

HERE = Ownership(hostnames={"here": frozenset()})


def operations_of(writer: WriterTotals) -> int:
    """Return the number of operations in a writer's totals."""
    return sum(total.operations for total in writer.totals.values())


def missing_of(writer: WriterTotals) -> int:
    """Return the number of a writer's missing records of any cause."""
    return sum(count for (_, _, tally), count in writer.tallies.items() if tally.startswith("missing"))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.integers(1, 60),
    cuts=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["turn", "save", "crash"])), max_size=12),
)
def test_kill_and_restore_is_exact(
    tmp_path_factory: pytest.TempPathFactory, lines: int, cuts: list[tuple[int, str]]
) -> None:
    """After any number of kills and restores, the totals equal those of a reader that never stopped."""
    root = tmp_path_factory.mktemp("kill")
    content = b"".join(line(sn * 2, coll_msg_size_bytes=8192 + sn * 999, rank=sn % 3) for sn in range(lines))
    path = root / "here-pid7.log"
    path.touch()
    clock = FakeClock()
    reader, section, written = make(root, clock), None, 0
    for length, what in cuts:
        append(path, content[written : written + length * 7])
        written += length * 7
        clock.advance(1.0)
        if what == "crash":
            reader.close()
            reader = make(root, clock, section)
        turn = reader.turn(HERE, last=what == "save")
        section = turn.section or section
    append(path, content[written:])
    clock.advance(1.0)
    view = published(all_of(reader, HERE))
    reader.close()
    untouched = published(all_of(make(root, clock), HERE))
    assert sums_of(view) == sums_of(untouched) == expected(root).sums
    assert [set(writer.tallies) for writer in view.writers] == [set(writer.tallies) for writer in untouched.writers]
    assert view.results == untouched.results


def test_withheld_until_caught_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an agent restart, totals are marked as behind until the file is read up to its size at the restart."""
    path = tmp_path / "here-pid7.log"
    path.write_bytes(line(0))
    clock = FakeClock()
    section = all_of(make(tmp_path, clock), HERE).section
    append(path, b"".join(line(sn) for sn in range(1, 1000)))
    monkeypatch.setattr(module, "TURN_SECONDS", -1.0)  # one piece per turn
    reader, states = make(tmp_path, clock, section), []
    waiting = True
    while waiting:
        turn = reader.turn(HERE, last=True)
        states.append((published(turn).writers[0].caught_up, published(turn).caught_up, published(turn).lag_bytes > 0))
        waiting = turn.waiting
    assert states[0] == (False, False, True)
    assert states[-1] == (True, True, False)
    assert sums_of(published(turn)) == expected(tmp_path).sums


def test_starts_at_the_end_without_a_checkpoint(tmp_path: Path) -> None:
    """Without a checkpoint, existing files are read from their end and later files from their start."""
    clock = FakeClock()
    (tmp_path / "here-pid7.log").write_bytes(line(0) + line(1))
    reader = make(tmp_path, clock, from_beginning=False)
    assert published(all_of(reader, HERE)).writers == ()
    append(tmp_path / "here-pid7.log", line(5))
    (tmp_path / "here-pid8.log").write_bytes(line(2, pid=8))
    clock.advance(1.0)
    all_of(reader, HERE)
    clock.advance(module.BATCH_IDLE_SECONDS)
    view = published(all_of(reader, HERE))
    assert {writer.writer_key.pid: missing_of(writer) for writer in view.writers} == {7: 0, 8: 2}


def test_foreign_files_are_left(tmp_path: Path) -> None:
    """Files of other hosts are counted and not read, even if only the first record names the host."""
    (tmp_path / "there-pid7.log").write_bytes(line(0, hostname="there"))
    (tmp_path / "here-pid8.log").write_bytes(line(0, hostname="there", pid=8))
    (tmp_path / "here-pid9.log").write_bytes(b'{"cut')
    (tmp_path / "here-pid7.log").write_bytes(line(0))
    view = published(all_of(make(tmp_path), HERE))
    assert view.files == {FileState.FOLLOWED: 1, FileState.FOREIGN: 2, FileState.UNIDENTIFIED: 1}
    assert [writer.writer_key.hostname for writer in view.writers] == ["here"]


def test_foreign_file_is_claimed_when_held(tmp_path: Path) -> None:
    """A file with another host name is followed once a local process has it open, even after it is closed."""
    path = tmp_path / "container-pid1.log"
    path.write_bytes(line(0, hostname="container", pid=1))
    clock = FakeClock()
    reader = make(tmp_path, clock)
    assert published(all_of(reader, HERE)).writers == ()
    status = path.stat()
    clock.advance(1.0)
    held = Ownership({(status.st_dev, status.st_ino): ""}, HERE.hostnames)
    assert len(published(all_of(reader, held)).writers) == 1
    append(path, line(1, hostname="container", pid=1))
    clock.advance(1.0)
    assert operations_of(published(all_of(reader, HERE)).writers[0]) == 2


@pytest.mark.parametrize(("uids", "followed"), [(set(), 1), ({os.getuid()}, 1), ({os.getuid() + 1}, 0)])
def test_a_host_name_that_a_user_claims(tmp_path: Path, uids: set[int], followed: int) -> None:
    """A host name from a user's records makes this node read only this user's files of that name."""
    (tmp_path / "there-pid7.log").write_bytes(line(0, hostname="there"))
    ownership = Ownership(hostnames={"here": frozenset(), "there": frozenset(uids)})
    assert published(all_of(make(tmp_path), ownership)).files[FileState.FOLLOWED] == followed


@pytest.mark.parametrize(("lines", "counted"), [(1, 2), (9, 11)])
def test_another_hosts_file_with_a_reused_inode(tmp_path: Path, lines: int, counted: int) -> None:
    """If a file of another host gets the inode of a deleted file, this node soon stops reading it."""
    clock, log, foreign = FakeClock(), tmp_path / "here-pid7.log", tmp_path / "there-pid7.log"
    log.write_bytes(line(0) + line(1))
    reader = make(tmp_path, clock)
    all_of(reader, HERE)
    log.rename(foreign)  # stands for a deletion and a new file
    foreign.write_bytes(b"".join(line(sn, hostname="there") for sn in range(lines)))
    for _ in range(3):
        clock.advance(1.0)
        view = published(all_of(reader, HERE))
        append(foreign, line(lines, hostname="there"))
    assert (reader.owned(), view.files[FileState.FOREIGN]) == ({}, 1)
    assert sum(map(operations_of, view.writers)) == counted


def test_a_renamed_file_stays_this_nodes(tmp_path: Path) -> None:
    """A file of an ended container is still read after a rename, even if no host has the new name."""
    clock, log = FakeClock(), tmp_path / "pod-pid7.log"
    log.write_bytes(line(0, hostname="pod"))
    reader, status = make(tmp_path, clock), log.stat()
    all_of(reader, Ownership({(status.st_dev, status.st_ino): str(log)}))
    append(log.rename(tmp_path / "old.pod-pid7.log"), line(1, hostname="pod"))
    clock.advance(1.0)
    assert sum(map(operations_of, published(all_of(reader, HERE)).writers)) == 2


def test_turn_is_bounded_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn stops at its time limit and reports waiting files; files take turns."""
    for pid in (7, 8):
        (tmp_path / f"here-pid{pid}.log").write_bytes(b"".join(line(sn, pid=pid) for sn in range(400)))
    monkeypatch.setattr(module, "TURN_SECONDS", -1.0)
    reader = make(tmp_path, FakeClock())
    turns = [reader.turn(HERE, last=True) for _ in range(2)]
    assert ([turn.waiting for turn in turns], len(published(turns[1]).writers)) == ([True, True], 2)


def test_dear_pieces_become_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece of a file is short; pieces grow while they are fast, and shrink after a slow one."""
    clock, sizes = FakeClock(), list[int]()
    reader = make(tmp_path, clock)
    real = reader._follower.read
    dear = iter([0.0] * 6 + [module.PIECE_SECONDS + 0.001] * 3 + [module.PIECE_SECONDS])

    def read_slowly(file: FollowedFile, size: int) -> Chunk | None:
        sizes.append(size)
        clock.advance(1.0)  # a slow file system makes no piece slow
        return real(file, size)

    def take_slowly(*arguments: Any) -> None:
        clock.advance(next(dear, 0.0))
        take(*arguments)

    monkeypatch.setattr(reader._follower, "read", read_slowly)
    monkeypatch.setattr(module, "take", take_slowly)
    (tmp_path / "here-pid7.log").write_bytes(b"".join(line(sn) for sn in range(2500)))
    while reader.turn(HERE).waiting:
        pass
    cheap = [FIRST_PIECE_BYTES << power for power in range(3)]
    assert sizes[:11] == [*cheap, *[module.READ_BYTES] * 4, 32_768, 8192, LEAST_PIECE_BYTES, 8192]


def test_schedule(tmp_path: Path) -> None:
    """Totals are published at most once a second; the checkpoint is made at once, then every 2.5 s, and on request."""
    (tmp_path / "here-pid7.log").write_bytes(line(0))
    clock = FakeClock()
    reader, results = make(tmp_path, clock), []
    for number in range(25):
        append(tmp_path / "here-pid7.log", line(number + 1))
        turn = reader.turn(HERE)
        results.append((turn.published is not None, turn.section is not None))
        clock.advance(0.25)
    assert sum(published for published, _ in results) == 7
    assert [number for number, (_, saved) in enumerate(results) if saved] == [0, 10, 20]
    turn = reader.turn(HERE, last=True)
    assert turn.published is not None
    assert turn.section is not None


def test_evidence(tmp_path: Path) -> None:
    """Each membership is reported once. Progress is reported when it changes, and never with a time in the future."""
    clock, path = FakeClock(), tmp_path / "here-pid7.log"
    path.write_bytes(line(0))
    reader = make(tmp_path, clock)
    [evidence] = reader.turn(HERE).evidence
    assert [member.comm for member in evidence.memberships] == ["abc"]
    assert evidence.last_progress_seconds == 1_690_000_000.0
    assert reader.turn(HERE).evidence == ()
    append(path, line(1, dump_timestamp_us=2**60))
    [evidence] = reader.turn(HERE).evidence
    assert evidence.memberships == ()
    assert evidence.last_progress_seconds == clock.time()


def test_retired_writer(tmp_path: Path) -> None:
    """A retired writer hands over its totals and leaves the checkpoint; new records count from zero, without a gap."""
    clock, path = FakeClock(), tmp_path / "here-pid7.log"
    path.write_bytes(line(0) + line(1))
    reader = make(tmp_path, clock)
    [writer] = published(all_of(reader, HERE)).writers
    turn = reader.turn(HERE, [writer.writer_key])
    assert [retired.totals for retired in turn.retired] == [writer.totals]
    assert published(turn).writers == ()
    assert published(make(tmp_path, clock, turn.section).turn(HERE)).writers == ()
    append(path, line(5))
    [again] = published(all_of(reader, HERE)).writers
    assert (operations_of(again), missing_of(again)) == (1, 0)


def test_writers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of writers above the limit per file (MAX_WRITERS_PER_FILE) or above the limit of all files (MAX_WRITERS)
    are counted as `origin_limit`."""
    content = b"".join(line(0, pid=pid) for pid in range(1, writers_module.MAX_WRITERS_PER_FILE + 2))
    (tmp_path / "here-pid7.log").write_bytes(content)
    view = published(all_of(make(tmp_path), HERE))
    assert (len(view.writers), view.results[Result.ORIGIN_LIMIT]) == (writers_module.MAX_WRITERS_PER_FILE, 1)
    monkeypatch.setattr(writers_module, "MAX_WRITERS", 3)
    assert len(published(all_of(make(tmp_path), HERE)).writers) == 3


@pytest.mark.parametrize(("hostname", "hostnames", "local"), [
    ("node1", {"node1"}, True),
    ("node1.example.org", {"node1"}, True),
    ("node1", {"node1.example.org"}, True),
    ("node1.example.org", {"node1.example.org"}, True),
    ("node1.example.org", {"node1.example.com"}, False),
    ("node10", {"node1"}, False),
    ("node1", set(), False),
])  # fmt: skip
def test_local_names(hostname: str, hostnames: set[str], local: bool) -> None:
    """Short and full names of a host match; full names of two domains do not."""
    assert is_local(hostname, frozenset(hostnames)) is local


def test_names_of_files() -> None:
    """A file is read if its name contains `-pid` and ends in `.log` or `.jsonl`; `old.` in front of the plugin's name
    changes nothing. The host name in front of `-pid` is only a hint."""
    assert [is_log(name) for name in ("h-pid1.log", "old.h-pid1.log", "h-pid1.jsonl", "h-pid1.log.1", "train.log")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert named_hostname("/a/b/gpu-pid-3-pid17.log") == "gpu-pid-3"
    assert named_hostname("/a/b-pid7.log/x-pid.log") is None


@pytest.mark.parametrize(("head", "hostname"), [
    (line(0), "here"),
    (line(0)[:-40], "here"),
    (line(0, comm_name='"metadata":{"hostname":"forged"}'), "here"),
    (b'{"header":{"hostname":"x"}}', None),
    (b"", None),
    (b"\xff\xfe", None),
])  # fmt: skip
def test_host_name_of_the_first_record(head: bytes, hostname: str | None) -> None:
    """The host name comes from the metadata, even of a record longer than the first read."""
    assert written_hostname(head) == hostname


@pytest.mark.parametrize(("took", "pause"), [(0.0, 1.0), (0.1, 10.0), (60.0, 30.0)])
def test_slow_looks_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, pause: float) -> None:
    """Searches take at most one hundredth of the time, with a pause of 1 to 30 seconds."""
    clock = FakeClock()
    reader = make(tmp_path, clock)
    ended: list[float] = []

    def discover(*_: object) -> list[object]:
        clock.advance(took)
        ended.append(clock.now)
        return []

    monkeypatch.setattr(reader._follower, "discover", discover)
    reader.turn(HERE)
    clock.now = ended[0] + pause - 0.01
    reader.turn(HERE)
    assert len(ended) == 1
    clock.now = ended[0] + pause + 0.01
    reader.turn(HERE)
    assert len(ended) == 2


BUS_BYTES = 1_500_000_000
"""An AllReduce of 1e9 bytes over 4 ranks puts 2 * 3 / 4 times the size on the bus: 750 us at 2000 GB/s."""


@pytest.mark.parametrize(("times", "implausible"), [([750, 751], 0), ([749, 750], 1), ([75, 80, 749, 7500], 3)])
def test_faster_than_the_wire(tmp_path: Path, times: list[int], implausible: int) -> None:
    """Records above 2000 GB/s are counted as implausible, and added up like other records."""
    lines = [line(sn, coll_msg_size_bytes=10**9, coll_exec_time_us=time) for sn, time in enumerate(times)]
    (tmp_path / "here-pid7.log").write_bytes(b"".join(lines))
    view = published(all_of(make(tmp_path)))
    assert (view.implausible, view.results) == (implausible, {Result.ACCEPTED: len(times)})
    [total] = view.writers[0].totals.values()
    assert (total.operations, total.microseconds) == (len(times), sum(times))
    assert total.bus_bytes == len(times) * BUS_BYTES
