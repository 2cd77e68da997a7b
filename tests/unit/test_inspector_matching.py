from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, strategies as st

from agent.sdk.ranks import WriterKey
from exporters.inspector.format.records import SeriesKey
from exporters.inspector.totals import matching, matching as module
from exporters.inspector.totals.matching import (
    MAX_MEMBERS,
    MAX_WAITING,
    MAX_WAITING_ALONE,
    SLACK,
    Arrivals,
    Credit,
    Matching,
    PendingMember,
    judge,
)

WRITER_KEYS = [WriterKey(1, inode, 0, "here", inode) for inode in range(MAX_MEMBERS + 1)]


class Totals:
    """The credited operations of each writer."""

    def __init__(self) -> None:
        self.of: dict[WriterKey, Arrivals] = defaultdict(Arrivals)

    def credit(self, writer_key: WriterKey, arrivals: Arrivals) -> None:
        self.of[writer_key] = self.of[writer_key].plus(arrivals)

    def credit_of(self, writer_key: WriterKey, key: SeriesKey) -> Credit:
        """Return the function that credits a writer, as a reader does."""
        assert key.comm == "abc"
        return partial(self.credit, writer_key)


def join(
    matching: Matching,
    totals: Totals,
    rank: int,
    n_ranks: int,
    comm: str = "abc",
    writer_key: WriterKey | None = None,
    uid: int = 1000,
) -> PendingMember:
    """Add one rank to a communicator."""
    writer_key = writer_key or WRITER_KEYS[rank]
    key = SeriesKey(comm, rank, "AllReduce", "8192")
    member = matching.join(writer_key, key, n_ranks, partial(totals.credit, writer_key), uid=uid)
    assert member is not None
    return member


def note(member: PendingMember, operations: dict[int, int]) -> None:
    """Record the duration of each operation number."""
    member.note(list(operations), max(operations), list(operations.values()))


def pair() -> tuple[Matching, Totals, list[PendingMember]]:
    """Return a communicator of two ranks."""
    matching, totals = Matching(), Totals()
    return matching, totals, [join(matching, totals, rank, 2) for rank in range(2)]


@pytest.mark.slow
@given(st.data())
def test_neither_order_nor_restart_changes_what_is_found(data: st.DataObject) -> None:
    """Three ranks' records give the same result in any order, and with saves and restores between."""
    operations = data.draw(st.lists(st.tuples(*[st.integers(1, 5000)] * 3), min_size=1, max_size=SLACK))
    matching, totals = Matching(), Totals()
    cuts = [data.draw(st.integers(1, len(operations))) for _ in range(3)]
    parts = [(rank, part) for rank in range(3) for part in (0, 1)]
    for rank, part in data.draw(st.permutations(parts)):
        times = dict(enumerate(row[rank] for row in operations))
        part_of_times = {number: time for number, time in times.items() if (number < cuts[rank]) == (part == 0)}
        if part_of_times:
            note(join(matching, totals, rank, 3), part_of_times)
        if data.draw(st.booleans()):
            matching.settle()
        if data.draw(st.booleans()):
            saved, matching = matching.save(), Matching()
            matching.restore(saved, totals.credit_of)
    matching.settle()
    leads = [sorted(row)[1] - min(row) for row in operations]
    assert (totals.of[WRITER_KEYS[0]].matched, totals.of[WRITER_KEYS[0]].unmatched) == (len(operations), 0)
    assert totals.of[WRITER_KEYS[0]].floor_us == sum(map(min, operations))
    late = [
        sum(
            lead
            for row, lead in zip(operations, leads, strict=True)
            if row[rank] == min(row) and lead > 2 and lead * 100 > min(row)
        )
        for rank in range(3)
    ]
    assert [totals.of[writer_key].lateness_us for writer_key in WRITER_KEYS[:3]] == late
    assert matching.save() == []


