"""One look through a directory and its subdirectories: both and their entries have a limit, in fair shares."""

import errno
import os
import stat
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent.tail.reader import DIRECTORY_FLAGS, closing
from agent.tail.shares import in_turns

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


@dataclass(slots=True)
class FoundEntry:
    """A name in a directory, its inode, and how to get its status, which follows no link and may raise OSError."""

    name: str
    inode: int
    stat: Callable[[], os.stat_result]


Take = Callable[[Directory, FoundEntry], None]
Skip = Callable[[OSError], None]
Fits = Callable[[str], bool]
"""Chooses entries by their names."""
_Enter = Callable[[str, int], Callable[[os.DirEntry[str]], None]]
"""Takes a directory's name below a base, and its descriptor; returns what takes its entries."""


class Walk:
    """Looks through directories: a subclass says through which."""

    roots: frozenset[str]
    """The directories that may be links."""

    def __init__(self, limits: FollowLimits) -> None:
        self._limits = limits

    def look(self, now_ns: int, take: Take, skip: Skip, skipped: Counter[str]) -> bool:
        """Hand files to ``take``, errors to ``skip``; count in ``skipped``. False when no directory is there."""
        self._now_ns, self._take, self.skip, self._skipped = now_ns, take, skip, skipped
        return self.look_through()

    @abstractmethod
    def look_through(self) -> bool:
        """Visit the directories of ``roots`` and those below; False when none is there."""

    def base(self, path: str) -> int | None:
        """Open one of ``roots``; None when that cannot be."""
        try:
            return os.open(path, DIRECTORY_FLAGS)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.skip(error)
            return None

    def visit(
        self, base: int, chosen: list[Subdirectory], prefix: str, files: Fits, directories: Fits
    ) -> list[Subdirectory]:
        """Take the files whose names fit, and return as many of the directories whose names do as there may be.

        Of each of ``chosen`` as many entries are looked at as its share is: what one leaves is shared out among the
        others.
        """
        inner: list[Subdirectory] = []

        def enter(below: str, descriptor: int) -> Callable[[os.DirEntry[str]], None]:
            directory = _directory(f"{prefix}/{below}" if below else prefix, descriptor)

            def see(entry: os.DirEntry[str]) -> None:
                is_taken, is_entered = files(entry.name), directories(entry.name)
                if (is_taken or is_entered) and entry.is_dir(follow_symlinks=False):
                    if is_entered:
                        self._gather(inner, below, entry.name, descriptor)
                elif is_taken:
                    self._take(
                        directory, FoundEntry(entry.name, entry.inode(), partial(entry.stat, follow_symlinks=False))
                    )

            return see

        taken = dict.fromkeys(chosen, 0)
        room = self._limits.entries
        for _ in range(MAX_ROUNDS):
            if room < len(taken) or not taken:
                break
            of_user = Counter(subdirectory.uid for subdirectory in taken)
            shares = {subdirectory: max(1, room // len(of_user) // of_user[subdirectory.uid]) for subdirectory in taken}
            for subdirectory, share in shares.items():
                seen, whole = self._scan(base, subdirectory, taken[subdirectory], min(room, share), enter)
                room -= seen
                taken[subdirectory] += seen
                if whole:
                    del taken[subdirectory]
        self._skipped["entry_limit"] += len(taken)
        below = fairly_chosen(inner, self._limits.directories)
        self._skipped["directory_limit"] += len(inner) - len(below)
        return below

    def _scan(self, base: int, subdirectory: Subdirectory, start: int, count: int, enter: _Enter) -> tuple[int, bool]:
        """Look at ``count`` entries from the ``start``-th on.

        Return how many there were, and whether they were the last ones (or no more can be had).
        """
        seen = 0
        try:
            directory = opened_below(base, subdirectory.name)
            with closing(directory):
                see = enter(subdirectory.name, directory)
                with os.scandir(directory) as entries:
                    for entry in islice(entries, start, start + count + 1):
                        if seen == count:
                            return seen, False
                        seen += 1
                        see(entry)
        except OSError as error:
            self.skip(error)
        return seen, True

    def _gather(self, subdirectories: list[Subdirectory], below: str, name: str, descriptor: int) -> None:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError as error:
            self.skip(error)
            return
        path = f"{below}/{name}" if below else name
        subdirectories.append(Subdirectory(path, status.st_uid, min(self._now_ns, status.st_mtime_ns)))


class Listing(Walk):
    """Looks at the files of one directory and of its subdirectories, one level deep."""

    def __init__(self, root: Path, limits: FollowLimits) -> None:
        super().__init__(limits)
        self._root = str(root)
        self.roots = frozenset({self._root})

    def look_through(self) -> bool:
        """Look at the entries of the directory, then at those of its subdirectories."""
        root = self.base(self._root)
        if root is None:
            return False
        with closing(root):
            top = [Subdirectory("", os.fstat(root).st_uid, 0)]
            below = self.visit(root, top, self._root, any_name, any_name)
            self.visit(root, below, self._root, any_name, no_name)
        return True


def any_name(_name: str) -> bool:
    """Fit every name."""
    return True


def no_name(_name: str) -> bool:
    """Fit no name."""
    return False


def fairly_chosen(subdirectories: list[Subdirectory], limit: int) -> list[Subdirectory]:
    """As many directories as there may be: each user's in turn, those first in which files were made last."""
    if len(subdirectories) <= limit:
        return subdirectories
    return in_turns(
        sorted(subdirectories, key=lambda subdirectory: -subdirectory.modified_ns),
        lambda subdirectory: subdirectory.uid,
        limit,
    )


def opened_below(base: int, path: str) -> int:
    """Open a directory below ``base`` name by name, following no link."""
    descriptor = os.open(".", DIRECTORY_FLAGS, dir_fd=base)
    for name in filter(None, path.split("/")):
        with closing(descriptor):
            descriptor = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
    return descriptor


def entry_at(root: str, path: str, identity: tuple[int, int]) -> tuple[Directory, FoundEntry] | None:
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
            return _directory("/".join((root, *folders)), descriptor), FoundEntry(name, status.st_ino, lambda: status)


def _directory(prefix: str, descriptor: int) -> Directory:
    status = os.fstat(descriptor)
    return Directory(prefix, status.st_dev, is_open_to_others(status.st_mode))


def is_open_to_others(mode: int) -> bool:
    """Return whether others than a directory's user may replace that user's files in it."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
