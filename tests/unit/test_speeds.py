"""Ranks' speeds for the page: the present bandwidth, and the late ranks."""

import pytest
from fake_clock import FakeClock

from agent.core.identity import RankLabel
from agent.ranks import speeds
from agent.ranks.speeds import STEP_SECONDS, RankSpeed, SpeedBook, SpeedView

RANK = RankLabel("1", "0")


def test_late_share_of_the_last_minute() -> None:
    """Waited for 1.5 s of every 5 s is 30 % late; unknown in the first minute, without counters, or of a stranger."""
    clock = FakeClock()
    book = SpeedBook(clock)

    def speed_of(steps: int, by: float, start: float = 0.0) -> SpeedView:
        for number in range(steps):
            clock.advance(STEP_SECONDS)
            book.observe({RANK: RankSpeed(2e9, start + number * by)})
        return book.view(RANK)

    assert book.view(RANK) == SpeedView()
    assert speed_of(12, 1.5) == SpeedView(2e9, None)
    assert speed_of(5, 1.5, 18.0).late_share == pytest.approx(0.3)
    assert speed_of(14, 0.0, 24.0).late_share == 0.0
    assert speed_of(12, 1.5).late_share is None, "a counter that fell began anew"
    assert speed_of(3, 9.0, 18.0).late_share == pytest.approx((36.0 - 3.0) / 60)
    assert speed_of(13, 9.0, 36.0).late_share == 1.0
    book.observe({RANK: RankSpeed(2e9, None)})
    assert book.view(RANK) == SpeedView(2e9, None)
    book.observe({})
    assert book.view(RANK) == SpeedView()


def test_tracks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank more than the bound has a present and no past, until one leaves."""
    monkeypatch.setattr(speeds, "MAX_TRACKS", 2)
    clock = FakeClock()
    book = SpeedBook(clock)
    labels = [RankLabel("1", str(number)) for number in range(3)]

    def late_shares(shown: list[RankLabel]) -> list[float | None]:
        for value in range(14):
            book.observe({label: RankSpeed(1e9, float(value)) for label in shown})
            clock.advance(STEP_SECONDS)
        return [book.view(label).late_share for label in labels]

    assert late_shares(labels) == [0.2, 0.2, None]
    assert book.view(labels[2]).bus_bandwidth_bytes_per_second == 1e9
    assert late_shares(labels[1:]) == [None, 0.2, 0.2]
