"""The files of one directory: which of them are ours to read, and who writes them."""

from __future__ import annotations

from collections import Counter

from agent.api import FollowedFile, Follower, Origin
from exporters.inspector.reading.intake import Writer
from exporters.inspector.reading.ownership import (
    FileState,
    Ownership,
    is_local,
    named_hostname,
    state_of,
    written_hostname,
)
from exporters.inspector.totals.aggregate import Aggregate


class Log:
    """One file, and who writes it."""

    __slots__ = ("file", "generation", "hostname", "known", "looked_size", "path", "read_at", "state", "writers")

    def __init__(self, file: FollowedFile, now: float) -> None:
        self.file = file
        self.generation = file.generation
        self.hostname: str | None = None
        self.path = ""
        self.looked_size = 0
        self.read_at = now
        self.state = FileState.UNIDENTIFIED
        self.writers: dict[Writer, Aggregate] = {}
        self.known: set[Writer] = set()


class Logs:
    """The files that are there. ``restored``: (device, inode) of those that were ours before the agent's restart."""

    def __init__(self, follower: Follower, restored: frozenset[tuple[int, int]]) -> None:
        self._restored = restored
        self._follower = follower
        self._logs: dict[tuple[int, int], Log] = {}

    def sync(self, files: list[FollowedFile], ownership: Ownership, now: float) -> list[Log]:
        """Take in the files that are there now, at the monotonic time ``now``; return those that became ours."""
        self._logs = {file.identity: self._logs.get(file.identity) or Log(file, now) for file in files}
        unread = [log for log in self._logs.values() if log.state is not FileState.FOLLOWED]
        for log in unread:
            log.state = self._state(log, ownership)
        return [log for log in unread if log.state is FileState.FOLLOWED]

    def get(self, identity: tuple[int, int]) -> Log | None:
        """The file of that device and inode, if it is there."""
        return self._logs.get(identity)

    def followed(self) -> list[Log]:
        """The files that are ours."""
        return [log for log in self._logs.values() if log.state is FileState.FOLLOWED]

    def states(self) -> Counter[FileState]:
        """How many files are in each state."""
        passed_over = Counter({FileState.FOREIGN: self._follower.passed_over})
        return Counter(log.state for log in self._logs.values()) + passed_over

    def is_caught_up(self, origin: Origin) -> bool:
        """Whether a writer's totals are those of before the agent's restart, or more."""
        log = self._logs.get((origin.device, origin.inode))
        if log is None:
            return self._follower.looked or (origin.device, origin.inode) not in self._restored
        return log.file.caught_up or log.file.generation != origin.generation

    def _state(self, log: Log, ownership: Ownership) -> FileState:
        """Decide whether a file is ours; it is opened at most once for that, unless it changed."""
        file = log.file
        if file.identity in self._restored and not file.caught_up:  # ours before the agent's restart
            return FileState.FOLLOWED
        return state_of(file.identity, self._hostname(log, ownership), ownership)

    def _hostname(self, log: Log, ownership: Ownership) -> str | None:
        """The writer's host name: by the file's name if that is foreign already, else by its first record."""
        file = log.file
        named = named_hostname(file.path)
        if ownership.everyone or (named is not None and not is_local(named, ownership.hostnames)):
            return named
        same = log.path == file.path and log.generation == file.generation
        if same and (log.hostname is not None or file.size_bytes == log.looked_size):
            return log.hostname
        log.looked_size, log.path, log.generation = file.size_bytes, file.path, file.generation
        head = self._follower.head(file)
        front_is_a_hole = head != b"" and not head.strip(b"\0")
        log.hostname = named if front_is_a_hole else written_hostname(head)
        return log.hostname
