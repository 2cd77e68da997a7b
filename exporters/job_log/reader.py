"""Reads the logs of jobs on this node, in its own thread and in bounded turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from agent.sdk.exporter import Context, Outputs
from agent.sdk.files import FORGET_SECONDS, FollowedFile, Position, TextFiles, TextLines, in_turns
from agent.sdk.ranks import UNKNOWN_RANK, ProcessKey
from agent.sdk.system import ProcFS
from exporters.job_log.catalogue import Catalogue
from exporters.job_log.collectives import Collectives
from exporters.job_log.error_files import ErrorFiles
from exporters.job_log.jobs import MAX_RANKS, LoggedJob, rank_of
from exporters.job_log.matcher import events
from exporters.job_log.ownership import (
    BatchProcess,
    ClaimedLog,
    CycleLogs,
    Identity,
    batch_processes,
    by_any_id,
    claimed,
    job_outputs,
    may_be_of,
    shared_devices,
)
from exporters.job_log.passages import LogPassages, Passage
from exporters.job_log.tally import JobTally, SavedLog, ShownLog

DISCOVER_SECONDS = 2.0
MAX_DISCOVER_SECONDS = 60.0
LOOKS_SHARE = 0.02  # Limit of the time share of file searches. Searches of a large shared directory become rarer.
NEW_RANKS_SECONDS = 10.0  # New ranks cause a search this early: after a crash no process holds their logs open
HOLDERS_SECONDS = 30.0  # Interval between searches of all processes for open files on shared file systems
READ_CPU_SECONDS = 0.1  # CPU time limit per turn. A backlog takes at most a tenth of a core.
READ_BYTES = 64 * 1024 * 1024
MAX_CLAIMED = 1024  # Limit of read logs: the last written log of each owner, then each owner's second, and so on
MAX_PATH_BYTES = 512  # A log with a longer path is not read: MAX_CLAIMED logs must fit into the checkpoint
MAX_COLLECTIVE_ENTRIES = 65_536
"""Limit of watchdog entries over all jobs, about 20 MB. At the limit the job with the most entries loses them."""


class LogSection(msgspec.Struct):
    """The checkpoint: read positions, the tally of each job's log, and the outputs of processes by device and inode."""

    positions: list[Position] = []
    jobs: dict[str, SavedLog] = {}
    outputs: Annotated[list[tuple[int, int, ClaimedLog]], msgspec.Meta(max_length=MAX_CLAIMED)] = []


class PublishedLogs(NamedTuple):
    """The result of ``look``. ``available``: a job on this node has a log. ``raised``: exceptions that ended ranks."""

    jobs: tuple[ShownLog, ...] = ()
    available: bool = False
    section: bytes = b""
    passages: Mapping[str, tuple[Passage, ...]] = {}
    raised: tuple[tuple[ProcessKey, str], ...] = ()


