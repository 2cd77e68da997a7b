"""Read lines of growing files of other programs: identity, truncation, holes, limits. The lines can have any format.

A follower runs in one thread, and may block the thread. A file is identified by (device, inode) and its first bytes.
The offset is always at the start of a line: a partial last line is read again, and is not part of a saved position.
"""

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from agent.tail.file import MAX_LINE_BYTES, Chunk, FollowedFile, Position
from agent.tail.followed_files import MAX_FORGOTTEN, FollowedFiles, LostPositions
from agent.tail.hang_guard import device_source
from agent.tail.listing import Directory, FoundEntry, Walk, entry_at
from agent.tail.reader import LineReader, error_name
from agent.tail.shares import Share, share_of

IDLE_SECONDS = 60.0

_NO_ENTRY = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR})
"""Errors after which no files are expected at the path; after any other error (a hung mount) files may still exist."""


class Follower:
    """Follows the files that ``listing`` finds. No OSError leaves this class.

    ``start_at_end``: files that the first search finds and that are not in ``resume`` are read from their last newline
    on; later files are read from their first byte. If a directory below the roots cannot be read at first, or a root is
    mounted later, its first successful search counts as the first search. ``generations``: the first unused generation
    for each identity, so that a file with a reused inode is not taken for the former file. ``skipped``: number of
    refusals by reason; each search counts a refused file again.

    ``lost_positions``: the saved result of the method ``lost_positions``. At the limits of ``listing`` each user, and
    each directory of a user, has a fair share of the followed files. Within a share the most recently written files are
    followed; a future time (by ``wall_clock``) counts as now.

    ``returns_end_lines``: a carriage return ends a line too. ``backlog_bytes``: if more bytes of a newly found file are
    unread, reading begins this far before its end, at the start of a line.

    ``keeps_open(path)``: returns True if an idle file stays open until its path no longer leads to the file (the search
    may never find a renamed file). Then the file is read to its end, and closed at the next search.

    ``available``: a directory of ``listing`` existed at the last search. ``looked``: at least one search was complete.
    ``passed_over``: number of files that the last search ignored because ``foreign`` returned True.
    """

    def __init__(
        self,
        listing: Walk,
        clock: Callable[[], float],
        *,
        resume: Sequence[Position] = (),
        lost_positions: Sequence[Position] = (),
        generations: Mapping[tuple[int, int], int] | None = None,
        start_at_end: bool = False,
        wall_clock: Callable[[], float] = time.time,
        returns_end_lines: bool = False,
        backlog_bytes: int | None = None,
        keeps_open: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        self._keeps_open = keeps_open
        self._returns_end_lines = returns_end_lines
        self._backlog_bytes = backlog_bytes
        self._clock = clock
        self._resume = {(position.device, position.inode): position for position in resume}
        self._start_at_end = self._ends_at_mounts = start_at_end
        self._listed: set[tuple[int, int]] = set()
        self._unread: set[tuple[int, int]] = set()  # found but not followed by the first search: read from the end
        self._failed: set[str] = set()  # directories that failed in this search
        self._unsearched: set[str] = set()  # directories that failed in every search
        self._wall_clock = wall_clock
        self._now_ns = 0
        self._files = FollowedFiles(listing.limits.files)
        self._is_complete = True
        self._foreign: Callable[[str, tuple[int, int]], bool] = lambda *_: False
        self.skipped: Counter[str] = Counter()
        self._lost = LostPositions(lost_positions, generations or {}, self.skipped)
        self._listing = listing
        self._reader = LineReader(listing.roots, clock, listing.limits.open_files, self.skipped, listing.hangs)
        self.available = self.is_refused = False
        self.looked = False
        self.passed_over = 0

    def files(self) -> list[FollowedFile]:
        """Return all followed files."""
        return self._files.values()

    def positions(self) -> list[Position]:
        """Return the positions in all read files, and the positions of ``resume`` whose files were not found yet."""
        return [*self._resume.values(), *(file.position() for file in self._files.values() if file.fingerprint)]

    def lost_positions(self) -> list[Position]:
        """Return the read positions in lost files."""
        return self._lost.values()

    def lag_bytes(self, file: FollowedFile) -> int:
        """Return the number of unread bytes of ``file``."""
        return 0 if file.start_at_end else max(0, file.size_bytes - file.offset)

    def discover(self, foreign: Callable[[str, tuple[int, int]], bool] = lambda *_: False) -> list[FollowedFile]:
        """Search the directories, follow new files, and drop files that are gone. Return the followed files.

        ``foreign`` takes the name and identity of a new file, and returns True to ignore this file without a system
        call.
        """
        self._listed = set()
        self._is_complete = True
        self._failed = set()
        self._foreign = foreign
        self._now_ns = int(self._wall_clock() * 1e9)
        self._files.begin_look()
        self.passed_over = 0
        self._start_at_end |= self._ends_at_mounts and self._listing.has_new_mount()
        known = self.positions() if self._listing.hangs.left_out() else ()
        self._listing.devices = {position.path: position.device for position in known}
        self.available = self._listing.look(self._now_ns, self._handle_entry, self._skip, self.skipped)
        self.is_refused = self._listing.is_refused
        self._release()
        if self._is_complete:
            self._unsearched = self._failed if self._start_at_end else self._unsearched & self._failed
            self.looked = True
            self._start_at_end = False  # any later file is new
        if self._is_complete and self.available:
            for identity, position in list(self._resume.items()):
                if position.share.directory not in self._failed:  # deleted while the agent was down
                    self._lost.retire(self._resume.pop(identity))
            self._unread &= self._listed
        return self.files()

    def follow_held(self, path: str, identity: tuple[int, int]) -> None:
        """Follow the file at ``path`` at once, without waiting for the next search.

        ``path``: the file's path in a process that holds the file open. The call ignores a path outside the directories
        of ``listing``, and a file with another identity.
        """
        if identity in self._files or self._start_at_end:
            return
        try:
            entries = [entry_at(root, path, identity) for root in self._listing.roots]
        except OSError as error:
            self.skipped[error_name(error)] += 1
            return
        for directory, entry in filter(None, entries):
            self._now_ns = int(self._wall_clock() * 1e9)
            self._follow_entry(directory, entry)  # a process on this node has it open, so it is not foreign

    def read(self, file: FollowedFile, budget_bytes: int = MAX_LINE_BYTES) -> Chunk | None:
        """Return the next whole lines, at most ``budget_bytes`` (or one long line); None if there are none.

        A chunk's ``data`` may be empty when only holes or overlong lines were skipped.
        """
        return self._reader.read(file, budget_bytes)

    def head(self, file: FollowedFile) -> bytes:
        """Return up to 4 KiB from the front of the file; empty if it cannot be read."""
        return self._reader.head(file)

    def close(self) -> None:
        """Close all descriptors. Call no method afterwards."""
        for file in self._files.values():
            self._reader.close(file)

    # The directories.

    def _handle_entry(self, directory: Directory, entry: FoundEntry) -> None:
        identity = (directory.device, entry.inode)
        if identity in self._files or identity in self._resume or not self._foreign(entry.name, identity):
            self._follow_entry(directory, entry)
        else:
            self.passed_over += 1
            self._pass_over(identity)

    def _pass_over(self, identity: tuple[int, int]) -> None:
        self._listed.add(identity)
        if self._start_at_end and len(self._unread) < MAX_FORGOTTEN:
            self._unread.add(identity)

    def _follow_entry(self, directory: Directory, entry: FoundEntry) -> None:
        try:
            status = entry.stat()
        except OSError as error:
            self.skipped[error_name(error)] += 1
            if error.errno not in _NO_ENTRY:
                self._pass_over((directory.device, entry.inode))
            return
        if not stat.S_ISREG(status.st_mode):
            self.skipped["not_a_regular_file"] += 1
            return
        identity = (status.st_dev, status.st_ino)
        self._listed.add(identity)
        path = f"{directory.prefix}/{entry.name}"
        file = self._files.get(identity) or self._new_file(identity, path, status, directory)
        if file is not None:
            file.path = path
            file.unlinked = False
            file.shared = directory.shared or bool(status.st_mode & stat.S_IWOTH)
            file.note_written(status.st_mtime_ns, self._now_ns)
            file.note(status.st_size, status.st_mtime_ns, self._clock())

    def _new_file(
        self, identity: tuple[int, int], path: str, status: os.stat_result, directory: Directory
    ) -> FollowedFile | None:
        share = share_of(status, directory.prefix)
        written_ns = min(status.st_mtime_ns, self._now_ns)
        if self._files.is_full() and not self._displace(share, written_ns):
            self.skipped["file_limit"] += 1
            self._pass_over(identity)
            return None
        file = FollowedFile(*identity, path, status.st_size, self._clock(), share, size_at_start=status.st_size)
        file.returns_end_lines = self._returns_end_lines
        file.modified_ns = status.st_mtime_ns
        file.note_written(status.st_mtime_ns, self._now_ns)
        file.generation = self._lost.generations.pop(identity, 0)
        resumed = self._resume.pop(identity, None)
        position = resumed or self._lost.pop(identity)
        if position is not None:
            file.generation = position.generation
            file.offset = position.offset
            file.fingerprint = position.fingerprint
            file.tail = position.tail
            file.from_start = False
            file.caught_up = resumed is None
        elif self._start_at_end or identity in self._unread or directory.prefix in self._unsearched:
            file.start_at_end = True
            file.from_start = False
        if self._backlog_bytes is not None and status.st_size - file.offset > self._backlog_bytes:
            file.start_at_end = True
            file.size_at_start = status.st_size - self._backlog_bytes
            file.from_start = False
        self._unread.discard(identity)
        self._files.add(file)
        return file

    def _displace(self, share: Share, written_ns: int) -> bool:
        """Drop a file for a new file of ``share``; return False if the new file is refused."""
        file = self._files.displaced_by(share, written_ns)
        if file is None:
            return False
        self._reader.close(file)
        self.skipped["file_limit"] += 1
        if file.start_at_end:
            self._unread.add(file.identity)
        else:
            self._lost.retire(file.position())
        return True

    def _release(self) -> None:
        """Drop files that are gone, and close descriptors of idle files."""
        now = self._clock()
        for file in self._files.values():
            was_unlinked = file.unlinked
            if file.identity not in self._listed and not self._is_in_place(file):
                file.unlinked = True  # or renamed out of the directories: read on while open
                if self._keeps_open(file.path) and not was_unlinked:
                    file.drained = False  # read to its end
            is_idle = was_unlinked if self._keeps_open(file.path) else now - file.grown_at >= IDLE_SECONDS
            if file.drained and is_idle:
                self._reader.close(file)
            if file.unlinked and file.descriptor is None:
                self.skipped["gone_unread"] += self.lag_bytes(file) > 0
                self._lost.retire(file.position())
                self._files.pop(file.identity)

    def _is_in_place(self, file: FollowedFile) -> bool:
        """Return True if the path still leads to the file, or if this is unknown (hung or stale mount)."""
        try:
            with self._listing.hangs.using(file.path, device_source(file.device)):
                status = os.stat(file.path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._skip(error, os.path.dirname(file.path))
            return True
        return (status.st_dev, status.st_ino) == file.identity

    def _skip(self, error: OSError, directory: str) -> None:
        self.skipped[error_name(error)] += 1
        if error.errno in _NO_ENTRY:
            return
        if directory and len(self._failed) < MAX_FORGOTTEN:
            self._failed.add(directory)
        else:
            self._is_complete = False
