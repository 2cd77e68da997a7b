from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from exporters.inspector.format.records import MAX_TOTAL
from exporters.inspector.totals.matching import Arrivals, judge


def latest(times: Sequence[int]) -> tuple[int, int] | None:
    """The member that came last alone, and how long the others waited for it."""
    return next(((member, own.lateness_us) for member, own in enumerate(judge([times])) if own.last), None)


@pytest.mark.parametrize(
    ("times", "last"),
    [
        ((2000, 2010, 80, 2005), (2, 1920)),  # one is late: the others waited for it alone from its second on
        ((2000, 90, 80, 2005), (2, 10)),
        ((500, 20), (1, 480)),
        ((500, 500), None),
        ((23, 20, 20), None),  # two came last together
        ((22, 20, 90), None),  # a step of two timers
        ((23, 20, 90), (1, 3)),
        ((10_100, 10_000, 10_500), None),  # one part in a hundred
        ((10_101, 10_000, 10_500), (1, 101)),
    ],
)
def test_the_last_to_arrive_has_the_shortest_time(times: tuple[int, ...], last: tuple[int, int] | None) -> None:
    """The shortest time names the last one, by what the second shortest is longer; a tie is nobody's."""
    assert latest(times) == last


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.integers(1, 100_000)] * 3), min_size=1))
def test_sums_over_operations(rows: list[tuple[int, int, int]]) -> None:
    """Floor and lateness are what a plain loop finds, and at most one member per operation came last."""
    members = judge(rows)
    assert (members[0].matched, members[0].floor_us) == (len(rows), sum(sorted(row)[0] for row in rows))
    assert sum(one.last for one in members) <= len(rows)
    leads = [sorted(row)[1] - sorted(row)[0] for row in rows]
    told = [(row, lead) for row, lead in zip(rows, leads, strict=True) if lead > 2 and 100 * lead > min(row)]
    for place, member in enumerate(members):
        own = [lead for row, lead in told if row[place] == min(row)]
        assert (member.last, member.lateness_us) == (len(own), sum(own))
    assert all(not (one.matched or one.floor_us) for one in members[1:])


def test_totals_stop() -> None:
    """Totals stay where a checkpoint can hold them."""
    full = Arrivals(*[MAX_TOTAL] * 5)
    assert full.plus(Arrivals(1, 1, 1, 1, 1)) == full
