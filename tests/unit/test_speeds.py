"""What is kept of ranks' speeds for pages: the present, the last five minutes, and who is late."""

import pytest
from fake_clock import FakeClock

from agent.core.identity import RankLabel
from agent.ranks import speeds
from agent.ranks.speeds import STEP_SECONDS, STEPS, RankSpeed, SpeedBook, SpeedView

RANK = RankLabel("1", "0")


def steps(book: SpeedBook, clock: FakeClock, count: int, each_bytes: int, late: float = 0.0, start: int = 0) -> None:
    """Move ``each_bytes``, ``late`` seconds late, in each of so many steps."""
    for number in range(start, start + count):
        book.observe({RANK: RankSpeed(2e9, number * each_bytes, number * late)})
        clock.advance(STEP_SECONDS)


def test_nothing_is_known_of_a_stranger() -> None:
    """A rank that nobody told of has no speed."""
    assert SpeedBook(FakeClock()).view(RANK) == SpeedView()


def test_traffic_over_the_last_five_minutes() -> None:
    """Each whole step has its bytes per second; older ones than the bound are gone, and a standstill is zero."""
    clock = FakeClock()
    book = SpeedBook(clock)
    steps(book, clock, 5, 5000)
    assert book.view(RANK).traffic == (1000.0, 1000.0, 1000.0)
    for _ in range(2):
        book.observe({RANK: RankSpeed(2e9, 20_000)})
        clock.advance(STEP_SECONDS)
    assert book.view(RANK).traffic == (1000.0, 1000.0, 1000.0, 0.0, 0.0)
    steps(book, clock, STEPS + 2, 10_000, start=2)
    assert (set(book.view(RANK).traffic), len(book.view(RANK).traffic)) == ({2000.0}, STEPS - 1)
    clock.advance(10 * STEPS * STEP_SECONDS)
    book.observe({RANK: RankSpeed(2e9, 10_000 * (STEPS + 3))})
    assert len(set(book.view(RANK).traffic)) == 1, "what moved while nobody looked is spread over all that time"


def test_looks_out_of_step_are_no_waves() -> None:
    """Steady traffic that is looked at every two seconds is a level line."""
    clock = FakeClock()
    book = SpeedBook(clock)
    for number in range(20):
        book.observe({RANK: RankSpeed(None, 2000 * number)})
        clock.advance(2.0)
    assert book.view(RANK).traffic == pytest.approx([1000.0] * 6)


def test_late_share_of_the_last_minute() -> None:
    """Waited for 1.5 s of every 5 s is 30 % late; nobody knows before a minute, or without counters."""
    clock = FakeClock()
    book = SpeedBook(clock)
    steps(book, clock, 12, 1, late=1.5)
    assert book.view(RANK).late_share is None
    steps(book, clock, 5, 1, late=1.5, start=12)
    assert book.view(RANK).late_share == pytest.approx(0.3)
    for _ in range(20):
        book.observe({RANK: RankSpeed(None, 16, 16 * 1.5)})
        clock.advance(STEP_SECONDS)
    assert book.view(RANK).late_share == 0.0
    book.observe({RANK: RankSpeed(None, 99)})
    assert book.view(RANK).late_share is None


def test_a_counter_that_begins_anew() -> None:
    """It is no negative traffic."""
    clock = FakeClock()
    book = SpeedBook(clock)
    for value in (5_000, 10_000, 20_000, 0, 5_000):
        book.observe({RANK: RankSpeed(None, value, float(value))})
        clock.advance(STEP_SECONDS)
    assert book.view(RANK).traffic == (2000.0, 0.0, 1000.0)


def test_tracks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank more than the bound has a present and no past; one that left makes room after five minutes."""
    monkeypatch.setattr(speeds, "MAX_TRACKS", 2)
    clock = FakeClock()
    book = SpeedBook(clock)
    labels = [RankLabel("1", str(number)) for number in range(3)]
    for value in (0, 5000, 10_000, 15_000):
        book.observe({label: RankSpeed(1e9, value) for label in labels})
        clock.advance(STEP_SECONDS)
    assert [len(book.view(label).traffic) for label in labels] == [2, 2, 0]
    assert book.view(labels[2]).bus_bandwidth_bytes_per_second == 1e9
    clock.advance(STEPS * STEP_SECONDS)
    for value in (0, 5000, 10_000):
        book.observe({label: RankSpeed(1e9, value) for label in labels[1:]})
        clock.advance(STEP_SECONDS)
    assert book.view(labels[0]).traffic == ()
    assert book.view(labels[2]).traffic == (1000.0,)
