"""Matches records of the same operation from all ranks of a communicator; finds the rank that came last. Bounded.

All ranks' records of one operation have the same number. A rank's time is kept until the times of all ranks are read,
or until all ranks have written later operations. If a rank of a communicator is on another node, the communicator's
operations are not matched. A rank's kernel time runs from its own start until all ranks are done. So the last rank to
arrive has the shortest time, and all others waited for it at least the difference to the second shortest time. See
docs/decisions/0012-late-ranks.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.metrics import FairBudget, Group
from agent.sdk.ranks import WriterKey
from exporters.inspector.format.records import MAX_EXEC_TIME_US, MAX_SEQUENCE_NUMBER, MAX_TOTAL, Rank, SeriesKey, Total

SYNCHRONISING = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
"""Collectives in which every output needs every input. In other collectives some members finish early."""
TIE_US = 2  # Times are whole microseconds, rounded down; the timers often step by one
TIE_PARTS = 100  # A lead up to 1/TIE_PARTS of the shortest time comes from the transfers' ends


class Arrivals(msgspec.Struct, gc=False, array_like=True):
    """Results of matched operations: the first two results are of one rank, the others of its communicator.

    Rank 0 keeps the communicator's values; they are 0 for other ranks.
    """

    last: Total = 0
    lateness_us: Total = 0
    matched: Total = 0
    unmatched: Total = 0
    floor_us: Total = 0

    def plus(self, other: Arrivals) -> Arrivals:
        """Return the sum of both."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Arrivals(*(min(MAX_TOTAL, count + another) for count, another in pairs))


def judge(times: Sequence[Sequence[int]]) -> list[Arrivals]:
    """Return one Arrivals for each member, in the order of the members in a row: the sums over all operations.

    ``times``: a row per operation with the kernel time of each member in microseconds.
    """
    members = [Arrivals() for _ in times[0]]
    floor_us = 0
    for row in times:
        ordered = sorted(row)
        shortest, lead_us = ordered[0], ordered[1] - ordered[0]
        floor_us += shortest
        if lead_us > TIE_US and lead_us * TIE_PARTS > shortest:  # otherwise several ranks came last
            last = members[row.index(shortest)]
            last.last += 1
            last.lateness_us += lead_us
    members[0].matched, members[0].floor_us = len(times), floor_us
    return members


MAX_MEMBERS = 64  # Ranks of a matched communicator; no node has more GPUs
MAX_MEMBERS_IN_ALL = 8192
MAX_WAITING = 4096
"""Limit of waiting operations of one kind per member: one file can be read this far ahead of another."""
MAX_WAITING_ALONE = 1024  # The limit while a member was never seen: that member may be on another node
MAX_WAITING_IN_ALL = 65_536  # Limit of the times that wait after a turn, over all members: about 8 MB
SLACK = 64  # How far operations of one kind can be written out of order

SequenceNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE_NUMBER)]
ExecTimeUs = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXEC_TIME_US)]
Credit = Callable[[Arrivals], None]  # Adds a match's result for a member to its totals


class OperationKind(NamedTuple):
    """Operations that can be matched: one collective of one communicator, in one size class, in files of one user.

    Users are separate because any user can write a file in the name of any communicator. ``uid``: -1 when unknown.
    """

    comm: str
    n_ranks: int
    collective: str
    size: str
    uid: int = -1


class SavedMember(msgspec.Struct, array_like=True):
    """One member's part of PendingOperations in the checkpoint."""

    comm_rank: Rank
    writer_key: WriterKey
    highest: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE_NUMBER)]
    times: dict[SequenceNumber, ExecTimeUs]


class SavedPending(msgspec.Struct, array_like=True):
    """PendingOperations that are not empty, in the checkpoint."""

    kind: OperationKind
    members: list[SavedMember]


@dataclass(slots=True, eq=False)
class PendingMember:
    """One rank of a communicator. ``times``: by operation number, the rank's times that wait for other members."""

    pending: PendingOperations | None
    writer_key: WriterKey
    credit: Credit
    group: Group
    highest: int = -1
    times: dict[int, int] = field(default_factory=dict)

    def note(self, numbers: list[int], highest: int, times: list[int]) -> None:
        """Add operations: their numbers and kernel times in microseconds."""
        pending = self.pending
        if pending is None or pending.given_up:
            return
        self.times.update(zip(numbers, times, strict=True))
        self.highest = max(self.highest, highest)
        pending.changed = True
        if len(self.times) > MAX_WAITING:
            pending.settle()


