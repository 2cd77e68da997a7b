"""Files by patterns of their paths: ``*`` stands for any part of one name, ``%j`` for the job id. And files by name."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from agent.tail.listing import (
    MAX_ROUNDS,
    Directory,
    FollowLimits,
    NamedEntry,
    Skip,
    Subdirectory,
    Take,
    fairly_chosen,
    is_open_to_others,
    opened_below,
)
from agent.tail.reader import DIRECTORY_FLAGS, closing

MAX_PATTERN_PARTS = 32
_JOB_ID = r"(?P<job_id>[0-9]{1,20})"
_PIECES = {"*": "[^/]*", "%j": _JOB_ID}


class Pattern(NamedTuple):
    """One pattern. ``base``: the directory before the first part that varies; ``directories``: the names below it."""

    base: str
    directories: tuple[re.Pattern[str], ...]
    name: re.Pattern[str]
    path: re.Pattern[str]

    def job_id(self, path: str) -> str | None:
        """Return the job id in a path, None where the pattern has none or does not fit."""
        match = self.path.fullmatch(path)
        return match["job_id"] if match is not None and "job_id" in self.path.groupindex else None


def compiled_path_pattern(text: str) -> Pattern:
    """Read a pattern; ValueError when it cannot be one."""
    parts = text.split("/")[1:]
    if not text.startswith("/") or not all(parts) or {".", "..", "**"} & set(parts) or "\0" in text:
        raise ValueError(f"not an absolute path without '..' and '**': {text!r}")
    if len(parts) > MAX_PATTERN_PARTS or text.count("%j") > 1:
        raise ValueError(f"more than {MAX_PATTERN_PARTS} parts, or %j twice: {text!r}")
    fixed = 0
    while fixed < len(parts) - 1 and "*" not in parts[fixed] and "%j" not in parts[fixed]:
        fixed += 1
    directories = tuple(re.compile(_expression(part)) for part in parts[fixed:-1])
    path = re.compile("".join("/" + _expression(part) for part in parts))
    return Pattern("/" + "/".join(parts[:fixed]), directories, re.compile(_expression(parts[-1])), path)


class PatternListing:
    """Hands over the files that fit ``patterns``, and those of ``named``; no link is followed below a base.

    The bounds are those of each pattern: ``limits.entries`` of the directories of one level together,
    ``limits.directories`` of them, by fair shares of their users.
    """

    def __init__(
        self, patterns: Sequence[Pattern], limits: FollowLimits, skipped: Counter[str], take: Take, skip: Skip
    ) -> None:
        self._patterns = patterns
        self._limits = limits
        self._skipped = skipped
        self._take = take
        self._skip = skip
        self.named: Iterable[str] = ()
        self.roots = frozenset(pattern.base for pattern in patterns)

    def look(self, now_ns: int) -> bool:
        """Look once; False when no base is there and no file was named."""
        there = [self._look_for(pattern, now_ns) for pattern in self._patterns]
        for path in self.named:
            self._look_at(path)
            there.append(True)
        return any(there)

    def _look_for(self, pattern: Pattern, now_ns: int) -> bool:
        try:
            base = os.open(pattern.base, DIRECTORY_FLAGS)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._skip(error)
            return False
        with closing(base):
            chosen = [Subdirectory("", os.fstat(base).st_uid, 0)]
            for expression in pattern.directories:
                found = self._below(base, chosen, expression, now_ns)
                chosen = fairly_chosen(found, self._limits.directories)
                self._skipped["directory_limit"] += len(found) - len(chosen)
            prefix = "" if pattern.base == "/" else pattern.base
            self._each(base, chosen, _Files(prefix, pattern.name, self._take))
        return True

    def _below(
        self, base: int, chosen: list[Subdirectory], expression: re.Pattern[str], now_ns: int
    ) -> list[Subdirectory]:
        directories = _Directories(expression, now_ns, self._skip)
        self._each(base, chosen, directories)
        return directories.found

    def _each(self, base: int, chosen: list[Subdirectory], visit: _Files | _Directories) -> None:
        """Look at as many entries of each as its share is: what one leaves is shared out among the others."""
        taken = dict.fromkeys(chosen, 0)
        room = self._limits.entries
        for _ in range(MAX_ROUNDS):
            if room < len(taken) or not taken:
                break
            of_user = Counter(one.uid for one in taken)
            for one in list(taken):
                share = max(1, self._limits.entries // len(of_user) // of_user[one.uid])
                seen, whole = self._scan(base, one, taken[one], min(room, share), visit)
                room -= seen
                taken[one] += seen
                if whole:
                    del taken[one]
        self._skipped["entry_limit"] += len(taken)

    def _scan(
        self, base: int, one: Subdirectory, start: int, count: int, visit: _Files | _Directories
    ) -> tuple[int, bool]:
        """Look at ``count`` entries from the ``start``-th on; return how many there were, and whether no more are."""
        seen = 0
        try:
            directory = opened_below(base, one.name)
            with closing(directory):
                visit.enter(one.name, os.fstat(directory))
                with os.scandir(directory) as entries:
                    for entry in islice(entries, start, start + count + 1):
                        if seen == count:
                            return seen, False
                        seen += 1
                        visit.see(entry)
        except OSError as error:
            self._skip(error)
        return seen, True

    def _look_at(self, path: str) -> None:
        """Look at one file by its name; that it is not there is no error."""
        directory, name = os.path.split(path)
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._skip(error)
            return
        self._take(Directory(directory, status.st_dev, shared=False), NamedEntry(name, status))


class _Files:
    """Takes the files whose name fits."""

    def __init__(self, prefix: str, name: re.Pattern[str], take: Take) -> None:
        self._prefix = prefix
        self._name = name
        self._take = take

    def enter(self, name: str, status: os.stat_result) -> None:
        path = f"{self._prefix}/{name}" if name else self._prefix
        self._directory = Directory(path, status.st_dev, is_open_to_others(status.st_mode))

    def see(self, entry: os.DirEntry[str]) -> None:
        if self._name.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
            self._take(self._directory, entry)


class _Directories:
    """Gathers the directories whose name fits."""

    def __init__(self, name: re.Pattern[str], now_ns: int, skip: Skip) -> None:
        self._name = name
        self._now_ns = now_ns
        self._skip = skip
        self.found: list[Subdirectory] = []

    def enter(self, name: str, _status: os.stat_result) -> None:
        self._prefix = f"{name}/" if name else ""

    def see(self, entry: os.DirEntry[str]) -> None:
        if not self._name.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            self._skip(error)
            return
        written_ns = min(self._now_ns, status.st_mtime_ns)
        self.found.append(Subdirectory(self._prefix + entry.name, status.st_uid, written_ns))


def _expression(part: str) -> str:
    return "".join(_PIECES.get(piece, re.escape(piece)) for piece in re.split(r"(\*|%j)", part))
