"""Ranks' speeds for the page: the current bandwidth, and the late ranks."""

import pytest
from fake_clock import FakeClock

from agent.core.identity import RankLabel
from agent.ranks import speeds
from agent.ranks.speeds import STEP_SECONDS, RankSpeed, RankSpeeds

RANK = RankLabel("1", "0")


def test_late_share_of_the_last_minute() -> None:
    """A rank that others wait for 1.5 s of every 5 s is 30 % late; the share needs counters of a whole minute."""
    clock = FakeClock()
    ranks = RankSpeeds(clock)

    def share_of(steps: int, by: float, start: float = 0.0) -> float | None:
        for number in range(steps):
            clock.advance(STEP_SECONDS)
            ranks.observe({RANK: RankSpeed(2e9, start + number * by)})
        return ranks.late_share(RANK)

    assert (ranks.bandwidth(RANK), ranks.late_share(RANK)) == (None, None)
    assert (share_of(12, 1.5), ranks.bandwidth(RANK)) == (None, 2e9)
    assert share_of(5, 1.5, 18.0) == pytest.approx(0.3)
    assert share_of(14, 0.0, 24.0) == 0.0
    assert share_of(12, 1.5) is None, "a counter that fell began anew"
    assert share_of(3, 9.0, 18.0) == pytest.approx((36.0 - 3.0) / 60)
    assert share_of(13, 9.0, 36.0) == 1.0
    ranks.observe({RANK: RankSpeed(2e9, None)})
    assert (ranks.bandwidth(RANK), ranks.late_share(RANK)) == (2e9, None)
    ranks.observe({})
    assert (ranks.bandwidth(RANK), ranks.late_share(RANK)) == (None, None)


def test_tracks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank above the limit has a current speed and no history, until another rank ends."""
    monkeypatch.setattr(speeds, "MAX_TRACKS", 2)
    clock = FakeClock()
    ranks = RankSpeeds(clock)
    labels = [RankLabel("1", str(number)) for number in range(3)]

    def late_shares(shown: list[RankLabel]) -> list[float | None]:
        for value in range(14):
            ranks.observe({label: RankSpeed(1e9, float(value)) for label in shown})
            clock.advance(STEP_SECONDS)
        return [ranks.late_share(label) for label in labels]

    assert late_shares(labels) == [0.2, 0.2, None]
    assert ranks.bandwidth(labels[2]) == 1e9
    assert late_shares(labels[1:]) == [None, 0.2, 0.2]
