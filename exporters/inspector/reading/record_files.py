"""The files of one directory: which files this node reads, their writers, and their errors.

On a shared file system many agents see the same files: each agent reads the files that its own node's processes write.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from agent.sdk.exporter import Logger
from agent.sdk.files import FollowedFile, Follower
from agent.sdk.ranks import WriterKey
from exporters.inspector.reading.intake import WriterName
from exporters.inspector.totals.aggregate import Aggregate

SUFFIXES = (".log", ".jsonl")
_NAME = re.compile(r"(?P<hostname>.+)-pid\d+\.(?:log|jsonl)", re.ASCII)
_METADATA_HOSTNAME = re.compile(rb'"metadata":\{[^{}]{0,2048}?"hostname":"([^"\\]{1,255})"')


class FileState(StrEnum):
    """A file's state. A followed file counts as ``writable_by_others``, too, if other users may write or replace it."""

    FOLLOWED = "followed"
    FOREIGN = "foreign"
    UNIDENTIFIED = "unidentified"
    WRITABLE_BY_OTHERS = "writable_by_others"


class Ownership(NamedTuple):
    """What identifies this node's files: files that local ranks hold open, and host names of local UTS namespaces, each
    with the users who use it (none: everyone).

    ``held``: by device and inode, each open file's path as its process sees it. ``everyone``: read the files of every
    host (a single pass over recorded data).
    """

    held: Mapping[tuple[int, int], str] = {}
    hostnames: Mapping[str, frozenset[int | None]] = {}
    everyone: bool = False


def is_log(name: str) -> bool:
    """Return True when a file name has `-pid` and one of SUFFIXES, as Inspector's `<hostname>-pid<pid>.log`."""
    return "-pid" in name and name.endswith(SUFFIXES)


def named_hostname(path: str) -> str | None:
    """Return the host name in a file's name; None without one."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match["hostname"]


def written_hostname(head: bytes) -> str | None:
    """Return the host name in the first record, which can be cut at the end of ``head``; None without one."""
    match = _METADATA_HOSTNAME.search(head)
    return None if match is None else match[1].decode(errors="replace")


def is_local(hostname: str, hostnames: Collection[str]) -> bool:
    """Return True when ``hostname`` is in ``hostnames``; a name without domain equals the name with any domain."""
    if hostname in hostnames:
        return True
    short = hostname.partition(".")[0]
    return any(name.partition(".")[0] == short and ("." not in name or "." not in hostname) for name in hostnames)


def is_foreign(ownership: Ownership, name: str, identity: tuple[int, int]) -> bool:
    """Return True when a file's name shows that another host writes the file, and no local process holds it open."""
    if ownership.everyone or identity in ownership.held:
        return False
    hostname = named_hostname(name)
    return hostname is not None and not is_local(hostname, ownership.hostnames)


RETRY_SECONDS = 1.0  # Pause after the first error; doubles with each consecutive error
MAX_RETRY_SECONDS = 60.0
NEVER = float("-inf")
FIRST_PIECE_BYTES, LEAST_PIECE_BYTES = 16 * 1024, 4096  # Bytes of a file's first read, and of the smallest read
MAX_HELD_PER_TURN = 1024
"""Limit of files that one turn begins to follow because a rank holds them open; other files wait for the next turn."""

FileKey = tuple[int, int, int]  # Device, inode and generation: one generation of a file


@dataclass(slots=True, eq=False)
class RecordFile:
    """One file and its writers.

    ``decided_for``: path and generation for which ``state`` was decided. ``retry_at``: when (monotonic seconds) the
    file is read again after its last error; ``retry_seconds``: the pause after the next error.
    """

    file: FollowedFile
    read_at: float
    generation: int
    decided_for: tuple[str, int]
    hostname: str | None = None
    looked_size: int = 0
    piece_bytes: int = FIRST_PIECE_BYTES
    retry_at: float = NEVER
    retry_seconds: float = RETRY_SECONDS
    state: FileState = FileState.UNIDENTIFIED
    writers: dict[WriterName, Aggregate] = field(default_factory=dict)
    known: set[WriterName] = field(default_factory=set)

    @property
    def key(self) -> FileKey:
        """Return the key of the file's current generation."""
        return self.file.device, self.file.inode, self.file.generation

    def note_piece(self, *, is_dear: bool, most_bytes: int) -> None:
        """Set the size of the next piece: a quarter of the last size after a slow piece, else twice the last size."""
        factor = 0.25 if is_dear else 2
        self.piece_bytes = int(min(most_bytes, max(LEAST_PIECE_BYTES, self.piece_bytes * factor)))


