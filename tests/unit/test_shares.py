"""Full tables: the evicted entry, and the refused user if no entry can be evicted."""

import pytest
from lent import Admission

from agent.core.series_budget import FairBudget, Group
from agent.tail.shares import FairTable, Share

A, A2, B, C = Share(1, "/a"), Share(1, "/a2"), Share(2, "/b"), Share(3, "/c")


@pytest.mark.parametrize(("sizes", "requester", "loser"), [
    ({}, A, A),
    ({A: 4}, A, A),
    ({A: 4}, B, A),
    ({A: 2, B: 2}, C, A),
    ({A: 3, B: 1}, B, A),
    ({A: 2, B: 1}, B, B),  # otherwise the two would evict each other in turns
    ({A: 3, A2: 1, B: 5}, A, A),
    ({A: 3, A2: 1, B: 6}, A2, B),
    ({A: 4, A2: 1, B: 5}, A2, A),
    ({A: 2, A2: 2, B: 3}, B, B),
    ({A: 1, A2: 4}, C, A2),
    ({A: 1, B: 1}, C, C),
])  # fmt: skip
def test_the_user_with_the_most_entries_loses_one(sizes: dict[Share, int], requester: Share, loser: Share) -> None:
    """Counting the new entry, the user with the most loses one from its fullest directory; at a tie, the requester."""
    table: FairTable[tuple[Share, int], None] = FairTable()
    for share, count in sizes.items():
        for number in range(count):
            table.put((share, number), None, share)
    assert table.losing_share(requester) == loser


def fill(budget: FairBudget, groups: list[Group]) -> dict[Group, int]:
    """Give each group one unit in turn until all groups are refused; return the units of each group."""
    sizes = dict.fromkeys(groups, 0)
    requesters = list(groups)
    while requesters:
        requesters = [group for group in requesters if budget.take(group)]
        for group in requesters:
            sizes[group] += 1
    return sizes


def test_a_budget_without_groups_is_the_sum_alone() -> None:
    """A request above the limit is refused and counted."""
    budget = FairBudget(3)
    assert budget.take((), 3)
    assert not budget.take(())
    budget.give_back((), 1)
    assert budget.take(())
    assert budget.refused == 1


@pytest.mark.parametrize(("groups", "amount"), [([A], 400), ([A, A2], 215), ([A, B], 254), ([A, B, C], 186)])
def test_shares_of_those_who_want_all(groups: list[Share], amount: int) -> None:
    """Users who add entries in turns have equal shares, and a late user gets a share."""
    budget = FairBudget(700)
    sizes = fill(budget, list(groups))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert abs(min(sizes.values()) - amount) <= 2
    assert budget.take(Share(9, "/late"), (700 - budget.taken) // 3)


def test_series_of_owners_in_a_group() -> None:
    """Owners in a group share the group's part of the budget; others can use what an owner returns."""
    admission = Admission(per_rank=100, in_all=700)
    assert ([owner for owner in range(7) if admission.admit(owner, 100, 1, A)], admission.refused) == ([0, 1, 2, 3], 3)
    assert admission.admit("late", 100, 1, B)
    admission.give_back(0, 60)
    admission.release(1)
    assert admission.taken == 340
    assert admission.admit(5, 60, 1, A)
    assert admission.admit("ours", 100)
    assert not admission.admit("ours", 1)
