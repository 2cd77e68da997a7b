"""Count a table's entries by share (user, then directory); choose the share that loses an entry at the limit. Pure."""

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

NO_OWNER = -1
"""The uid of a file before its status is read."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V")


def in_turns(items: Iterable[T], owner_of: Callable[[T], Hashable], most: int | None = None) -> list[T]:
    """Return up to ``most`` items, owners in turn: the first item of each owner, then each owner's second item."""
    turns: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        owner = owner_of(item)
        turns[owner] += 1
        numbered.append((turns[owner], item))
    return [item for _, item in sorted(numbered, key=lambda numbered_item: numbered_item[0])[:most]]


class Share(NamedTuple):
    """A file's user and its directory. The directory distinguishes containers, as most containers run as root."""

    uid: int
    directory: str


def share_of(status: os.stat_result, directory: str) -> Share:
    """Return the share from the file's user and its directory."""
    return Share(status.st_uid, directory)


class _Largest(NamedTuple):
    """The number of keys of each user, each user's largest directory, and the largest user (NO_OWNER: no keys)."""

    users: Counter[int]
    directories: Mapping[int, Share]
    most: int


class FairTable(Generic[K, V]):
    """A table of values by key, with the share of each key; the keys of a share are in order of insertion."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[Share, V]] = {}
        self._keys: dict[Share, dict[K, None]] = {}
        self._largest: _Largest | None = None  # as of the last change

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: K) -> V:
        return self._entries[key][1]

    def __len__(self) -> int:
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
        """Add or replace a value; its key becomes the last key of the share."""
        self.pop(key)
        self._entries[key] = share, value
        self._keys.setdefault(share, {})[key] = None
        self._largest = None

    def pop(self, key: K) -> V | None:
        """Remove and return a value, or None."""
        if (entry := self._entries.pop(key, None)) is None:
            return None
        share, value = entry
        del self._keys[share][key]
        if not self._keys[share]:
            del self._keys[share]
        self._largest = None
        return value

    def of(self, share: Share) -> Iterable[K]:
        """Return the keys of a share, oldest first."""
        return self._keys.get(share, {}).keys()

    def share_of(self, key: K) -> Share:
        """Return the share of an existing key."""
        return self._entries[key][0]

    def losing_share(self, share: Share) -> Share:
        """Return the share that loses a key to ``share`` at the limit.

        It is the largest directory of the largest user, if this user has at least two keys more than the user of
        ``share``. Else it is the largest directory of the user of ``share``, if this directory has at least two keys
        more than ``share``. Else it is ``share`` itself: with a difference of one key, two shares would evict each
        other in turn.
        """
        self._largest = self._largest or _largest({share: len(keys) for share, keys in self._keys.items()})
        users, directories, most = self._largest
        if most != share.uid and users[most] > users[share.uid] + 1:
            return directories[most]
        rival = directories.get(share.uid, share)
        return rival if len(self._keys.get(rival, ())) > len(self._keys.get(share, ())) + 1 else share


def _largest(sizes: Mapping[Share, int]) -> _Largest:
    users: Counter[int] = Counter()
    directories: dict[int, Share] = {}
    for share, count in sizes.items():
        users[share.uid] += count
        if count > sizes[directories.setdefault(share.uid, share)]:
            directories[share.uid] = share
    return _Largest(users, directories, max(users, key=users.__getitem__, default=NO_OWNER))
