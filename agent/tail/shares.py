"""Count a bounded table's entries by share (users, then their directories); choose the share to evict from. Pure."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

NO_OWNER = -1
"""The uid of a file whose status was not read yet."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


def in_turns(items: Iterable[T], owner_of: Callable[[T], Hashable], most: int | None = None) -> list[T]:
    """Return at most ``most`` items, owners in turn: the first item of each owner, then the second of each."""
    turns: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        owner = owner_of(item)
        turns[owner] += 1
        numbered.append((turns[owner], item))
    return [item for _, item in sorted(numbered, key=lambda numbered_item: numbered_item[0])[:most]]


class Share(NamedTuple):
    """A file's user and its directory: containers mostly share one user id, root's."""

    uid: int
    directory: str


ShareOf = Callable[[os.stat_result, str], Share]
"""Returns the share of a file from its status and directory."""


def share_of(status: os.stat_result, directory: str) -> Share:
    """Return the share from the file's user and its directory."""
    return Share(status.st_uid, directory)


class _Counts(Generic[K]):
    """Counts by key with a fast maximum: a table may need it for each of 65,536 files."""

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
    """Number of entries of one table by share."""

    def __init__(self) -> None:
        self._users: _Counts[int] = _Counts()
        self._directories: dict[int, _Counts[str]] = {}

    def add(self, share: Share, count: int = 1) -> None:
        """Add ``count`` entries (may be negative) to ``share``."""
        self._users.change(share.uid, count)
        self._directories.setdefault(share.uid, _Counts()).change(share.directory, count)
        if not self._users.of(share.uid):
            del self._directories[share.uid]

    def most(self) -> Share | None:
        """Return the largest directory of the largest user; None if the table is empty."""
        uid = self._users.most()
        directory = None if uid is None else self._directories[uid].most()
        return None if uid is None or directory is None else Share(uid, directory)

    def losing_share(self, share: Share) -> Share:
        """Return the share that loses an entry to ``share`` in a full table: the largest one.

        It is ``share`` itself unless another share has at least two entries more, so that two shares never evict each
        other in turns. A share without entries gets a place at once, as long as there are fewer shares than places.
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
    """A bounded table: values by key with their shares; each share's keys are in order of insertion."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[Share, V]] = {}
        self._keys: dict[Share, dict[K, None]] = {}
        self._holdings = Holdings()
        self._loser: dict[Share, Share] = {}  # results since the last change

    def __contains__(self, key: object) -> bool:
        """Return True if the table has the key."""
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        """Return the value of an existing key."""
        return self._entries[key][1]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def values(self) -> list[V]:
        """Return all values."""
        return [value for _, value in self._entries.values()]

    def items(self) -> list[tuple[K, V]]:
        """Return all (key, value) pairs."""
        return [(key, value) for key, (_, value) in self._entries.items()]

    def put(self, key: K, value: V, share: Share) -> None:
        """Add a value, or move it to the end."""
        self.pop(key)
        self._entries[key] = share, value
        self._keys.setdefault(share, {})[key] = None
        self._holdings.add(share)
        self._loser.clear()

    def pop(self, key: K) -> V | None:
        """Remove and return a value, or None."""
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
        """Return the keys of a share, oldest first."""
        return self._keys.get(share, {}).keys()

    def share_of(self, key: K) -> Share:
        """Return the share of an existing key."""
        return self._entries[key][0]

    def losing_share(self, share: Share) -> Share:
        """Return the share that loses a key to ``share`` in a full table, by the rule of ``Holdings``."""
        loser = self._loser.get(share)
        if loser is None:
            loser = self._loser[share] = self._holdings.losing_share(share)
        return loser
