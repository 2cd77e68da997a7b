"""Series of communicators that a live process no longer uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspector_records import append, line
from lent import Admission
from test_inspector_exporter import OPERATIONS, Bench
from test_inspector_formats import PROXY_STEP, dumped, marker

from exporters.inspector.reading.read_queue import ReadQueue
from exporters.inspector.totals.idleness import IDLE_SECONDS, LOOK_SECONDS
from exporters.inspector.totals.shared import MAX_COMMUNICATORS

MISSING = "rankwatch_inspector_missing_records_total"
LOST = ("job", "1", "filtered_or_lost")


def series(comm: str) -> tuple[str, ...]:
    """Return the labels of a communicator's series."""
    return ("job", "1", comm, "AllReduce", "8192")


def other_total(shown: dict[tuple[str, ...], float]) -> float:
    """Return the operations under `other`."""
    return sum(value for labels, value in shown.items() if labels[2] == "other")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the end of each turn, because a late turn shows nothing on a busy machine."""
    monkeypatch.setattr("exporters.inspector.exporter.WAIT_SECONDS", 60.0)


class Life:
    """An exporter and a job that uses one communicator while others are idle."""

    def __init__(self, path: Path, per_rank: int = 400) -> None:
        self.log = path / "here-pid7.log"
        self.log.touch()
        self.bench = Bench(path)
        self.bench.admission = Admission(per_rank)
        object.__setattr__(self.bench.context, "admit", self.bench.admission)
        self.bench.start()
        self.bench.look()
        self.sn = 0

    def write(self, *records: bytes) -> None:
        append(self.log, b"".join(records))

    def pass_time(self, seconds: float) -> dict[str, dict[tuple[str, ...], float]]:
        """Let time pass with one record every LOOK_SECONDS; return the exported series."""
        shown: dict[str, dict[tuple[str, ...], float]] = {}
        for _ in range(int(seconds // LOOK_SECONDS)):
            self.write(line(self.sn, id="0xfeed"))
            self.sn += 1
            shown = self.bench.look(LOOK_SECONDS)
        return shown


@pytest.mark.parametrize("behind", [False, True])
def test_an_idle_communicator_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bool) -> None:
    """After six hours without records a communicator's series end, even if other files always have unread lines; the
    count of missing records does not fall."""
    read = ReadQueue.read
    monkeypatch.setattr(ReadQueue, "read", lambda *arguments: read(*arguments) or behind)
    life = Life(tmp_path)
    life.write(*(line(sn, id="0xabc") for sn in (0, 1, 5)))
    shown = life.pass_time(IDLE_SECONDS - LOOK_SECONDS)
    assert (shown[OPERATIONS][series("abc")], shown[MISSING][LOST]) == (3, 3)
    held, shown = life.bench.admission.taken, life.pass_time(2 * LOOK_SECONDS)
    assert shown[OPERATIONS] == {series("feed"): life.sn}
    assert (shown[MISSING][LOST], life.bench.admission.taken) == (3, held / 2)
    assert {key[1] for key in life.bench.exporter._labels} == {"feed"}
    life.bench.drain()


def test_a_communicator_that_returns_begins_at_nothing(tmp_path: Path) -> None:
    """A removed communicator that has records again counts from zero, without a gap before its first record."""
    life = Life(tmp_path)
    life.write(line(0, id="0xabc"))
    life.pass_time(IDLE_SECONDS + LOOK_SECONDS)
    life.write(line(700, id="0xabc"), line(702, id="0xabc"))
    shown = life.pass_time(LOOK_SECONDS)
    assert (shown[OPERATIONS][series("abc")], shown[MISSING][LOST]) == (2, 1)
    life.bench.drain()
    again = Bench(tmp_path, restored=life.bench.state.published).following()
    values = again.look()
    assert (values[OPERATIONS], values[MISSING]) == (shown[OPERATIONS], shown[MISSING])
    again.drain()


def test_who_finds_no_room_takes_that_of_the_longest_idle(tmp_path: Path) -> None:
    """A refused communicator in use replaces the longest idle one; the refused one's old operations stay in `other`."""
    life = Life(tmp_path, per_rank=18)
    life.write(line(0, id="0xfeed"), line(0, id="0xabc"), line(0, id="0xdef"), line(0, id="0xbee"))
    life.sn = 1
    for turn in range(1, 4):
        life.write(line(turn, id="0xbee"))
        shown = life.pass_time(LOOK_SECONDS)
        assert {series("abc"), series("def")} <= shown[OPERATIONS].keys() or turn == 3
    assert (series("abc") in shown[OPERATIONS]) != (series("def") in shown[OPERATIONS])
    refused = other_total(shown[OPERATIONS])
    life.write(line(4, id="0xbee"))
    shown = life.pass_time(LOOK_SECONDS)
    assert (shown[OPERATIONS][series("bee")], other_total(shown[OPERATIONS])) == (1, refused)
    life.bench.drain()


@pytest.mark.parametrize("lines", [{"dropped": 3}, {"proxy_records": 1}])
def test_communicators_without_operations_give_way(tmp_path: Path, lines: dict[str, int]) -> None:
    """Idle communicators that have only a batch's first line, or proxy lines, give their places to a used one."""
    life = Life(tmp_path)
    for number in range(1, MAX_COMMUNICATORS + 1):
        life.write(marker(0, f"0x{number:x}", **lines), dumped(proxy_trace=PROXY_STEP))
    shown = life.pass_time(12 * LOOK_SECONDS)
    assert (series("feed") in shown[OPERATIONS], other_total(shown[OPERATIONS]) > 0) == (True, True)
    life.bench.drain()


def test_a_communicator_ends_when_another_took_its_place(tmp_path: Path) -> None:
    """If a new communicator has the same rank, size and name, the old one's series are removed after ten minutes."""
    life = Life(tmp_path)
    life.write(line(0, id="0xabc", n_ranks=4))
    life.pass_time(LOOK_SECONDS)
    for turn in range(4):
        life.write(line(turn, id="0xbee", n_ranks=4))
        shown = life.pass_time(LOOK_SECONDS)
    assert {labels[2] for labels in shown[OPERATIONS]} == {"feed", "bee"}
    life.bench.drain()


@pytest.mark.slow
@pytest.mark.parametrize("names", ["same", "new"])
@pytest.mark.parametrize(("minutes", "sizes"), [(10, 1), (10, 6), (15, 6)])
def test_a_communicator_beside_twelve_that_are_made_again_and_again(
    tmp_path: Path, names: str, minutes: int, sizes: int
) -> None:
    """A communicator made while the budget is used up gets its own series within an hour, and keeps them."""
    life = Life(tmp_path)
    sn, shown_since = 0, None
    for minute in range(180):
        made, number = divmod(minute, minutes)
        for one in range(12):
            name = f"{one}" if names == "same" else f"{made}-{one}"
            again = {"id": f"0x{made:03x}{one:x}", "comm_name": name}
            life.write(*(line(number, coll_msg_size_bytes=8192 * 4**size, **again) for size in range(sizes)))
        if minute >= 90:
            life.write(line(sn, id="0xbee", comm_name="goes on"))
            sn += 1
        life.write(line(minute, id="0xfeed"))
        shown = life.bench.look(60.0)[OPERATIONS]
        assert series("feed") in shown
        if series("bee") in shown and shown_since is None:
            shown_since = minute
        assert shown_since is None or series("bee") in shown
    assert shown_since is not None
    assert shown_since - 90 < 60
    life.bench.drain()
