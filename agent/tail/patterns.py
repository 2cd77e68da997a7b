"""Find files by patterns (``*``: any part of one name, ``%j``: the job id) and by path."""

import errno
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from agent.tail.hang_guard import HangGuard, device_source
from agent.tail.listing import Directory, Fits, FollowLimits, FoundEntry, Subdirectory, Walk, no_name
from agent.tail.reader import closing

MAX_PATTERN_PARTS = 32
_JOB_ID = r"(?P<job_id>[0-9]{1,20})"
_PIECES = {"*": "[^/]*", "%j": _JOB_ID}


class Pattern(NamedTuple):
    """A pattern. ``base``: the path before the first variable part; ``directories``: directory names below it."""

    base: str
    directories: tuple[re.Pattern[str], ...]
    name: re.Pattern[str]
    path: re.Pattern[str]

    def job_id(self, path: str) -> str | None:
        """Return the job id in a path; None if the pattern contains no ``%j`` or does not match."""
        match = self.path.fullmatch(path)
        return match["job_id"] if match is not None and "job_id" in self.path.groupindex else None


def compiled_path_pattern(text: str) -> Pattern:
    """Parse a pattern; raises ValueError if it is invalid."""
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


class PatternListing(Walk):
    """Searches for the files that match ``patterns``, and for the files in ``named``; follows no link below a base.

    The limits apply to each level of each pattern, with fair shares for users: ``limits.directories`` directories, and
    ``limits.entries`` entries of these directories together.
    """

    def __init__(self, patterns: Sequence[Pattern], limits: FollowLimits, hangs: HangGuard | None = None) -> None:
        super().__init__(limits, hangs)
        self._patterns = patterns
        self.named: Sequence[str] = ()
        self.roots = frozenset(pattern.base for pattern in patterns)

    def look_through(self) -> bool:
        """Search once; return False if no base exists and ``named`` is empty."""
        has_base = [self._search(pattern) for pattern in self._patterns]
        for path in self.named:
            self._take_named(path)
        return any(has_base) or bool(self.named)

    def _search(self, pattern: Pattern) -> bool:
        base = self.base(pattern.base)
        if base is None:
            return False
        with closing(base):
            chosen = [Subdirectory("", os.fstat(base).st_uid, 0)]
            prefix = "" if pattern.base == "/" else pattern.base
            for expression in pattern.directories:
                chosen = self.visit(base, chosen, prefix, no_name, _fits(expression))
            self.visit(base, chosen, prefix, _fits(pattern.name), no_name)
        return True

    def _take_named(self, path: str) -> None:
        """Pass on one file by its path; a missing file is not an error."""
        directory, name = os.path.split(path)
        try:
            with self.hangs.using(path, device_source(self.devices.get(path, 0))):
                status = os.stat(path, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENOENT:
                self.skip(error, "")
            return
        self._take(Directory(directory, status.st_dev, shared=False), FoundEntry(name, status.st_ino, lambda: status))


def _fits(expression: re.Pattern[str]) -> Fits:
    return lambda name: expression.fullmatch(name) is not None


def _expression(part: str) -> str:
    return "".join(_PIECES.get(piece, re.escape(piece)) for piece in re.split(r"(\*|%j)", part))