class PendingOperations:
    """Waiting operations of one kind. ``given_up``: collect none. ``highest_unmatched``: highest unmatched number."""

    def __init__(self, kind: OperationKind) -> None:
        self.kind = kind
        self.members: dict[int, PendingMember] = {}
        self.changed = self.given_up = False
        self.highest_unmatched = -1

    def _all_members(self) -> list[PendingMember]:
        """Return all members in the order of their ranks; an empty list while a member was never seen."""
        n_ranks = self.kind.n_ranks
        return [self.members[rank] for rank in range(n_ranks)] if len(self.members) == n_ranks else []

    def settle(self) -> None:
        """Match the complete operations, and drop those that can no longer be completed."""
        self.changed = False
        if not (members := self._all_members()):
            if any(len(member.times) > MAX_WAITING_ALONE for member in self.members.values()):
                self.relieve()
            return
        self._match(members)
        oldest_awaited = min(member.highest for member in members) - SLACK
        unmatched = {number for member in members for number in member.times if number < oldest_awaited}
        for member in members:
            if len(member.times) > MAX_WAITING:
                unmatched.update(sorted(member.times)[: -MAX_WAITING // 2])
        self._count_unmatched(members, unmatched)

    def waiting_times(self) -> int:
        """Return the number of waiting times."""
        return sum(len(member.times) for member in self.members.values())

    def relieve(self) -> None:
        """Drop the waiting times, at a limit; if a member was never seen, stop collecting."""
        self.given_up = not self._all_members()
        self.abandon()

    def abandon(self) -> None:
        """If all members are known, match complete operations and count the others. Then drop the waiting times."""
        if members := self._all_members():
            self._match(members)
            self._count_unmatched(members, {number for member in members for number in member.times})
        for member in self.members.values():
            member.times.clear()

    def _match(self, members: list[PendingMember]) -> None:
        numbers = set(min(members, key=lambda member: len(member.times)).times)
        for member in members:
            numbers &= member.times.keys()
        if not numbers:
            return
        times = list(zip(*(list(map(member.times.pop, numbers)) for member in members), strict=True))
        for member, arrivals in zip(members, judge(times), strict=True):
            member.credit(arrivals)

    def _count_unmatched(self, members: list[PendingMember], numbers: set[int]) -> None:
        if numbers:  # a slower member may still record operations up to the highest counted one
            for member in members:
                for number in numbers:
                    member.times.pop(number, None)
            self.members[0].credit(Arrivals(unmatched=sum(number > self.highest_unmatched for number in numbers)))
            self.highest_unmatched = max(self.highest_unmatched, *numbers)


class Matching:
    """The pending operations of one reader. ``room`` is the limit of their members."""

    def __init__(self) -> None:
        self._pending: dict[OperationKind, PendingOperations] = {}
        self.room = FairBudget(MAX_MEMBERS_IN_ALL)

    def join(
        self, writer_key: WriterKey, key: SeriesKey, n_ranks: int, credit: Credit, group: Group = (), uid: int = -1
    ) -> PendingMember | None:
        """Return the member for a rank's operations of one kind; None when they cannot be matched.

        ``key.size``: their size class; ``group``: the writer's user and directory; ``uid``: the user of its file. A new
        member replaces the same user's earlier member at this rank: the job restarted.
        """
        if not 0 <= key.comm_rank < n_ranks <= MAX_MEMBERS or n_ranks < 2:
            return None
        kind = OperationKind(key.comm, n_ranks, key.collective, key.size, uid)
        pending = self._pending.get(kind) or PendingOperations(kind)
        former = pending.members.get(key.comm_rank)
        if former is not None and former.writer_key == writer_key:
            former.credit = credit
            if former.group != group:  # a restored member: the checkpoint lacks the group
                self.room.give_back(former.group, 1)
                self.room.keep(group, 1)
                former.group = group
            return former
        is_same_group = former is not None and former.group == group
        if not is_same_group and not self.room.take(group):
            return None
        self._pending[kind] = pending
        if former is not None:
            if not is_same_group:
                self.room.give_back(former.group, 1)
            pending.abandon()
            former.pending = None
        pending.given_up, pending.highest_unmatched = False, -1
        member = pending.members[key.comm_rank] = PendingMember(pending, writer_key, credit, group)
        return member

    def settle(self) -> None:
        """Match all complete operations; called at the end of a turn."""
        for pending in self._pending.values():
            if pending.changed:
                pending.settle()
        waiting_in_all = sum(pending.waiting_times() for pending in self._pending.values())
        for pending in self._largest_first() if waiting_in_all > MAX_WAITING_IN_ALL else ():
            waiting_in_all -= pending.waiting_times()
            pending.relieve()
            if waiting_in_all <= MAX_WAITING_IN_ALL:
                break

    def _largest_first(self) -> list[PendingOperations]:
        """Return all entries, sorted by the number of waiting times: of the user, of the directory, of the entry."""
        waiting: Counter[Group] = Counter()
        for pending in self._pending.values():
            for member in pending.members.values():
                for depth in range(1, len(member.group) + 1):
                    waiting[member.group[:depth]] += len(member.times)

        def order(pending: PendingOperations) -> tuple[list[int], int]:
            group = max(pending.members.values(), key=lambda member: len(member.times)).group
            return [waiting[group[:depth]] for depth in range(1, len(group) + 1)], pending.waiting_times()

        return sorted(self._pending.values(), key=order, reverse=True)

    def leave(self, writer_key: WriterKey, comms: frozenset[str] | None = None) -> None:
        """Remove an ended writer, or (``comms``) only some of its communicators."""
        for kind, pending in list(self._pending.items()):
            if comms is not None and kind.comm not in comms:
                continue
            for comm_rank in [rank for rank, member in pending.members.items() if member.writer_key == writer_key]:
                pending.abandon()
                member = pending.members.pop(comm_rank)
                member.pending = None
                self.room.give_back(member.group, 1)
            if not pending.members:
                del self._pending[kind]

    def save(self) -> list[SavedPending]:
        """Return the waiting operations."""
        return [
            SavedPending(
                pending.kind,
                [
                    SavedMember(rank, member.writer_key, member.highest, member.times)
                    for rank, member in pending.members.items()
                ],
            )
            for pending in self._pending.values()
            if pending.waiting_times()
        ]

    def restore(self, saved: list[SavedPending], credit_of: Callable[[WriterKey, SeriesKey], Credit | None]) -> None:
        """Restore the result of ``save``; ``credit_of`` returns None for a writer that no longer exists."""
        for saved_pending in saved:
            kind = saved_pending.kind
            for saved_member in saved_pending.members:
                key = SeriesKey(kind.comm, saved_member.comm_rank, kind.collective, kind.size)
                writer_key, times = saved_member.writer_key, saved_member.times
                if (credit := credit_of(writer_key, key)) is None:
                    continue
                if member := self.join(writer_key, key, kind.n_ranks, credit, uid=kind.uid):
                    member.note([*times], saved_member.highest, [*times.values()])
