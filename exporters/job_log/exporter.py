"""The exporter: passes jobs of the rank table to the reader, and exports the reader's results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import Context, ExporterConfig, NoData, ShownExporter, Spec
from agent.sdk.files import compiled_path_pattern
from agent.sdk.ranks import HOSTNAME, UNKNOWN_RANK, RankLabel
from exporters.job_log.catalogue import ProgressPattern, catalogue, rules_of_progress
from exporters.job_log.families import FAMILIES, render
from exporters.job_log.jobs import ERROR_FILE, LoggedJob, jobs_of
from exporters.job_log.ownership import CYCLE_FILE
from exporters.job_log.passages import LogPassages, log_part
from exporters.job_log.reader import JobLogReader, LogSection, PublishedLogs
from exporters.job_log.tally import RECENT_SECONDS, ShownLog

INTERVAL_SECONDS = 1.0
TURN_SECONDS = 60.0  # Deadline of an update; missed if a file system hangs
MAX_PATHS = 64
MAX_PATTERNS = 32
CHECKPOINT_BYTES = 4 * 1024 * 1024

_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=1024)]


class JobLogConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``paths``: patterns of logs; ``*`` matches within one name, ``%j`` is the job id. Files that ranks write their
    output to, and logs of NVRx's cycles, need no pattern. ``progress``: a site's own progress patterns, tried before
    those of progress.yml. ``lines_in_evidence``: bundles get lines around events, with possible secrets masked.
    """

    paths: Annotated[list[_Path], msgspec.Meta(max_length=MAX_PATHS)] = msgspec.field(default_factory=list)
    progress: Annotated[list[ProgressPattern], msgspec.Meta(max_length=MAX_PATTERNS)] = msgspec.field(
        default_factory=list
    )
    lines_in_evidence: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid pattern."""
        for path in self.paths:
            compiled_path_pattern(path)
        rules_of_progress(self.progress)


class JobLogExporter(ShownExporter[PublishedLogs]):
    """Follows the logs of jobs on this node, and exports their failures and progress."""

    def __init__(self, config: JobLogConfig) -> None:
        super().__init__(PublishedLogs(), render)
        self._config = config
        self._jobs: dict[str, LoggedJob] = {}

    async def start(self, ctx: Context) -> None:
        """Create the reader from the checkpoint, and register this exporter's part of evidence bundles."""
        self._ctx = ctx
        self._thread = ctx.thread("job_log")
        ctx.ranks.keep_variables(frozenset({ERROR_FILE, CYCLE_FILE, HOSTNAME}))
        section = LogSection() if ctx.once else ctx.state.restore(LogSection, ctx.log) or LogSection()
        self._reader = await self._thread.call(
            lambda: JobLogReader(
                ctx,
                self._config.paths,
                catalogue(self._config.progress),
                self._admit,
                section,
                LogPassages() if self._config.lines_in_evidence else None,
            )
        )
        ctx.evidence.offer(self._part)

    async def update(self) -> None:
        """Let the reader search for files and read once. Raise NoData while no job on this node has a log."""
        self._learn_jobs()
        if not (self._jobs or self.shown.available or self._ctx.once):
            raise NoData  # a node without ranks needs no search
        self.shown = await self._thread.call(partial(self._reader.look, dict(self._jobs)))
        for key, name in self.shown.raised:
            self._ctx.ranks.observe_exception(key, name)
        self._ctx.exits.set_causes(causes(self.shown.jobs, self._ctx.clock.time()))
        if not self._ctx.once:
            self._ctx.state.publish(self.shown.section)
        if not self.shown.available:
            raise NoData

    async def _part(self, wanted: Wanted) -> Offered:
        return log_part(self.shown.jobs, self.shown.passages, wanted)

    async def drain(self) -> None:
        """Close the files after the running update, without a wait: the update may hang."""
        self._thread.submit(self._reader.close)
        self._thread.stop()

    def _learn_jobs(self) -> None:
        jobs = jobs_of(self._ctx.ranks.snapshot())
        for job_id in self._jobs.keys() - jobs.keys():
            self._ctx.admit.release(_owner(job_id))
        self._jobs = jobs

    def _admit(self, job_id: str) -> bool:
        """Reserve one more series of a job; return False at the limit. The reader's thread calls this."""
        job = self._jobs.get(job_id)
        ranks, group = (1, (job_id,)) if job is None else (max(1, len(job.ranks)), (min(job.uids, default=0), job_id))
        return self._ctx.admit.admit(_owner(job_id), 1, ranks, group)


def causes(logs: Iterable[ShownLog], now_seconds: float) -> dict[RankLabel, str]:
    """Return each log's root category if it is at most RECENT_SECONDS old, keyed by the blamed rank ("" if unknown)."""
    roots = [(log.job_id, log.root) for log in logs if log.root is not None]
    return {
        RankLabel(job_id, "" if root.rank == UNKNOWN_RANK else root.rank): root.category
        for job_id, root in roots
        if now_seconds - root.seconds <= RECENT_SECONDS
    }


def _owner(job_id: str) -> tuple[str, str]:
    return ("job_log", job_id)


SPEC = Spec(
    name="job_log",
    config=JobLogConfig,
    build=JobLogExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=TURN_SECONDS,
    families=FAMILIES,
    checkpoint_bytes=CHECKPOINT_BYTES,
)
