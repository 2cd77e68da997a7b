"""Lines of the text files of jobs, each with its job. A file is read by the node of its writer.

It is of the job whose control group its writer is in (ranks in a container mostly are another user's than the job is),
or of one of its user's jobs.

``JobTexts`` blocks and belongs to the thread of its exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from agent.export.exporter import Context
from agent.ranks.job_users import JobUsers
from agent.system.file_holders import writers_of
from agent.system.procfs import ProcFS
from agent.tail.file import FollowedFile, Position
from agent.tail.text_files import TextFiles

TURN_BYTES = 1024 * 1024
"""Read at one look: of a backlog too, so that reading it stays below a tenth of a core."""
LOOK_SECONDS = 5.0
"""How often new files are looked for."""
HOLDERS_SECONDS = 15.0
"""How often it is asked who writes the files that are nobody's yet."""
MAX_OURS = 4096
"""Files that a process of this node was seen to write, remembered after it has closed them."""
MAX_POSITIONS = 128
"""Saved: a file beyond these is read anew after a restart of the agent."""

PathPattern = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]
PathPatterns = Annotated[list[PathPattern], msgspec.Meta(max_length=32)]
"""The files of jobs, as a site names them: absolute, ``*`` within one name, ``%j`` for the job id."""
SavedPositions = Annotated[list[Position], msgspec.Meta(max_length=MAX_POSITIONS)]


Claim = Callable[[str, str], bool | None]
"""Whether a file (its path) of a job is this node's to read; None leaves that to who writes it. Asked of files whose
name has the job's id: what nobody here writes may be of another job of its user, on other nodes or of last week."""


class JobLines(NamedTuple):
    """Whole lines of one file, in order. ``seconds``: when they were written at the latest, since the epoch."""

    job_id: str
    path: str
    identity: tuple[int, int]
    generation: int
    seconds: float
    lines: list[str]


class JobTexts:
    """The files of ``patterns``; ``resume``: positions of an earlier life, whose files are ours as before.

    ``claim`` may be set by an exporter whose files say of which node they are.
    """

    def __init__(self, ctx: Context, patterns: Sequence[str], resume: Sequence[Position] = ()) -> None:
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self.claim: Claim = lambda _path, _job_id: None
        self._files = TextFiles(patterns, ctx.clock.monotonic, resume=resume, from_beginning=ctx.once)
        self._ours: dict[tuple[int, int], str] = {(one.device, one.inode): "" for one in resume}
        self._resumed = set(self._ours)
        self._known: list[FollowedFile] = []
        self._look_at = self._ask_at = float("-inf")

    @property
    def available(self) -> bool:
        """Whether there is a file, or a directory that one may appear in."""
        return self._files.available

    def turn(self, users: JobUsers) -> list[JobLines]:
        """Read on in the files of jobs that have ranks here, about TURN_BYTES; of recorded data everything."""
        self._discover(users)
        found = self._read(users)
        while self._ctx.once and self._files.waiting:
            found += self._read(users)
        return found

    def _read(self, users: JobUsers) -> list[JobLines]:
        found = []
        now = self._ctx.clock.time()
        for read in self._files.read(TURN_BYTES, lambda file: self._is_ours(file, users)):
            job_id = self._job(read.file, users)
            written = min(now, read.file.modified_ns / 1e9) if read.file.modified_ns >= 0 else now
            lines = [line.decode("utf-8", "replace") for line in read.lines()]
            found.append(JobLines(job_id, read.file.path, read.file.identity, read.generation, written, lines))
        return found

    def positions(self) -> list[Position]:
        """Where reading stands in what is ours, for the checkpoint; of too many files in those found last."""
        found = (one for one in self._files.positions() if (one.device, one.inode) in self._ours)
        return list(found)[-MAX_POSITIONS:]

    def files(self, users: JobUsers) -> list[tuple[str, FollowedFile]]:
        """The files that are ours, each with its job."""
        return [(self._job(file, users), file) for file in self._known if self._is_ours(file, users)]

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _discover(self, users: JobUsers) -> None:
        now = self._ctx.clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._known = self._files.discover()
        wanted = {file.path: file.share.uid for file in self._known if self._is_wanted(file, users)}
        if wanted and now >= self._ask_at:
            self._ask_at = now + HOLDERS_SECONDS
            self._ours.update(writers_of(self._proc, wanted))
            self._resumed.difference_update(file.identity for file in self._known)
            while len(self._ours) > MAX_OURS:
                del self._ours[next(iter(self._ours))]

    def _is_wanted(self, file: FollowedFile, users: JobUsers) -> bool:
        """Whether it is not known yet who writes a file that may be of a job here."""
        if self._ctx.once or (file.identity in self._ours and file.identity not in self._resumed):
            return False
        named, job_id = self._files.job_id(file), self._job(file, users)
        if named and job_id and self.claim(file.path, job_id) is not None:
            return False
        return bool(job_id) or named is None or named in users.jobs()

    def _is_ours(self, file: FollowedFile, users: JobUsers) -> bool:
        job_id = self._job(file, users)
        is_asked = job_id and not self._ctx.once and self._files.job_id(file)
        claimed = self.claim(file.path, job_id) if is_asked else None
        if claimed:
            self._ours.setdefault(file.identity, "")
        is_ours = self._ctx.once or file.identity in self._ours
        return bool(job_id) and (is_ours if claimed is None else claimed)

    def _job(self, file: FollowedFile, users: JobUsers) -> str:
        named = self._files.job_id(file)
        if self._ctx.once:  # recorded data, of jobs that are nobody's
            return named or "recorded"
        proven = self._ours.get(file.identity, "")
        if proven and proven in users.jobs() and named in (None, proven):  # also where its ranks are another user's
            return proven
        return users.job_of(file.share.uid, named or proven or None)  # that of another job stays that job's
