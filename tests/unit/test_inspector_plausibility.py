"""Records beyond a wire: what is counted apart, and what stays in the sums."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_clock import FakeClock
from inspector_records import append, line

from exporters.inspector.format.records import Result
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.record_files import Ownership
from exporters.inspector.reading.turn import Published
from exporters.inspector.totals.shared import Shared

BUS_BYTES = 1_500_000_000
"""Of an AllReduce of 1e9 bytes over 4 ranks: 2 * 3 / 4 times the size; at 2000 GB/s 750 us."""


def published(reader: DirectoryReader) -> Published:
    """Read all there is."""
    view = reader.turn(Ownership(everyone=True), last=True).published
    assert view is not None
    return view


@pytest.mark.parametrize(("times", "implausible"), [([750, 751], 0), ([749, 750], 1), ([75, 80, 749, 7500], 3)])
def test_faster_than_the_wire(tmp_path: Path, times: list[int], implausible: int) -> None:
    """What is faster than 2000 GB/s is counted, to the microsecond, and added up like the rest."""
    lines = [line(sn, coll_msg_size_bytes=10**9, coll_exec_time_us=time) for sn, time in enumerate(times)]
    (tmp_path / "here-pid7.log").write_bytes(b"".join(lines))
    view = published(DirectoryReader(tmp_path, FakeClock(), lambda *_: True, from_beginning=True))
    assert (view.implausible, view.results) == (implausible, {Result.ACCEPTED: len(times)})
    [own] = view.writers[0].totals.values()
    assert (own.operations, own.microseconds) == (len(times), sum(times))
    assert own.bus_bytes == len(times) * BUS_BYTES


def test_garbage_is_not_implausible(tmp_path: Path) -> None:
    """Beyond 1e5 GB/s (15 us) a record is garbage and nothing else, also between implausible ones."""
    lines = [line(sn, coll_msg_size_bytes=10**9, coll_exec_time_us=time) for sn, time in enumerate((14, 15, 800))]
    (tmp_path / "here-pid7.log").write_bytes(b"".join(lines))
    view = published(DirectoryReader(tmp_path, FakeClock(), lambda *_: True, from_beginning=True))
    assert (view.implausible, view.results) == (1, {Result.GARBAGE: 1, Result.ACCEPTED: 2})


def test_the_count_survives_the_agent(tmp_path: Path) -> None:
    """A restarted reader goes on counting, with the bound of its own configuration."""
    log = tmp_path / "here-pid7.log"
    log.write_bytes(line(0, coll_msg_size_bytes=10**9, coll_exec_time_us=100))
    clock = FakeClock()
    first = DirectoryReader(tmp_path, clock, lambda *_: True, from_beginning=True)
    section = first.turn(Ownership(everyone=True), last=True).section
    append(log, line(1, coll_msg_size_bytes=10**9, coll_exec_time_us=1600))
    shared = Shared(900.0)  # 1667 us
    second = DirectoryReader(tmp_path, clock, lambda *_: True, restored=section, shared=shared)
    assert published(second).implausible == 2
