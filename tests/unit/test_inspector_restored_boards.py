"""Operations that wait, after a restart: whose they are."""

from __future__ import annotations

import pytest

from agent.sdk.ranks import WriterKey
from exporters.inspector.format.records import SeriesKey
from exporters.inspector.totals import matching
from exporters.inspector.totals.matching import Matching


def key(rank: int, comm: str) -> SeriesKey:
    """One rank's operations of a communicator."""
    return SeriesKey(comm, rank, "AllReduce", "1KB")


def writer(pid: int) -> WriterKey:
    """A writer with its own file."""
    return WriterKey(64, pid, 0, "here", pid)


def test_after_a_restart_who_lets_most_wait_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boards of the checkpoint belong to their users still: the other user's small board must not give way first."""
    monkeypatch.setattr(matching, "MAX_OPEN_IN_ALL", 100)
    before = Matching()
    greedy = before.join(writer(1), key(0, "m"), 2, lambda _: None, (1001, "/m"), 1001)
    assert greedy is not None
    greedy.note(list(range(90)), 89, [1] * 90)
    after = Matching()
    after.restore(before.save(), lambda _writer, _key: lambda _: None)
    again = after.join(writer(1), key(0, "m"), 2, lambda _: None, (1001, "/m"), 1001)
    mine = after.join(writer(2), key(0, "v"), 2, lambda _: None, (1000, "/v"), 1000)
    assert again is not None
    assert mine is not None
    mine.note(list(range(20)), 19, [1] * 20)
    after.settle()
    assert (len(again.times), len(mine.times)) == (0, 20)


def test_after_a_restart_a_user_holds_what_he_held() -> None:
    """What is restored counts as its user's: or he gets as much again at each restart, and newcomers less and less."""

    def fill(boards: Matching, first: int) -> int:
        count = 0
        while True:
            place = boards.join(writer(first + count), key(0, f"c{first + count}"), 2, lambda _: None, (1, "/m"), 1)
            if place is None:
                return count
            place.note([1], 1, [1])
            count += 1

    before = Matching()
    granted, after = fill(before, 0), Matching()
    after.restore(before.save(), lambda _writer, _key: lambda _: None)
    for number in range(granted):
        after.join(writer(number), key(0, f"c{number}"), 2, lambda _: None, (1, "/m"), 1)
    assert fill(after, 100_000) == 0
