"""Search a directory and its subdirectories. Users get fair shares of the limits of directories and entries."""

import errno
import os
import stat
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent.tail.hang_guard import HangGuard
from agent.tail.reader import DIRECTORY_FLAGS, closing
from agent.tail.shares import in_turns

MAX_ROUNDS = 16
"""Limit of rounds in which the unused shares of entries go to directories with unread entries."""


class FollowLimits(NamedTuple):
    """Limits of a search; files above them count in ``Follower.skipped``.

    ``entries``: limit for the root, and again for all its subdirectories together.
    """

    open_files: int = 256
    files: int = 4096
    entries: int = 65_536
    directories: int = 256


class Directory(NamedTuple):
    """An open directory. ``shared``: other users may replace its files."""

    prefix: str
    device: int
    shared: bool


class Subdirectory(NamedTuple):
    """A subdirectory: path below the base, owner, and time of the last change."""

    name: str
    uid: int
    modified_ns: int


@dataclass(slots=True)
class FoundEntry:
    """A directory entry: name, inode, and a function for the status, which follows no link and may raise OSError."""

    name: str
    inode: int
    stat: Callable[[], os.stat_result]


Take = Callable[[Directory, FoundEntry], None]
Skip = Callable[[OSError, str], None]
"""Takes an error and the path of the directory in which files are missed; empty for a root or a single file."""
Fits = Callable[[str], bool]
"""Selects entries by name."""
_Enter = Callable[[str, int], Callable[[os.DirEntry[str]], None]]
"""Takes a directory's path below a base and its descriptor; returns the function that handles its entries."""