def test_what_one_rank_has_no_record_of_is_let_go_and_counted() -> None:
    """An operation without a record of one rank is dropped and counted when all ranks are SLACK operations past it."""
    matching, totals, (one, two) = pair()
    note(one, {0: 500, 1: 500})
    note(two, {1: 500})
    matching.settle()
    note(one, dict.fromkeys(range(2, SLACK + 2), 10))
    note(two, {SLACK: 10})
    matching.settle()
    assert (totals.of[WRITER_KEYS[0]].matched, totals.of[WRITER_KEYS[0]].unmatched) == (2, 0)
    note(two, {SLACK + 1: 10})
    matching.settle()
    assert (totals.of[WRITER_KEYS[0]].matched, totals.of[WRITER_KEYS[0]].unmatched) == (3, 1)


@pytest.mark.parametrize("n_ranks", [1, MAX_MEMBERS + 1])
def test_communicators_that_cannot_be_matched(n_ranks: int) -> None:
    """A communicator of one rank, or of more ranks than MAX_MEMBERS, is not matched."""
    assert Matching().join(WRITER_KEYS[0], SeriesKey("abc", 0, "AllReduce", "8192"), n_ranks, lambda _: None) is None
    assert Matching().join(WRITER_KEYS[0], SeriesKey("abc", 0, "AllReduce", "8192"), MAX_MEMBERS, lambda _: None)


def test_a_communicator_with_members_elsewhere_is_given_up() -> None:
    """Above MAX_WAITING_ALONE no operation waits for a rank without records; matching starts when that rank appears."""
    matching, totals = Matching(), Totals()
    one = join(matching, totals, 0, 2)
    note(one, dict.fromkeys(range(MAX_WAITING_ALONE), 9))
    matching.settle()
    assert len(one.times) == MAX_WAITING_ALONE
    note(one, {MAX_WAITING_ALONE: 9})
    matching.settle()
    assert len(one.times) == 0
    note(one, {MAX_WAITING_ALONE + 1: 9})
    assert len(one.times) == 0
    two = join(matching, totals, 1, 2)
    note(one, {MAX_WAITING_ALONE + 2: 9})
    note(two, {MAX_WAITING_ALONE + 1: 9, MAX_WAITING_ALONE + 2: 9})
    matching.settle()
    assert totals.of[WRITER_KEYS[0]] == Arrivals(matched=1, floor_us=9)


