"""Read lines of jobs' text files and map each file to its job.

The agent on the writer's node reads a file. A file belongs to the job whose control group contains the writer, even if
the writer runs as another user, as in containers. Without such a group the file belongs to a job of the file's owner.

``JobTexts`` blocks and belongs to the thread of its exporter.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, NamedTuple

import msgspec

from agent.export.exporter import Context
from agent.ranks.snapshot import RankSnapshot
from agent.system.outputs import writers_of
from agent.system.procfs import ProcFS
from agent.tail.file import FollowedFile, Position
from agent.tail.shares import in_turns
from agent.tail.text_files import TextFiles

TURN_BYTES = 1024 * 1024
"""Bytes read per turn: at this limit a backlog takes less than a tenth of a core."""
LOOK_SECONDS = 5.0
"""Interval between searches for new files."""
HOLDERS_SECONDS = 15.0
"""Interval between searches for a file's writer, while the writer is unknown or belongs to an ended job."""
MAX_POSITIONS = 256
"""Limit of saved positions, with equal shares of all users. A restarted agent reads files without a position again."""

PathPattern = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]
PathPatterns = Annotated[list[PathPattern], msgspec.Meta(max_length=32)]
"""Configured paths of job files: absolute; ``*`` matches within one name; ``%j`` is the job id."""
SavedPositions = Annotated[list[Position], msgspec.Meta(max_length=MAX_POSITIONS)]


Claim = Callable[[str, str], bool | None]
"""Takes a path and a job id, and returns whether this node reads the file; None: the node of the writer reads the file.

Called only for files with the job id in their names. Without a claim, a file that has no writer on this node is not
read: the file can belong to another job of the same user, on other nodes or from an earlier week.
"""


class JobLines(NamedTuple):
    """Whole lines of one file, in order. ``seconds``: the latest possible time of writing, since the epoch."""

    job_id: str
    path: str
    generation: int
    seconds: float
    lines: list[str]


class JobTexts:
    """Files that match ``patterns``. ``resume``: saved positions of files that this node continues to read.

    An exporter can set ``claim`` if its files name their node.
    """

    def __init__(self, ctx: Context, patterns: Sequence[str], resume: Sequence[Position] = ()) -> None:
        self._ctx = ctx
        self._proc = ProcFS(ctx.roots.proc)
        self.claim: Claim = lambda _path, _job_id: None
        self._files = TextFiles(patterns, ctx.clock.monotonic, resume=resume, from_beginning=ctx.once, hangs=ctx.hangs)
        self._writer_jobs: dict[tuple[int, int], str] = {(position.device, position.inode): "" for position in resume}
        self._resumed = set(self._writer_jobs)
        self._known: list[FollowedFile] = []
        self._next_search = self._next_writer_search = float("-inf")

    @property
    def available(self) -> bool:
        """Return whether a file exists, or a directory in which a file can appear."""
        return self._files.available

    def turn(self, ranks: RankSnapshot) -> list[JobLines]:
        """Return about TURN_BYTES of new lines of jobs with ranks on this node; for recorded data return all lines."""
        self._discover(ranks)
        lines = self._read(ranks)
        while self._ctx.once and self._files.waiting:
            lines += self._read(ranks)
        return lines

    def _read(self, ranks: RankSnapshot) -> list[JobLines]:
        results = []
        now = self._ctx.clock.time()
        for read in self._files.read(TURN_BYTES, lambda file: self._is_read_here(file, ranks)):
            job_id = self._job(read.file, ranks)
            written = min(now, read.file.modified_ns / 1e9) if read.file.modified_ns >= 0 else now
            lines = [line.decode("utf-8", "replace") for line in read.lines()]
            results.append(JobLines(job_id, read.file.path, read.generation, written, lines))
        return results

    def positions(self) -> list[Position]:
        """Return the newest MAX_POSITIONS positions in files of this node, with equal shares for all users."""
        positions = [
            position for position in self._files.positions() if (position.device, position.inode) in self._writer_jobs
        ]
        return in_turns(reversed(positions), lambda position: position.uid, MAX_POSITIONS)

    def files(self, ranks: RankSnapshot) -> list[tuple[str, FollowedFile]]:
        """Return (job id, file) of each file that this node reads."""
        return [(self._job(file, ranks), file) for file in self._known if self._is_read_here(file, ranks)]

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _discover(self, ranks: RankSnapshot) -> None:
        now = self._ctx.clock.monotonic()
        if now >= self._next_search:
            self._next_search = now + LOOK_SECONDS
            self._known = self._files.discover()
            followed = self._resumed.union(file.identity for file in self._known)  # a later file can get a free inode
            self._writer_jobs = {file: job_id for file, job_id in self._writer_jobs.items() if file in followed}
        if now < self._next_writer_search or self._ctx.once:
            return
        live = {view.label.job_id for view in ranks.ranks if view.process.exited_at is None}
        unclear = {file.path: file.share.uid for file in self._known if self._is_writer_unclear(file, ranks, live)}
        if unclear:
            self._next_writer_search = now + HOLDERS_SECONDS
            self._writer_jobs.update(writers_of(self._proc, unclear, self._ctx.hangs))
            self._resumed.difference_update(file.identity for file in self._known)

    def _is_writer_unclear(self, file: FollowedFile, ranks: RankSnapshot, live: Collection[str]) -> bool:
        """Return True if a job on this node can write the file, and the writer is not known or was of an ended job."""
        if file.identity in self._writer_jobs and file.identity not in self._resumed:
            has_grown = file.grown_at > self._next_writer_search - HOLDERS_SECONDS
            return has_grown and self._writer_jobs[file.identity] not in {"", *live}
        named, job_id = self._files.job_id(file), self._job(file, ranks)
        if named and job_id and self.claim(file.path, job_id) is not None:
            return False
        return bool(job_id) or named is None or named in ranks.job_ids

    def _is_read_here(self, file: FollowedFile, ranks: RankSnapshot) -> bool:
        job_id = self._job(file, ranks)
        may_claim = job_id and not self._ctx.once and self._files.job_id(file)
        claimed = self.claim(file.path, job_id) if may_claim else None
        if claimed:
            self._writer_jobs.setdefault(file.identity, "")
        has_writer = self._ctx.once or file.identity in self._writer_jobs
        return bool(job_id) and (has_writer if claimed is None else claimed)

    def _job(self, file: FollowedFile, ranks: RankSnapshot) -> str:
        named = self._files.job_id(file)
        if self._ctx.once:  # recorded data: the jobs have no ranks on this node
            return named or "recorded"
        proven = self._writer_jobs.get(file.identity, "")
        if proven and proven in ranks.job_ids and named in (None, proven):  # even if another user runs the job's ranks
            return proven
        return ranks.job_of(file.share.uid, named or proven or None)  # the proven job, or no job
