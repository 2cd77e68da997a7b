"""A directory with trusted files: only root may write to it. Blocking; used from one thread."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

MAX_FILES = 4096
MAX_ENTRIES = 8192
"""Names that are looked at in one look."""
MAX_FILE_BYTES = 16 * 1024

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

T = TypeVar("T")
_Version = tuple[int, int, int, int]


class NotBelieved(Exception):  # noqa: N818  # an answer, not an error
    """Why a file or a directory is passed over; its text is the reason, of REASONS."""


REASONS = ("directory", "owner", "kind", "size", "content", "count")
"""directory: others may write to it. owner: it is another user's, or others may write to it. kind: no regular file.
count: beyond MAX_FILES or MAX_ENTRIES."""


class TrustedDirectory(Generic[T]):
    """Files of ``path`` whose names ``is_wanted``, each read by ``parse`` (ValueError: no record) when it changes.

    ``owners``: the users whose files are believed. ``refused``: what was passed over at the last look, by reason.
    """

    def __init__(
        self, path: Path, owners: Iterable[int], is_wanted: Callable[[str], bool], parse: Callable[[str, bytes], T]
    ) -> None:
        self._path = path
        self._owners = frozenset(owners)
        self._is_wanted = is_wanted
        self._parse = parse
        self._known: dict[str, tuple[_Version, T | NotBelieved]] = {}
        self.refused: Counter[str] = Counter()

    def look(self) -> Mapping[str, T] | None:
        """What each file says, by name; None where there is no such directory."""
        self.refused.clear()
        try:
            directory = os.open(self._path, _DIRECTORY_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            self._known.clear()
            return None
        try:
            return self._look(directory)
        finally:
            os.close(directory)

    def _look(self, directory: int) -> Mapping[str, T]:
        if not self._is_theirs(os.fstat(directory)):
            self.refused["directory"] += 1
            self._known.clear()
            return {}
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MAX_ENTRIES + 1)]
        wanted = sorted(name for name in names[:MAX_ENTRIES] if self._is_wanted(name))
        self.refused["count"] += max(len(wanted) - MAX_FILES, 0) + (len(names) > MAX_ENTRIES)
        before, self._known = self._known, {}
        found = {}
        for name in wanted[:MAX_FILES]:
            try:
                found[name] = self._file(directory, name, before)
            except NotBelieved as why:
                self.refused[str(why)] += 1
            except FileNotFoundError:
                continue  # it has gone since the names were read
        return found

    def _file(self, directory: int, name: str, before: Mapping[str, tuple[_Version, T | NotBelieved]]) -> T:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        known = before.get(name)
        if known is None or known[0] != version:
            known = (version, self._read(directory, name))
        self._known[name] = known
        if isinstance(known[1], NotBelieved):
            raise known[1]
        return known[1]

    def _read(self, directory: int, name: str) -> T | NotBelieved:
        try:
            file = os.open(name, _FILE_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError:
            return NotBelieved("kind")  # a symbolic link, a socket, one that may not be read
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return NotBelieved("kind")
            if not self._is_theirs(status):
                return NotBelieved("owner")
            content = os.read(file, MAX_FILE_BYTES + 1)
        except OSError:
            return NotBelieved("content")
        finally:
            os.close(file)
        if len(content) > MAX_FILE_BYTES:
            return NotBelieved("size")
        try:
            return self._parse(name, content)
        except (ValueError, RecursionError):
            return NotBelieved("content")

    def _is_theirs(self, told: os.stat_result) -> bool:
        """Return True if one of the owners has it and only the owner, root's group and ours may write to it."""
        by_group = told.st_mode & stat.S_IWGRP and told.st_gid not in (0, os.getegid())
        return told.st_uid in self._owners and not by_group and not told.st_mode & stat.S_IWOTH
