"""Which bundle goes when another comes."""

import pytest
from hypothesis import given, strategies as st

from agent.evidence import folder
from exporters.evidence.places import MOST_TIMES, Held, evicted, most_kept


def held(text: str) -> list[Held]:
    """Bundles by their users' letters, the oldest first; capitals: a page is open."""
    return [Held(letter.lower(), is_open=letter.isupper()) for letter in text]


@pytest.mark.parametrize(("users", "keep", "goes"), [
    ("aab", 3, None), ("aabB", 3, 0), ("baaA", 3, 1), ("abcD", 3, None), ("bAAA", 3, None), ("aAbB", 3, 0),
    ("AabbbC", 5, 2), ("AAb" + "C", 1, None), ("AAbc" + "D", 1, 0), ("bAac" + "D", 1, 2), ("abcd" + "E", 1, 0),
    ("Abcd" + "E", 1, 1), ("ABCD" + "E", 1, 4), ("ABCD" + "A", 1, 0), ("aaaaaaaa" + "B", 1, 0),
])  # fmt: skip
def test_which_goes(users: str, keep: int, goes: int | None) -> None:
    """Surplus of closed pages goes first, surplus of open ones and only ones at the node's limit, open ones last."""
    assert evicted(held(users), keep) == goes


def test_the_limit_of_a_node() -> None:
    """A node has four times as many bundles as are kept at most, and never more than are listed."""
    assert (MOST_TIMES, most_kept(10), most_kept(1000)) == (4, 40, folder.MAX_LISTED)
    only = [Held(str(user), is_open=True) for user in range(41)]
    assert (evicted(only[:40], 10), evicted(only, 10)) == (None, 40)


@given(st.text("abcdeABCDE", min_size=1, max_size=30), st.integers(1, 6))
def test_a_flood_is_bounded_and_costs_no_user_with_one_what_others_have_more_of(users: str, keep: int) -> None:
    """However bundles come, the limit holds, and a user's only one goes only where nobody has two."""
    now: list[Held] = []
    for newcomer in held(users):
        now.append(newcomer)
        while (number := evicted(now, keep)) is not None:
            gone = now.pop(number)
            left = [each.user for each in now]
            if gone.user not in left and gone is not newcomer:
                assert len(set(left)) == len(left)
        assert len(now) <= most_kept(keep)
