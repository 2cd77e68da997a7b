"""One look through a directory and its subdirectories: both and their entries have a limit, in fair shares."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from agent.tail.reader import DIRECTORY_FLAGS, closing

MAX_ROUNDS = 16
"""How often what some directories left of the entries is shared out among the others."""


class FollowLimits(NamedTuple):
    """How much of a directory tree is looked at; what lies beyond is counted in ``Follower.skipped``.

    ``entries``: of the root, and as many of all its subdirectories together.
    """

    open_files: int = 256
    files: int = 4096
    entries: int = 65_536
    directories: int = 256


class Directory(NamedTuple):
    """An open directory. ``shared``: others than its user may replace what lies in it."""

    prefix: str
    device: int
    shared: bool


class Subdirectory(NamedTuple):
    """A directory below the one looked at: its name there, whose it is, when files were made in it last."""

    name: str
    uid: int
    modified_ns: int


class FoundEntry(Protocol):
    """What is needed of an os.DirEntry."""

    @property
    def name(self) -> str:
        """Return the file's name in its directory."""
        ...

    def inode(self) -> int:
        """Return the inode's number."""
        ...

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the file's status."""
        ...


class NamedEntry(NamedTuple):
    """A file that was named and looked at."""

    name: str
    status: os.stat_result

    def inode(self) -> int:
        """Return the inode's number."""
        return self.status.st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the name itself: no link was followed."""
        return self.status


class Finder(Protocol):
    """Finds files: one way to look for them."""

    @property
    def roots(self) -> frozenset[str]:
        """Return the directories that may be links."""
        ...

    def look(self, now_ns: int) -> bool:
        """Hand over all that is there; False when no directory is."""
        ...


Take = Callable[[Directory, FoundEntry], None]
Skip = Callable[[OSError], None]
ListingOf = Callable[[FollowLimits, Counter[str], Take, Skip], Finder]


class Listing:
    """Hands each entry that is no directory to ``take`` and each error to ``skip``; counts in ``skipped``."""

    def __init__(self, root: Path, limits: FollowLimits, skipped: Counter[str], take: Take, skip: Skip) -> None:
        self._prefix = str(root)
        self.roots = frozenset({self._prefix})
        self._limits = limits
        self._skipped = skipped
        self._take = take
        self._skip = skip

    def look(self, now_ns: int) -> bool:
        """Look at the entries of the directory, then at those of its subdirectories; False when it is not there."""
        try:
            root = os.open(self._prefix, DIRECTORY_FLAGS)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._skip(error)
            return False
        with closing(root):
            self._look_below(root, now_ns)
        return True

    def _look_below(self, root: int, now_ns: int) -> None:
        names: list[str] = []
        _, whole = self._scan(root, self._prefix, 0, self._limits.entries, names)
        self._skipped["entry_limit"] += not whole
        found = [one for name in names if (one := self._subdirectory(root, name, now_ns)) is not None]
        chosen = fairly_chosen(found, self._limits.directories)
        self._skipped["directory_limit"] += len(found) - len(chosen)
        self._look_into(root, chosen)

    def _look_into(self, root: int, chosen: list[Subdirectory]) -> None:
        """Look at as many entries of each as its share is: what one leaves is shared out among the others."""
        taken = dict.fromkeys(chosen, 0)
        room = self._limits.entries
        for _ in range(MAX_ROUNDS):
            if room < len(taken):
                break
            of_user = Counter(one.uid for one in taken)
            shares = {one: max(1, room // len(of_user) // of_user[one.uid]) for one in taken}
            for one, share in shares.items():
                seen, whole = self._open(root, one, taken[one], min(room, share))
                room -= seen
                taken[one] += seen
                if whole:
                    del taken[one]
        self._skipped["entry_limit"] += len(taken)

    def _subdirectory(self, root: int, name: str, now_ns: int) -> Subdirectory | None:
        try:
            status = os.stat(name, dir_fd=root, follow_symlinks=False)
        except OSError as error:
            self._skip(error)
            return None
        return Subdirectory(name, status.st_uid, min(now_ns, status.st_mtime_ns))

    def _open(self, root: int, one: Subdirectory, start: int, count: int) -> tuple[int, bool]:
        try:
            directory = os.open(one.name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=root)
        except OSError as error:
            self._skip(error)
            return 0, True
        with closing(directory):
            return self._scan(directory, f"{self._prefix}/{one.name}", start, count, [])

    def _scan(self, descriptor: int, prefix: str, start: int, count: int, names: list[str]) -> tuple[int, bool]:
        """Look at ``count`` entries from the ``start``-th on, and add the directories to ``names``.

        Return how many there were, and whether they were the last ones (or no more can be had).
        """
        seen = 0
        try:
            directory = _directory(prefix, descriptor)
            with os.scandir(descriptor) as entries:
                for entry in islice(entries, start, start + count + 1):
                    if seen == count:
                        return seen, False
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name)
                    else:
                        self._take(directory, entry)
        except OSError as error:
            self._skip(error)
        return seen, True


def fairly_chosen(found: list[Subdirectory], limit: int) -> list[Subdirectory]:
    """As many directories as there may be: each user's in turn, those first in which files were made last."""
    if len(found) <= limit:
        return found
    rank: Counter[int] = Counter()
    ranked = []
    for one in sorted(found, key=lambda one: -one.modified_ns):
        ranked.append((rank[one.uid], one))
        rank[one.uid] += 1
    return [one for _, one in sorted(ranked, key=lambda each: each[0])[:limit]]


def opened_below(base: int, path: str) -> int:
    """Open a directory below ``base`` name by name, following no link."""
    descriptor = os.open(".", DIRECTORY_FLAGS, dir_fd=base)
    for name in filter(None, path.split("/")):
        with closing(descriptor):
            descriptor = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
    return descriptor


def entry_at(root: str, path: str, identity: tuple[int, int]) -> tuple[Directory, NamedEntry] | None:
    """Return the file of that device and inode at ``path``, in ``root`` or one level below; else None. Raises OSError.

    ``path`` comes from outside: no link below ``root`` is followed.
    """
    below = next((path[len(base) + 1 :] for base in (root, os.path.realpath(root)) if path.startswith(f"{base}/")), "")
    *folders, name = below.split("/")
    if len(folders) > 1 or {"", ".", ".."} & {*folders, name}:
        return None
    base = os.open(root, DIRECTORY_FLAGS)
    with closing(base):
        descriptor = opened_below(base, "/".join(folders))
        with closing(descriptor):
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if (status.st_dev, status.st_ino) != identity:
                return None
            return _directory("/".join((root, *folders)), descriptor), NamedEntry(name, status)


def _directory(prefix: str, descriptor: int) -> Directory:
    status = os.fstat(descriptor)
    return Directory(prefix, status.st_dev, is_open_to_others(status.st_mode))


def is_open_to_others(mode: int) -> bool:
    """Return whether others than a directory's user may replace that user's files in it."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
