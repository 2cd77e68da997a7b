"""Runs a reader in its own thread for each directory. Passes evidence to the rank table; gets ranks' labels from it."""

from __future__ import annotations

import asyncio
import os.path
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Annotated

import msgspec

from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import Context, ExporterConfig, NoData, Spec
from agent.sdk.metrics import Metric
from agent.sdk.ranks import RankLabel
from exporters.inspector.families import FAMILIES
from exporters.inspector.reading.last_lines import files_of, offered
from exporters.inspector.reading.reader import DISCOVER_SECONDS
from exporters.inspector.reading.reclaim import Reclaim
from exporters.inspector.reading.record_files import Ownership
from exporters.inspector.reading.silence import RECORDING_VARIABLES, SilenceCause, in_words, silent_ranks
from exporters.inspector.reading.turn import Published, TurnResult
from exporters.inspector.reading.watched_directory import ONCE_WAIT_SECONDS, WAIT_SECONDS, WatchedDirectory, last_lines
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.accumulators import Member
from exporters.inspector.totals.frozen import WriterTotals, speeds
from exporters.inspector.totals.inheritance import Births, Inheritance
from exporters.inspector.totals.shared import MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND, Shared

SPEEDS_SECONDS = 2.0  # How often the rank table gets the ranks' speeds, for the agent's web page
SILENCE_SECONDS = 5.0  # How often ranks without records are examined
MAX_PATHS = 64
INTERVAL_SECONDS = 0.25
CHECKPOINT_BYTES = 32 * 1024 * 1024
"""Limit of the checkpoint for all directories together: the positions of 4,096 followed files alone can take 6 MB."""
SERIES_CAP = 60_000  # A last limit: the series budget allows fewer series
POLL_SLACK_SECONDS = INTERVAL_SECONDS / 2
"""An update also starts a poll that is due within this time: otherwise the poll would wait for the next update."""

AbsolutePath = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)]


class InspectorConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Directories of Inspector's files, searched one level deep, and the interval between reads.

    ``derived_series``: export also series that PromQL can compute from other series, such as message bytes and
    unmatched operations. A rank with three communicators has 8 such series. ``operation_histogram``: durations of
    collectives, in buckets. ``by_algorithm``: operations by NCCL's algorithm and protocol.
    """

    paths: Annotated[list[AbsolutePath], msgspec.Meta(min_length=1, max_length=MAX_PATHS)] = msgspec.field(
        default_factory=lambda: ["/var/lib/rankwatch/inspector"]
    )
    poll_interval_seconds: Annotated[float, msgspec.Meta(ge=INTERVAL_SECONDS, le=10.0)] = INTERVAL_SECONDS
    max_bus_bandwidth_gigabytes_per_second: Annotated[float, msgspec.Meta(ge=1.0, le=100_000.0)] = (
        MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND
    )
    derived_series: bool = False
    operation_histogram: bool = False
    by_algorithm: bool = False
    reclaim: Reclaim = Reclaim()

    def __post_init__(self) -> None:
        """Refuse paths that lead to the same files twice: their records would count twice."""
        paths = [os.path.normpath(path) for path in dict.fromkeys(self.paths)]
        if len(set(paths)) < len(paths) or any(os.path.dirname(path) in {*paths} - {path} for path in paths):
            raise ValueError("paths: a path is in the list twice, or directly below another: remove it")


class Checkpoint(msgspec.Struct):
    """The exporter's section of the checkpoint. If one part is damaged, the other parts stay readable.

    ``sections``: each reader's encoded section, by directory; ``inherited``: an encoded Inheritance.
    """

    sections: dict[str, bytes] = {}
    inherited: msgspec.Raw = msgspec.Raw(msgspec.msgpack.encode(Inheritance()))


class InspectorExporter:
    """Reads Inspector's JSON lines, with a DirectoryReader for each directory."""

    def __init__(self, config: InspectorConfig) -> None:
        self._config = config
        self._directories: list[WatchedDirectory] = []
        self._polled_at = float("-inf")
        self._labels: dict[Member, RankLabel] = {}
        self._renamed_jobs = 0
        self._inherited = Inheritance()
        self._births = Births()
        self._silent: Counter[tuple[str, SilenceCause]] = Counter()
        self._judged_at = float("-inf")
        self._speeds_at = float("-inf")

    async def start(self, ctx: Context) -> None:
        """Make the readers, each with its directory's part of the checkpoint."""
        self._ctx = ctx
        ctx.ranks.keep_variables(RECORDING_VARIABLES)
        checkpoint = (None if ctx.once else ctx.state.restore(Checkpoint, ctx.log)) or Checkpoint()
        try:
            self._inherited = msgspec.msgpack.decode(checkpoint.inherited, type=Inheritance)
        except Exception as error:  # noqa: BLE001  # any error of a damaged part
            ctx.log.warning("inspector checkpoint not readable, starting without it", error=error)
        config = self._config
        bound = config.max_bus_bandwidth_gigabytes_per_second
        shared = partial(Shared, bound, histograms=config.operation_histogram, by_algorithm=config.by_algorithm)
        restored: tuple[WriterTotals, ...] = ()
        for number, path in enumerate(dict.fromkeys(self._config.paths)):
            directory = WatchedDirectory(ctx, path, number, self._config.reclaim)
            self._directories.append(directory)
            restored += await directory.open(checkpoint.sections.get(path), shared)
        self._births = Births(restored, self._inherited.copy())
        ctx.evidence.offer(self._last_operations)

    async def update(self) -> None:
        """Run one turn (a bounded read) of each directory's reader; in a single pass, read all files.

        Raise NoData if no directory exists and no rank has settings that keep its records from the agent.
        """
        now = self._ctx.clock.monotonic()
        if self._ctx.once:
            await self._single_pass()
        elif now - self._polled_at >= self._poll_seconds() - POLL_SLACK_SECONDS:
            self._polled_at = now
            await self._turns(last=False)
        if now - self._judged_at >= SILENCE_SECONDS:
            self._judged_at = now
            self._silent = silent_ranks(self._ctx.ranks.snapshot(), self._config.paths, now)
        if now - self._speeds_at >= SPEEDS_SECONDS:
            self._speeds_at = now
            writers = (writer for reader in self._look_at_births() for writer in reader.writers)
            self._ctx.ranks.observe_speeds(speeds(writers, self._labels))
        self._ctx.note.say(*self._unread() or in_words(self._silent))
        if not self._silent and not any(directory.available for directory in self._directories):
            raise NoData(self._ctx.note.text)

    def snapshot(self) -> InspectorSnapshot:
        """Return the readers' last published totals with the current labels."""
        self._fetch_labels()
        readers = self._look_at_births()
        return InspectorSnapshot(
            readers,
            dict(self._labels),
            self._inherited.copy(),
            unpublished=len(readers) < len(self._directories),
            silent=Counter(cause for _, cause in self._silent.elements()),
            reclaim_errors=tuple(dict(directory.reclaimer.errors) for directory in self._directories),
            derived_series=self._config.derived_series,
            young=frozenset() if self._ctx.once else self._births.young(self._ctx.clock.monotonic()),
            ended=frozenset(v.label for v in self._ctx.ranks.snapshot().ranks if v.process.exited_at is not None),
        )

    def families(self, snapshot: InspectorSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Run a last turn of each idle reader, publish the checkpoint and end the threads."""
        try:
            await self._turns(last=True)
        finally:
            await asyncio.gather(*(directory.close() for directory in self._directories))

    async def _last_operations(self, wanted: Wanted) -> Offered:
        """Return for each rank: the end of its file, its last operation, and how long the other ranks waited for it."""
        files = files_of(self._labels, wanted.job_id)
        ends, unread = await last_lines(self._directories, files)
        late = ((rank, self._ctx.ranks.late_share(RankLabel(wanted.job_id, rank))) for rank in files)
        return offered(ends, {rank: share for rank, share in late if share is not None}, unread, files)

    def _poll_seconds(self) -> float:
        """Return the seconds between two reads or, if there is no file, between two searches for files."""
        least_seconds = DISCOVER_SECONDS if all(directory.is_idle() for directory in self._directories) else 0.0
        return max(self._config.poll_interval_seconds, least_seconds)

    async def _single_pass(self) -> None:
        await self._turns(last=False)
        while any(directory.waiting and directory.running is None for directory in self._directories):
            await self._turns(last=False)
        await self._turns(last=True)

    async def _turns(self, *, last: bool) -> None:
        """Start a turn of every idle reader; wait for these turns, within a limit."""
        ranks = self._ctx.ranks.snapshot()
        ownership = Ownership(ranks.held_files, ranks.hostnames, self._ctx.once)
        idle = [directory for directory in self._directories if directory.running is None]
        started = [directory.begin(ownership, last=last) for directory in idle]
        if started:
            await asyncio.wait(started, timeout=ONCE_WAIT_SECONDS if self._ctx.once else WAIT_SECONDS)
        errors = [(directory.path, error) for directory in self._directories if (error := self._collect(directory))]
        self._fetch_labels()
        self._look_at_births()
        for path, error in errors:
            if all(directory.failed for directory in self._directories):
                raise error
            self._ctx.failures.attempt("a directory of Inspector", partial(_raise, error), path=path)

    def _unread(self) -> tuple[str, str] | None:
        """Return which directories cannot be read, and the remedy if known; None without any."""
        if refused := " ".join(directory.path for directory in self._directories if directory.is_refused):
            remedy = f"chmod 1777 {refused}, 755 its parents"
            return f"the agent (uid {os.geteuid()}) may not read {refused}", remedy
        failed = ", ".join(directory.path for directory in self._directories if directory.failed)
        return (f"cannot read {failed}: see the log", "") if failed else None

    def _collect(self, directory: WatchedDirectory) -> Exception | None:
        """Apply the result of a finished turn. Return the error of the turn or of applying its result."""
        task = directory.running
        if task is not None and task.done():
            directory.running, directory.failed = None, True
            try:
                self._apply(directory, task.result())
            except Exception as error:  # noqa: BLE001  # raised or counted after the turns of all directories
                return error
            directory.failed = False
        return None

    def _apply(self, directory: WatchedDirectory, turn: TurnResult) -> None:
        directory.note(turn)
        for writer in turn.retired:
            self._ctx.admit.release(writer.writer_key)
            self._inherited.take(writer, self._labels)
        for ended_writer in turn.ended:
            self._ctx.admit.give_back(ended_writer.writer_key, ended_writer.series())
            self._inherited.take(ended_writer, self._labels)
        if turn.retired or turn.ended:
            self._drop_ended()
        if turn.section is not None and not self._ctx.once:
            directory.section = turn.section
            self._checkpoint()
        for evidence in turn.evidence:
            self._ctx.ranks.observe_records(*evidence)

    def _writers(self) -> list[WriterTotals]:
        return [writer for directory in self._directories for writer in directory.writers()]

    def _drop_ended(self) -> None:
        """Drop labels that no living writer uses, and ended writers' totals that no living writer continues."""
        writers = self._writers()
        living = {(writer.writer_key, *member) for writer in writers for member in writer.places}
        self._labels = {member: label for member, label in self._labels.items() if member in living}
        self._inherited.prune(writers, self._labels)

    def _fetch_labels(self) -> None:
        """Get the missing labels from the rank table.

        A label never changes, unless the scheduler proves that the job id belongs to another owner.
        """
        ranks = self._ctx.ranks
        if renamed := ranks.snapshot().renamed[self._renamed_jobs :]:
            self._renamed_jobs += len(renamed)
            self._labels = {member: ranks.label(*member) or label for member, label in self._labels.items()}
            self._inherited.forget(renamed)
        for writer in self._writers():
            for comm, comm_rank in writer.places:
                member = (writer.writer_key, comm, comm_rank)
                if member not in self._labels and (label := ranks.label(*member)) is not None:
                    self._labels[member] = label

    def _look_at_births(self) -> tuple[Published, ...]:
        """Record which series exist now, even if nothing scrapes; return the readers' published states."""
        readers = tuple(shown for directory in self._directories if (shown := directory.shown()) is not None)
        writers = [writer for reader in readers for writer in reader.writers]
        now, whole = self._ctx.clock.monotonic(), len(readers) == len(self._directories)
        self._births.look(writers, self._labels, self._inherited, now, whole=whole)
        return readers

    def _checkpoint(self) -> None:
        """Publish the readers' sections, and the totals of ended writers, which no section holds any more."""
        sections = {
            directory.path: directory.section for directory in self._directories if directory.section is not None
        }
        inherited = msgspec.Raw(msgspec.msgpack.encode(msgspec.structs.replace(self._inherited, since_start={})))
        self._ctx.state.publish(msgspec.msgpack.encode(Checkpoint(sections, inherited)))


def _raise(error: Exception) -> None:
    raise error


SPEC = Spec(
    name="inspector",
    config=InspectorConfig,
    build=InspectorExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=2.0,
    families=FAMILIES,
    series_cap=SERIES_CAP,
    checkpoint_bytes=CHECKPOINT_BYTES,
)