class Walk:
    """Base of searches through directories; a subclass chooses the directories.

    ``devices``: devices of known files, by path, used only while a call hangs. ``is_refused``: a root is not readable.
    """

    roots: frozenset[str]
    """Directories at which a search starts; links are followed to them, but not to directories below them."""

    def __init__(self, limits: FollowLimits, hangs: HangGuard | None = None) -> None:
        self.limits = limits
        self.hangs = hangs or HangGuard()
        self.devices: Mapping[str, int] = {}
        self._root_devices: dict[str, int] = {}

    def look(self, now_ns: int, take: Take, skip: Skip, skipped: Counter[str]) -> bool:
        """Pass files to ``take`` and errors to ``skip``; count skipped files. Return False if no directory exists."""
        self._now_ns, self._take, self.skip, self._skipped, self.is_refused = now_ns, take, skip, skipped, False
        return self.look_through()

    @abstractmethod
    def look_through(self) -> bool:
        """Visit the directories of ``roots`` and below; return False if none exists."""

    def has_new_mount(self) -> bool:
        """Return True if a root, or its nearest parent while it is missing, has a new device since the last call."""
        former = dict(self._root_devices)
        for root in self.roots:
            with suppress(OSError), self.hangs.using(root):
                self._root_devices[root] = _device_of(root)
        return any(self._root_devices[root] != device for root, device in former.items())

    def base(self, path: str) -> int | None:
        """Open one of ``roots``; return None if that fails."""
        try:
            with self.hangs.using(path):
                return os.open(path, DIRECTORY_FLAGS)
        except OSError as error:
            self.is_refused |= error.errno == errno.EACCES
            if error.errno != errno.ENOENT:
                self.skip(error, "")
            return None

    def visit(
        self, base: int, chosen: list[Subdirectory], prefix: str, files: Fits, directories: Fits
    ) -> list[Subdirectory]:
        """Pass on the files with matching names, and return the matching directories within the limit.

        Each directory of ``chosen`` has a share of the entry limit. Unused parts of shares go to directories with more
        entries than their share.
        """
        inner: list[Subdirectory] = []

        def enter(below: str, descriptor: int) -> Callable[[os.DirEntry[str]], None]:
            directory = _directory(f"{prefix}/{below}" if below else prefix, descriptor)

            def handle(entry: os.DirEntry[str]) -> None:
                is_taken, is_entered = files(entry.name), directories(entry.name)
                if (is_taken or is_entered) and entry.is_dir(follow_symlinks=False):
                    if is_entered:
                        self._gather(inner, prefix, f"{below}/{entry.name}" if below else entry.name, descriptor)
                elif is_taken:
                    self._take(
                        directory, FoundEntry(entry.name, entry.inode(), partial(entry.stat, follow_symlinks=False))
                    )

            return handle

        taken = dict.fromkeys(chosen, 0)
        room = self.limits.entries
        for _ in range(MAX_ROUNDS):
            if room < len(taken) or not taken:
                break
            of_user = Counter(subdirectory.uid for subdirectory in taken)
            shares = {subdirectory: max(1, room // len(of_user) // of_user[subdirectory.uid]) for subdirectory in taken}
            for subdirectory, share in shares.items():
                handled, is_whole = self._scan(base, prefix, subdirectory, taken[subdirectory], min(room, share), enter)
                room -= handled
                taken[subdirectory] += handled
                if is_whole:
                    del taken[subdirectory]
        self._skipped["entry_limit"] += len(taken)
        below = fairly_chosen(inner, self.limits.directories)
        self._skipped["directory_limit"] += len(inner) - len(below)
        return below

    def _scan(
        self, base: int, prefix: str, subdirectory: Subdirectory, start: int, count: int, enter: _Enter
    ) -> tuple[int, bool]:
        """Handle up to ``count`` entries from number ``start`` on.

        Returns the number of handled entries, and True if no entry follows (or an error ended the search).
        """
        handled = 0
        path = f"{prefix}/{subdirectory.name}" if subdirectory.name else prefix
        try:
            with self.hangs.using(path), closing(opened_below(base, subdirectory.name)) as directory:
                handle = enter(subdirectory.name, directory)
                with os.scandir(directory) as entries:
                    for entry in islice(entries, start, start + count + 1):
                        if handled == count:
                            return handled, False
                        handled += 1
                        handle(entry)
                        self.hangs.note_answer()
        except OSError as error:
            self.skip(error, path if subdirectory.name else "")
        return handled, True

    def _gather(self, subdirectories: list[Subdirectory], prefix: str, path: str, descriptor: int) -> None:
        try:
            with self.hangs.using(f"{prefix}/{path}"):
                status = os.stat(path.rpartition("/")[2], dir_fd=descriptor, follow_symlinks=False)
        except OSError as error:
            self.skip(error, f"{prefix}/{path}")
            return
        subdirectories.append(Subdirectory(path, status.st_uid, min(self._now_ns, status.st_mtime_ns)))


class Listing(Walk):
    """Searches for files with matching names in one directory and in its direct subdirectories."""

    def __init__(self, root: Path, matches: Fits, limits: FollowLimits = FollowLimits()) -> None:  # noqa: B008  # immutable
        super().__init__(limits)
        self._root = str(root)
        self._matches = matches
        self.roots = frozenset({self._root})

    def look_through(self) -> bool:
        """Handle the entries of the directory, then those of its subdirectories."""
        root = self.base(self._root)
        if root is None:
            return False
        with closing(root):
            top = [Subdirectory("", os.fstat(root).st_uid, 0)]
            below = self.visit(root, top, self._root, self._matches, lambda _name: True)
            self.visit(root, below, self._root, self._matches, no_name)
        return True


def no_name(_name: str) -> bool:
    """Match no name."""
    return False


def fairly_chosen(subdirectories: list[Subdirectory], limit: int) -> list[Subdirectory]:
    """Return at most ``limit`` directories: users take turns, each with its most recently changed directories first."""
    newest_first = sorted(subdirectories, key=lambda subdirectory: -subdirectory.modified_ns)
    return in_turns(newest_first, lambda subdirectory: subdirectory.uid, limit)


def opened_below(base: int, path: str) -> int:
    """Open a directory below ``base`` name by name, without following links."""
    descriptor = os.open(".", DIRECTORY_FLAGS, dir_fd=base)
    for name in filter(None, path.split("/")):
        with closing(descriptor):
            descriptor = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
    return descriptor


def entry_at(root: str, path: str, identity: tuple[int, int]) -> tuple[Directory, FoundEntry] | None:
    """Return the file at ``path``, in ``root`` or one level below, if it has this identity; else None. Raises OSError.

    ``path`` is untrusted: no link below ``root`` is followed.
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


def _device_of(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except FileNotFoundError:
        if path == os.path.dirname(path):
            raise
        return _device_of(os.path.dirname(path))


def is_open_to_others(mode: int) -> bool:
    """Return True if other users may replace the files that a directory's owner has in the directory."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
