"""How much of a bounded table each share holds, and which loses an entry: users, then their directories. Pure."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

NO_OWNER = -1
"""The uid of what is of a file that was not looked at yet."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


def in_turns(items: Iterable[T], owner_of: Callable[[T], Hashable], most: int | None = None) -> list[T]:
    """Return the items, at most ``most``: the first of each owner, then the second of each, in their own order."""
    turns: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        owner = owner_of(item)
        turns[owner] += 1
        numbered.append((turns[owner], item))
    return [item for _, item in sorted(numbered, key=lambda numbered_item: numbered_item[0])[:most]]


class Share(NamedTuple):
    """Whose a file is: its user, and the directory that it lies in: containers mostly have one user id, root's."""

    uid: int
    directory: str


ShareOf = Callable[[os.stat_result, str], Share]
"""Names the share of a file by its status and its directory."""


def share_of(status: os.stat_result, directory: str) -> Share:
    """Name the share by the file's user and its directory."""
    return Share(status.st_uid, directory)


class _Counts(Generic[K]):
    """Counts by key, with the largest one always at hand: a table may need it for each of 65,536 files."""

    def __init__(self) -> None:
        self._count: dict[K, int] = {}
        self._keys: dict[int, dict[K, None]] = {}
        self._most = 0

    def of(self, key: K) -> int:
        return self._count.get(key, 0)

    def change(self, key: K, by: int) -> None:
        before = self._count.pop(key, 0)
        after = before + by
        if before:
            del self._keys[before][key]
            if not self._keys[before]:
                del self._keys[before]
        if after > 0:
            self._count[key] = after
            self._keys.setdefault(after, {})[key] = None
        if after > self._most:
            self._most = after
        elif self._most not in self._keys:
            self._most = max(self._keys, default=0)

    def most(self) -> K | None:
        return next(iter(self._keys[self._most])) if self._most else None


class Holdings:
    """How many entries of one table each share holds."""

    def __init__(self) -> None:
        self._users: _Counts[int] = _Counts()
        self._directories: dict[int, _Counts[str]] = {}

    def add(self, share: Share, count: int = 1) -> None:
        """Add ``count`` entries, maybe negative, to ``share``."""
        self._users.change(share.uid, count)
        self._directories.setdefault(share.uid, _Counts()).change(share.directory, count)
        if not self._users.of(share.uid):
            del self._directories[share.uid]

    def most(self) -> Share | None:
        """Return the largest directory of the largest user; None when the table is empty."""
        uid = self._users.most()
        directory = None if uid is None else self._directories[uid].most()
        return None if uid is None or directory is None else Share(uid, directory)

    def gives_way_to(self, share: Share) -> Share:
        """Return the share that loses an entry to ``share`` in a full table: the largest one.

        It is ``share`` itself unless another holds at least two more, so that no two take a place from each other in
        turns. Who holds nothing is thus given a place at once, as long as there are fewer shares than places.
        """
        most = self.most()
        if most is None:
            return share
        if most.uid != share.uid and self._users.of(most.uid) > self._users.of(share.uid) + 1:
            return most
        of_user = self._directories.get(share.uid)
        largest = None if of_user is None else of_user.most()
        if of_user is None or largest is None or of_user.of(largest) <= of_user.of(share.directory) + 1:
            return share
        return Share(share.uid, largest)


class FairTable(Generic[K, V]):
    """A bounded table: values by key, and whose they are; each share's keys in the order in which they came."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[Share, V]] = {}
        self._keys: dict[Share, dict[K, None]] = {}
        self._holdings = Holdings()
        self._loser: dict[Share, Share] = {}  # what was answered since the last change

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value of that key."""
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        """Return the value of a key that is there."""
        return self._entries[key][1]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key, if it is there."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def values(self) -> list[V]:
        """All of them."""
        return [value for _, value in self._entries.values()]

    def items(self) -> list[tuple[K, V]]:
        """All of them, with their keys."""
        return [(key, value) for key, (_, value) in self._entries.items()]

    def put(self, key: K, value: V, share: Share) -> None:
        """Add a value, or put it last."""
        self.pop(key)
        self._entries[key] = share, value
        self._keys.setdefault(share, {})[key] = None
        self._holdings.add(share)
        self._loser.clear()

    def pop(self, key: K) -> V | None:
        """Remove and return a value, if it is there."""
        if (entry := self._entries.pop(key, None)) is None:
            return None
        share, value = entry
        del self._keys[share][key]
        if not self._keys[share]:
            del self._keys[share]
        self._holdings.add(share, -1)
        self._loser.clear()
        return value

    def of(self, share: Share) -> Iterable[K]:
        """Return the keys of a share, the oldest first."""
        return self._keys.get(share, {}).keys()

    def share_of(self, key: K) -> Share:
        """Whose a key is that is there."""
        return self._entries[key][0]

    def gives_way_to(self, share: Share) -> Share:
        """Return the share that loses a key to ``share``, by the rule of Holdings."""
        loser = self._loser.get(share)
        if loser is None:
            loser = self._loser[share] = self._holdings.gives_way_to(share)
        return loser