class JobLogReader:
    """Reads files that match ``patterns`` and files that ranks write to, each for the job that provably owns it.

    ``admit``: reserves one more series of a job. ``passages``: keeps lines around events.
    """

    def __init__(
        self,
        ctx: Context,
        patterns: Sequence[str],
        catalogue: Catalogue,
        admit: Callable[[str], bool],
        section: LogSection,
        passages: LogPassages | None = None,
    ) -> None:
        self._ctx = ctx
        self._clock = clock = ctx.clock
        self._is_recorded = ctx.once  # recorded data: read each file with a job id in its name
        self._catalogue = catalogue
        self._proc = proc = ctx.roots.proc
        self._procfs = ProcFS(proc)
        self._outputs = Outputs(proc, ctx.hangs)
        self._cycle_logs = CycleLogs(proc)
        self._error_files = ErrorFiles(proc, catalogue)
        self._admit = admit
        self._passages = passages
        self._texts = TextFiles(
            patterns,
            clock.monotonic,
            resume=section.positions,
            from_beginning=ctx.once,
            wall_clock=clock.time,
            # A path through /proc into a container disappears with its process.
            keeps_open=lambda path: path.startswith(f"{proc}/"),
            hangs=ctx.hangs,
        )
        self._saved = dict(section.jobs)
        self._restored = frozenset((position.device, position.inode) for position in section.positions)
        self._made_at = clock.monotonic()
        self._tallies: dict[str, JobTally] = {}
        # Exited ranks hold no output open.
        self._claims = {(device, inode): claim for device, inode, claim in section.outputs}
        self._paths = {identity: claim.path for identity, claim in self._claims.items()}
        self._open_here: frozenset[str] = frozenset()
        self._holders_at = self._discover_at = self._looked_at = float("-inf")
        self._searched_pids: frozenset[int] = frozenset()
        self._batch: list[BatchProcess] = []

    def look(self, jobs: Mapping[str, LoggedJob]) -> PublishedLogs:
        """Search for files if due, read for a bounded time, and return the results."""
        for job_id in self._tallies.keys() - jobs.keys() if not self._is_recorded else ():
            del self._tallies[job_id]
        for job_id, job in jobs.items():
            if job_id in self._saved:
                self._tally(job_id)
            if job_id in self._tallies and job.started_seconds:
                self._tallies[job_id].begin(job.started_seconds)
        if (jobs or self._is_recorded) and self._is_due(jobs):
            self._discover(jobs)
        deadline = time.thread_time() + READ_CPU_SECONDS
        for text in self._texts.read(READ_BYTES, lambda file: file.identity in self._claims):
            claim = self._claims[text.file.identity]
            of = LoggedJob(claim.job_id, world_size=MAX_RANKS) if self._is_recorded else jobs.get(claim.job_id)
            if of is not None:
                of = of._replace(tasks_are_ranks=of.tasks_are_ranks or claim.has_ranks)
                self._ctx.failures.attempt("a piece of a log", partial(self._take, text, claim, of))
            if time.thread_time() > deadline and not self._is_recorded:
                break
        self._bound_collectives()
        new = sorted(self._error_files.new(jobs, self._clock.monotonic()), key=lambda error_file: error_file[2].seconds)
        now = self._clock.time()
        for job, view, raised in new:  # the earliest is the cause; a user may set a file's time to the future
            self._tally(job.job_id).note_raised(raised._replace(seconds=min(raised.seconds, now)), rank_of(view))
        return self._published()._replace(raised=tuple((view.process.key, raised.name) for _, view, raised in new))

    def close(self) -> None:
        """Close all files."""
        self._texts.close()

    def _take(self, text: TextLines, claim: ClaimedLog, job: LoggedJob) -> None:
        tally = self._tally(claim.job_id)
        now = self._clock.time()
        written_ns = text.file.modified_ns  # the time at this read, not at the last search
        seconds = min(now, written_ns / 1e9) if written_ns >= 0 else now
        line_events = events(text.data, self._catalogue)
        ranked = [(event, tally.take(event, job, claim.rank, seconds)) for event in line_events]
        if self._passages is not None:
            self._passages.take(text.file.identity, text.data, ranked, claim.job_id, seconds)

    def _bound_collectives(self) -> None:
        """Evict the entries of the job with the most entries: users control the number of lines and ranks."""
        entries = {job_id: tally.collectives.entries() for job_id, tally in self._tallies.items()}
        while sum(entries.values()) > MAX_COLLECTIVE_ENTRIES:
            most = max(entries, key=lambda job_id: entries[job_id])
            self._tallies[most].collectives = Collectives()
            del entries[most]

    def _tally(self, job_id: str) -> JobTally:
        tally = self._tallies.get(job_id)
        if tally is None:
            saved = self._saved.pop(job_id, None)
            tally = self._tallies[job_id] = JobTally(job_id, self._ctx.hostname, self._admit, saved)
        return tally

    # Which files this node reads.

    def _is_due(self, jobs: Mapping[str, LoggedJob]) -> bool:
        now = self._clock.monotonic()
        soon = now >= self._looked_at + NEW_RANKS_SECONDS and not pids_of(jobs) <= self._searched_pids
        return soon or now >= self._discover_at

    def _discover(self, jobs: Mapping[str, LoggedJob]) -> None:
        began = self._clock.monotonic()
        pids = pids_of(jobs)
        if not pids <= self._searched_pids and not self._is_recorded:  # batch scripts and srun start before ranks
            self._batch = batch_processes(self._procfs)
        self._searched_pids = pids
        outputs = {} if self._is_recorded else job_outputs(self._outputs, self._procfs, jobs.values(), self._batch)
        proven = {} if self._is_recorded else self._cycle_logs.of(jobs.values()) | outputs
        # Keep all known files, even those of exited ranks: their last lines may explain the exit.
        exited_paths = [path for identity, path in self._paths.items() if self._claims[identity].job_id in jobs]
        files = self._texts.discover([*(claim.path for claim in proven.values()), *exited_paths])
        by_id = by_any_id(jobs.values())
        short = (file for file in files if len(os.fsencode(file.path)) <= MAX_PATH_BYTES)
        claims = {file.identity: claim for file in short if (claim := self._claim(file, proven, jobs, by_id))}
        remote = self._read_elsewhere(files, claims, outputs, jobs)
        read_here = [file for file in files if file.identity in claims and file.identity not in remote]
        read_here.sort(key=lambda file: -file.written_ns)
        read_here = in_turns(read_here, lambda file: _owner(claims[file.identity].job_id, jobs), MAX_CLAIMED)
        former = list(self._claims.items()) if self._ctx.hangs.left_out() else []
        absent = [(file, claim) for file, claim in former if file not in claims and claim.job_id in jobs]
        unseen = dict(absent[:MAX_CLAIMED])  # this search does not reach files that are left out
        self._claims = unseen | {file.identity: claims[file.identity] for file in read_here}
        self._paths = {file: self._paths[file] for file in unseen} | {
            file.identity: file.path for file in files if file.identity in self._claims
        }
        if self._passages is not None:
            self._passages.keep(self._claims.keys(), jobs.keys())
        self._looked_at = now = self._clock.monotonic()
        self._discover_at = now + min(MAX_DISCOVER_SECONDS, max(DISCOVER_SECONDS, (now - began) / LOOKS_SHARE))

    def _claim(
        self,
        file: FollowedFile,
        proven: Mapping[Identity, ClaimedLog],
        jobs: Mapping[str, LoggedJob],
        by_id: Mapping[str, list[LoggedJob]],
    ) -> ClaimedLog | None:
        job_id = self._texts.job_id(file)
        if self._is_recorded:
            return None if job_id is None else ClaimedLog(job_id)
        before, output = self._claims.get(file.identity), proven.get(file.identity)
        job = None if before is None else jobs.get(before.job_id)
        # Exited ranks hold no files open. After them the next job can write to the file.
        is_next = job is not None and not job.started_seconds and output is not None and output.job_id != job.job_id
        if before is None or job is None or is_next or not may_be_of(file.share.uid, job):
            return claimed(file.path, file.share.uid, job_id, output, jobs, by_id)
        return before if output is None or output.rank == before.rank else before._replace(rank=UNKNOWN_RANK)

    def _read_elsewhere(
        self,
        files: Sequence[FollowedFile],
        claims: Mapping[Identity, ClaimedLog],
        outputs: Mapping[Identity, ClaimedLog],
        jobs: Mapping[str, LoggedJob],
    ) -> set[Identity]:
        """Return the files on shared file systems that this node leaves to other nodes. This node reads a file if a
        process on it holds the file open, or if the job's rank 0 is on it.
        """
        if self._is_recorded:
            return set()
        shared = shared_devices(self._mountinfo())
        doubtful = [
            file
            for file in files
            if file.identity in claims
            and file.identity not in outputs
            and file.identity not in self._claims
            and file.device in shared
        ]
        if doubtful and self._clock.monotonic() >= self._holders_at:
            self._holders_at = self._clock.monotonic() + HOLDERS_SECONDS
            self._open_here = self._outputs.open_among(file.path for file in doubtful)
        return {
            file.identity
            for file in doubtful
            if file.path not in self._open_here and not jobs[claims[file.identity].job_id].has_rank_zero()
        }

    def _mountinfo(self) -> bytes:
        try:
            return (self._proc / "self/mountinfo").read_bytes()
        except OSError:
            return b""

    # Results.

    def _published(self) -> PublishedLogs:
        now = self._clock.time()
        if self._clock.monotonic() - self._made_at > FORGET_SECONDS and not self._ctx.hangs.left_out():
            self._saved.clear()
            self._restored = frozenset()
        return PublishedLogs(
            jobs=tuple(tally.shown(now) for tally in self._tallies.values()),
            available=bool(self._claims or self._tallies),
            section=self.section(),
            passages={} if self._passages is None else self._passages.of(),
        )

    def section(self) -> bytes:
        """Return the current checkpoint, encoded."""
        read = self._claims.keys() | self._restored
        positions = [position for position in self._texts.positions() if (position.device, position.inode) in read]
        jobs = self._saved | {job_id: tally.saved for job_id, tally in self._tallies.items()}
        outputs = [
            (*identity, claim._replace(path=os.fsencode(claim.path).decode(errors="replace")))
            for identity, claim in list(self._claims.items())[-MAX_CLAIMED:]
            if claim.path
        ]
        return msgspec.msgpack.encode(LogSection(positions, jobs, outputs))


def _owner(job_id: str, jobs: Mapping[str, LoggedJob]) -> str:
    """Return the key of a job's owner; the job's id if it has no ranks on this node."""
    ranks = jobs[job_id].ranks if job_id in jobs else ()
    return ranks[0].process.facts.owner.key if ranks else job_id


def pids_of(jobs: Mapping[str, LoggedJob]) -> frozenset[int]:
    """Return the pids of these jobs' running ranks."""
    return frozenset(v.process.key.pid for job in jobs.values() for v in job.ranks if v.process.exited_at is None)