class FileFailures:
    """Catches errors, so that an error affects only its own file. ``counts``: errors by name."""

    def __init__(self, counts: Counter[str], log: Logger) -> None:
        self._counts = counts
        self._log = log

    @contextlib.contextmanager
    def of(self, record_file: RecordFile | None, now: float) -> Iterator[None]:
        """Run a block for a file (None: a file that is gone); note an error and do not raise it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._counts[type(error).__name__] += 1
            if record_file is None or record_file.retry_at == NEVER:
                self._log_error(error, record_file)
            if record_file is not None:
                record_file.retry_at = now + record_file.retry_seconds
                record_file.retry_seconds = min(MAX_RETRY_SECONDS, 2 * record_file.retry_seconds)
        else:
            if record_file is not None:
                record_file.retry_seconds = RETRY_SECONDS

    def _log_error(self, error: Exception, record_file: RecordFile | None) -> None:
        """Log the error's name and place, not its text, which may quote the file."""
        path, offset = ("", 0) if record_file is None else (record_file.file.path, record_file.file.offset)
        lines = traceback.extract_tb(error.__traceback__)
        at = f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""
        name = type(error).__name__
        self._log.warning("inspector file failed, it is tried again later", path=path, offset=offset, error=name, at=at)


class RecordFiles:
    """The existing files. ``restored``: (device, inode) of the files that this node read before the restart."""

    def __init__(self, follower: Follower, failures: FileFailures, restored: frozenset[tuple[int, int]]) -> None:
        self._restored = restored
        self._follower = follower
        self._failures = failures
        self.files: dict[tuple[int, int], RecordFile] = {}
        self._searched_by_path: set[tuple[int, int]] = set()  # Held files already searched for by their path

    def sync(self, files: list[FollowedFile], ownership: Ownership, now: float) -> None:
        """Take the existing files at monotonic time ``now``, and decide which are this node's."""
        self.files = {file.identity: self._record_file(file, now) for file in files}
        for record_file in self.files.values():
            if record_file.state is not FileState.FOLLOWED and now >= record_file.retry_at:
                with self._failures.of(record_file, now):
                    record_file.state = self._state(record_file, ownership)
                    record_file.decided_for = record_file.file.path, record_file.file.generation

    def follow_held_files(self, ownership: Ownership, now: float) -> bool:
        """Follow new files that ranks hold open, by their paths; return False if there are none.

        In a crowded directory the next search may start up to 30 s later, or stop before these files.
        """
        self._searched_by_path &= ownership.held.keys()
        new = [identity for identity in ownership.held if identity not in self._searched_by_path][:MAX_HELD_PER_TURN]
        for identity in new:
            if is_log(ownership.held[identity].rpartition("/")[2]):
                self._follower.follow_held(ownership.held[identity], identity)
        self._searched_by_path.update(new)
        if new:
            self.sync(self._follower.files(), ownership, now)
        return bool(new)

    def followed(self) -> list[RecordFile]:
        """Return the files that this node reads."""
        return [record_file for record_file in self.files.values() if record_file.state is FileState.FOLLOWED]

    def states(self) -> Counter[FileState]:
        """Return how many files are in each state."""
        writable = sum(record_file.file.shared for record_file in self.followed())
        additional = Counter({FileState.FOREIGN: self._follower.passed_over, FileState.WRITABLE_BY_OTHERS: writable})
        return Counter(record_file.state for record_file in self.files.values()) + additional

    def is_caught_up(self, writer_key: WriterKey) -> bool:
        """Return True when a writer's totals have reached the values that they had before the agent's restart."""
        record_file = self.files.get((writer_key.device, writer_key.inode))
        if record_file is None:
            return self._follower.looked or (writer_key.device, writer_key.inode) not in self._restored
        return record_file.file.caught_up or record_file.file.generation != writer_key.generation

    def _record_file(self, file: FollowedFile, now: float) -> RecordFile:
        """Return a file's RecordFile, a new one if the follower's object is new or another file got the inode."""
        record_file = self.files.get(file.identity)
        if record_file is not None and record_file.file is file:
            path, generation = record_file.decided_for
            if path == file.path or generation == file.generation:  # a truncation, or a rename
                return record_file
        return RecordFile(file, now, file.generation, (file.path, file.generation))

    def _state(self, record_file: RecordFile, ownership: Ownership) -> FileState:
        """Decide whether this node reads a file; open it at most once for that, unless it changed."""
        file = record_file.file
        if file.identity in self._restored and not file.caught_up:  # this node read it before the agent's restart
            return FileState.FOLLOWED
        if ownership.everyone or file.identity in ownership.held:
            return FileState.FOLLOWED
        if (hostname := self._hostname(record_file, ownership)) is None:
            return FileState.UNIDENTIFIED
        names = [name for name, uids in ownership.hostnames.items() if not uids or file.share.uid in uids]
        return FileState.FOLLOWED if is_local(hostname, names) else FileState.FOREIGN

    def _hostname(self, record_file: RecordFile, ownership: Ownership) -> str | None:
        """Return the writer's host name: from the file's name if it names another node, else from the first record."""
        file = record_file.file
        hostname_in_name = named_hostname(file.path)
        if hostname_in_name is not None and not is_local(hostname_in_name, ownership.hostnames):
            return hostname_in_name
        is_unchanged = record_file.decided_for == (file.path, file.generation)
        if is_unchanged and (record_file.hostname is not None or file.size_bytes == record_file.looked_size):
            return record_file.hostname
        record_file.looked_size = file.size_bytes
        head = self._follower.head(file)
        front_is_a_hole = head != b"" and not head.strip(b"\0")
        record_file.hostname = hostname_in_name if front_is_a_hole else written_hostname(head)
        return record_file.hostname