def test_one_rank_far_ahead_does_not_fill_the_memory() -> None:
    """If a rank is too far ahead, the older half of its waiting operations counts as unmatched; the newer stays."""
    matching, totals, (one, two) = pair()
    note(two, {0: 9})
    note(one, dict.fromkeys(range(MAX_WAITING), 9))
    assert len(one.times) == MAX_WAITING
    note(one, {MAX_WAITING: 9})  # 0 is matched
    assert len(one.times) == MAX_WAITING
    note(one, {MAX_WAITING + 1: 9})
    assert sorted(one.times) == [*range(MAX_WAITING // 2 + 2, MAX_WAITING + 2)]
    assert totals.of[WRITER_KEYS[0]] == Arrivals(matched=1, floor_us=9, unmatched=MAX_WAITING + 1 - MAX_WAITING // 2)
    matching.settle()


def test_an_operation_is_counted_once() -> None:
    """If an operation was dropped because one rank is far ahead, the other rank's record does not count it again."""
    matching, totals, members = pair()
    for member in members:
        note(member, dict.fromkeys(range(MAX_WAITING + 1000), 9))
        matching.settle()
    counts = totals.of[WRITER_KEYS[0]]
    assert (counts.matched, counts.unmatched) == (MAX_WAITING // 2, 1000 + MAX_WAITING // 2)


def test_all_that_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of waiting operations the longest list is cut, and the dropped operations are counted."""
    monkeypatch.setattr(module, "MAX_WAITING_IN_ALL", 9)
    matching, totals, (one, _) = pair()
    alone = join(matching, totals, 0, 2, comm="def")
    note(one, dict.fromkeys(range(6), 9))
    note(alone, dict.fromkeys(range(3), 9))
    matching.settle()
    assert (len(one.times), len(alone.times)) == (6, 3)
    note(alone, {3: 9})
    matching.settle()
    assert (len(one.times), len(alone.times), totals.of[WRITER_KEYS[0]].unmatched) == (0, 4, 6)
    note(alone, dict.fromkeys(range(4, 10), 9))
    matching.settle()
    assert (len(alone.times), totals.of[WRITER_KEYS[0]].unmatched) == (0, 6)


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of members, a rank is refused; a writer that leaves frees its members."""
    monkeypatch.setattr(module, "MAX_MEMBERS_IN_ALL", 2)
    matching, totals, _ = pair()
    key = SeriesKey("def", 0, "AllReduce", "8192")
    assert matching.join(WRITER_KEYS[5], key, 2, partial(totals.credit, WRITER_KEYS[5])) is None
    matching.leave(WRITER_KEYS[0])
    assert matching.join(WRITER_KEYS[5], key, 2, partial(totals.credit, WRITER_KEYS[5])) is not None


def test_members_made_up_by_one_user_leave_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that adds members without end is refused, and displaces no member of another group."""
    monkeypatch.setattr(module, "MAX_MEMBERS_IN_ALL", 20)
    matching = Matching()
    keys = [SeriesKey(f"{number}", 0, "AllReduce", "8192") for number in range(20)]
    joined = [matching.join(WRITER_KEYS[0], key, 2, lambda _: None, ("crowd",)) for key in keys]
    assert sum(one is not None for one in joined) == 13  # twice the members left free
    member_of_victim = matching.join(WRITER_KEYS[1], keys[19], 2, lambda _: None, ("victim",))
    assert member_of_victim is not None
    assert matching.join(WRITER_KEYS[0], keys[19], 2, lambda _: None, ("crowd",)) is None
    assert member_of_victim.pending is not None
    assert matching.room.refused == 8
    assert matching.join(WRITER_KEYS[2], keys[0], 2, lambda _: None, ("crowd",)) is not None, "it replaces a member"


def test_the_user_with_the_most_waiting_operations_loses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit the user with the most waiting operations loses some, even if many small communicators have them."""
    monkeypatch.setattr(module, "MAX_WAITING_IN_ALL", 12)
    matching = Matching()

    def join(writer: int, comm: int, user: str) -> PendingMember:
        key = SeriesKey(f"{comm}", 0, "AllReduce", "8192")
        member = matching.join(WRITER_KEYS[writer], key, 2, lambda _: None, (user, "/"))
        assert member is not None
        return member

    victim = join(1, 0, "victim")
    crowd = [join(0, comm, "crowd") for comm in range(1, 6)]
    for member, count in ((victim, 4), *((one, 2) for one in crowd)):
        note(member, dict.fromkeys(range(count), 9))
    matching.settle()
    assert (len(victim.times), sum(len(one.times) for one in crowd)) == (4, 8)


def test_another_users_file_in_a_communicators_name_changes_nothing() -> None:
    """A file of another user that claims a member's rank changes neither the rank nor its operations."""
    matching, totals, members = pair()
    note(members[0], {0: 10, 1: 10})
    forged = join(matching, totals, 0, 2, writer_key=WRITER_KEYS[9], uid=1001)
    note(forged, {0: 99, 1: 99})
    note(members[1], {0: 4, 1: 4})
    matching.settle()
    assert (totals.of[WRITER_KEYS[0]].matched, totals.of[WRITER_KEYS[1]].last) == (2, 2)
    assert WRITER_KEYS[9] not in totals.of
    again = Matching()
    again.restore(matching.save(), totals.credit_of)
    assert {pending.kind.uid for pending in again.save()} <= {1000, 1001}


def test_a_writer_that_is_let_go_leaves_nothing_uncounted() -> None:
    """When a writer ends or is replaced, its waiting operations count as unmatched."""
    matching, totals, (one, two) = pair()
    alone = join(matching, totals, 0, 2, comm="def")
    note(one, {0: 9, 1: 9, 2: 9})
    note(two, {2: 9, 5: 9})
    note(alone, {0: 9})
    matching.leave(WRITER_KEYS[0])
    assert totals.of[WRITER_KEYS[0]] == Arrivals(matched=1, floor_us=9, unmatched=3)
    matching, totals, (one, two) = pair()
    note(two, {5: 9})
    join(matching, totals, 1, 2, writer_key=WRITER_KEYS[7])
    assert totals.of[WRITER_KEYS[0]] == Arrivals(unmatched=1)


def kind_of(rank: int, comm: str) -> SeriesKey:
    """Return the series key of one rank in a communicator."""
    return SeriesKey(comm, rank, "AllReduce", "1KB")


def writer(pid: int) -> WriterKey:
    """Return the key of a writer with its own file."""
    return WriterKey(64, pid, 0, "here", pid)


def test_after_a_restart_the_user_with_the_most_waiting_operations_loses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored operations still belong to their users, so another user's few operations are not dropped first."""
    monkeypatch.setattr(matching, "MAX_WAITING_IN_ALL", 100)
    before = Matching()
    greedy = before.join(writer(1), kind_of(0, "m"), 2, lambda _: None, (1001, "/m"), 1001)
    assert greedy is not None
    greedy.note(list(range(90)), 89, [1] * 90)
    after = Matching()
    after.restore(before.save(), lambda _writer, _key: lambda _: None)
    again = after.join(writer(1), kind_of(0, "m"), 2, lambda _: None, (1001, "/m"), 1001)
    victim = after.join(writer(2), kind_of(0, "v"), 2, lambda _: None, (1000, "/v"), 1000)
    assert again is not None
    assert victim is not None
    victim.note(list(range(20)), 19, [1] * 20)
    after.settle()
    assert (len(again.times), len(victim.times)) == (0, 20)


def test_after_a_restart_a_user_holds_what_he_held() -> None:
    """Restored members count against their user's share."""

    def enter(all_pending: Matching, number: int) -> PendingMember | None:
        return all_pending.join(writer(number), kind_of(0, f"c{number}"), 2, lambda _: None, (1, "/m"), 1)

    before, after, granted = Matching(), Matching(), 0
    while (member := enter(before, granted)) is not None:
        member.note([1], 1, [1])
        granted += 1
    after.restore(before.save(), lambda _writer, _key: lambda _: None)
    for number in range(granted):
        enter(after, number)
    assert enter(after, 100_000) is None


def latest(times: Sequence[int]) -> tuple[int, int] | None:
    """Return the only last member, and how long the other members waited for it; None if several came last."""
    return next(
        ((member, arrivals.lateness_us) for member, arrivals in enumerate(judge([times])) if arrivals.last), None
    )


@pytest.mark.parametrize(("times", "last"), [
    ((2000, 2010, 80, 2005), (2, 1920)),  # one is late: the others waited for it, from the second to last on
    ((2000, 90, 80, 2005), (2, 10)),
    ((500, 20), (1, 480)),
    ((500, 500), None),
    ((23, 20, 20), None),  # two came last together
    ((22, 20, 90), None),  # a step of two timers
    ((23, 20, 90), (1, 3)),
    ((10_100, 10_000, 10_500), None),  # one part in a hundred
    ((10_101, 10_000, 10_500), (1, 101)),
])  # fmt: skip
def test_the_last_to_arrive_has_the_shortest_time(times: tuple[int, ...], last: tuple[int, int] | None) -> None:
    """The member with the shortest time came last (lateness: second shortest minus shortest), except in a near tie."""
    assert latest(times) == last
