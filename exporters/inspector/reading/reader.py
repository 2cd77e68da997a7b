"""One directory of Inspector files: from the disk to totals. Owned by one thread."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from agent.api import Clock, FollowedFile, Follower, WriterKey
from exporters.inspector.format.context import FileContext
from exporters.inspector.format.plausibility import Plausibility
from exporters.inspector.format.records import Result
from exporters.inspector.format.series import SeriesKey
from exporters.inspector.lateness.matching import Credit
from exporters.inspector.reading.intake import AggregateOf, WriterName, finish_run, take
from exporters.inspector.reading.ownership import Ownership, is_foreign, is_log
from exporters.inspector.reading.published import Published
from exporters.inspector.reading.record_files import RecordFile, RecordFiles
from exporters.inspector.reading.turn import FileKey, Section, Turn, WriterEvidence
from exporters.inspector.totals.aggregate import Admit, Aggregate
from exporters.inspector.totals.frozen import WINDOW_SECONDS, WriterTotals
from exporters.inspector.totals.idleness import LOOK_SECONDS, IdleWatch
from exporters.inspector.totals.shared import Shared

DISCOVER_SECONDS = 1.0
MAX_DISCOVER_SECONDS = 30.0
LOOKS_SHARE = 0.01
"""How much of the time may go into looks: on a large shared directory, and a slow server, they become rarer."""
TURN_SECONDS = 0.15
"""How long one turn reads before it reports; the rest waits for the next."""
READ_BYTES = 128 * 1024
HOLE = b"\n\n"
"""What the follower leaves of a hole that begins at a line's start: lines may be lost there without a trace."""
PUBLISH_SECONDS = 1.0
SAVE_SECONDS = 2.5
"""Half the interval at which the agent writes its checkpoint, so that the two delays do not add up."""
BATCH_IDLE_SECONDS = 2.0
"""When nothing more came for so long the last batch is over; the writer may have stopped in the middle of its pass."""
MAX_LAG_SECONDS = 86_400.0
"""A job prints the times that the lag is told by: beyond this they are no more believed."""
MAX_WRITERS_PER_FILE = 16
MAX_WRITERS = 1024
MAX_BINDINGS_IN_ALL = 65_536
"""Kinds of record remembered after a turn, of all writers together: about 50 MB."""


class DirectoryReader:
    """Reads one configured directory, one bounded turn at a time.

    ``restored`` is the section of an earlier turn; ValueError when it cannot be read. Without it, files that are there
    already are read from their end, unless ``from_beginning``.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        admit: Admit,
        *,
        restored: bytes | None = None,
        from_beginning: bool = False,
        plausibility: Plausibility | None = None,
    ) -> None:
        section = None if restored is None else msgspec.msgpack.decode(restored, type=Section)
        self._clock = clock
        self._admit = admit
        self._results: Counter[Result] = Counter()
        self._hole_bytes = 0
        self._aggregates: dict[WriterKey, Aggregate] = {}
        self._shared = Shared(plausibility)
        self._contexts: dict[FileKey, FileContext] = {}
        self._from_beginning = from_beginning
        generations: dict[tuple[int, int], int] = {}
        if section is not None:
            self._results.update(section.results)
            self._hole_bytes = section.hole_bytes
            self._shared.plausibility.implausible = section.implausible
            self._contexts = dict(section.contexts)
            self._aggregates = {
                saved.writer_key: Aggregate.restore(saved, admit, self._shared) for saved in section.writers
            }
            self._shared.matching.restore(section.waiting, self._credit_of)
            for writer_key in self._aggregates:
                identity = (writer_key.device, writer_key.inode)
                generations[identity] = max(generations.get(identity, 0), writer_key.generation + 1)
        self._follower = Follower(
            root,
            is_log,
            clock.monotonic,
            resume=[] if section is None else section.positions,
            left=[] if section is None else section.left,
            generations=generations,
            start_at_end=section is None and not from_beginning,
        )
        self._files = RecordFiles(self._follower, frozenset(generations))
        self._queue: deque[RecordFile] = deque()
        self._reported: dict[WriterKey, int] = {}
        self._idle: dict[WriterKey, IdleWatch] = {}
        self._discover_at = self._published_at = self._saved_at = self._idle_at = float("-inf")
        self._rolled_at = clock.monotonic()
        self._caught_up = False
        self._section = restored

    def turn(self, ownership: Ownership, retire: Iterable[WriterKey] = (), *, last: bool = False) -> Turn:
        """Read for at most TURN_SECONDS; let go of the writers in ``retire``; ``last`` asks for what is not due yet."""
        now = self._clock.monotonic()
        gone = self._retire(retire)
        if now >= self._discover_at:
            files = self._follower.discover(partial(is_foreign, ownership))
            self._queue.extend(self._files.sync(files, ownership, now))
            looked_at = self._clock.monotonic()
            took = looked_at - now
            self._discover_at = looked_at + min(MAX_DISCOVER_SECONDS, max(DISCOVER_SECONDS, took / LOOKS_SHARE))
        waiting = self._read(now + TURN_SECONDS)
        if sum(aggregate.remembered() for aggregate in self._aggregates.values()) > MAX_BINDINGS_IN_ALL:
            for aggregate in self._aggregates.values():
                aggregate.forget()
        if now - self._rolled_at >= WINDOW_SECONDS:
            self._rolled_at = now
            for aggregate in self._aggregates.values():
                aggregate.roll_windows()
        self._finish_runs(now, at_once=last and self._from_beginning)
        self._shared.matching.settle()
        ended = () if waiting else self._end_idle(now)
        due = last or bool(gone) or bool(ended)
        return Turn(
            self._follower.available,
            waiting,
            tuple(self._evidence()),
            self._publish(now, due=due),
            self._save(now, due=due),
            tuple(WriterTotals.of(aggregate, caught_up=True) for aggregate in gone),
            ended,
        )

    def owned(self) -> dict[tuple[int, int], FollowedFile]:
        """The files that are ours."""
        return {record_file.file.identity: record_file.file for record_file in self._files.followed()}

    def close(self) -> None:
        """Close all files."""
        self._follower.close()

    # What they hold.

    def _read(self, deadline: float) -> bool:
        """Read in turns until nothing is left or the time is up; True when something waits."""
        idle: list[RecordFile] = []
        queue = self._queue
        while queue:
            record_file = queue.popleft()
            if self._files.get(record_file.file.identity) is not record_file:
                continue
            if self._read_some(record_file):
                queue.append(record_file)
            else:
                idle.append(record_file)
            if self._clock.monotonic() >= deadline:
                break
        waiting = bool(queue)
        queue.extend(idle)
        return waiting

    def _read_some(self, record_file: RecordFile) -> bool:
        chunk = self._follower.read(record_file.file, READ_BYTES)
        if record_file.file.generation != record_file.generation:
            record_file.generation = record_file.file.generation
            record_file.writers.clear()
            record_file.known.clear()
        if chunk is None:
            return False
        record_file.read_at = self._clock.monotonic()
        self._hole_bytes += chunk.hole_bytes
        if chunk.overlong:
            self._results[Result.OVERLONG] += chunk.overlong
        context = self._contexts.setdefault(_key(record_file.file), FileContext())
        pieces = [chunk.data]
        if chunk.hole_bytes or chunk.overlong:
            context.end()
            pieces = chunk.data.split(HOLE)
        for number, piece in enumerate(pieces):
            if number:
                context.end()
            take(piece, partial(self._aggregate_of, record_file), self._results, context)
        return True

    def _finish_runs(self, now: float, *, at_once: bool) -> None:
        """Batches whose end is not to come are over: of files that rest, or are gone."""
        open_runs = [key for key, context in self._contexts.items() if context.run is not None]
        live = {(one.device, one.inode, one.generation) for one in self._follower.positions()} if open_runs else set()
        for key in open_runs:
            record_file = self._files.get(key[:2])
            rests = (
                record_file is not None and record_file.file.drained and now - record_file.read_at >= BATCH_IDLE_SECONDS
            )
            if at_once or rests or key not in live:
                finish_run(self._contexts[key], self._known(key))

    def _credit_of(self, writer_key: WriterKey, key: SeriesKey) -> Credit | None:
        aggregate = self._aggregates.get(writer_key)
        return None if aggregate is None else partial(aggregate.credit, key)

    def _known(self, key: FileKey) -> AggregateOf:
        return lambda writer: self._aggregates.get(WriterKey(*key, writer.hostname, writer.pid))

    def _aggregate_of(self, record_file: RecordFile, writer: WriterName) -> Aggregate | None:
        aggregate = record_file.writers.get(writer)
        if aggregate is not None:
            return aggregate
        new = writer not in record_file.known
        file = record_file.file
        writer_key = WriterKey(file.device, file.inode, file.generation, writer.hostname, writer.pid)
        aggregate = self._aggregates.get(writer_key)
        if aggregate is None:
            if len(self._aggregates) >= MAX_WRITERS or (new and len(record_file.known) >= MAX_WRITERS_PER_FILE):
                return None
            aggregate = Aggregate(
                writer_key,
                self._admit,
                from_start=file.from_start and new,
                shared=self._shared,
            )
            self._aggregates[writer_key] = aggregate
        record_file.known.add(writer)
        record_file.writers[writer] = aggregate
        return aggregate

    def _retire(self, writer_keys: Iterable[WriterKey]) -> list[Aggregate]:
        gone = []
        for writer_key in writer_keys:
            aggregate = self._aggregates.pop(writer_key, None)
            self._reported.pop(writer_key, None)
            if aggregate is None:
                continue
            aggregate.leave()
            gone.append(aggregate)
            record_file = self._files.get((writer_key.device, writer_key.inode))
            if record_file is not None and record_file.generation == writer_key.generation:
                record_file.writers.pop(WriterName(writer_key.hostname, writer_key.pid), None)
        return gone

    def _end_idle(self, now: float) -> tuple[WriterTotals, ...]:
        """Let go of communicators that living writers have done with."""
        if now < self._idle_at:
            return ()
        self._idle_at = now + LOOK_SECONDS
        self._idle = {writer_key: self._idle.get(writer_key) or IdleWatch() for writer_key in self._aggregates}
        ended = []
        for writer_key, aggregate in self._aggregates.items():
            if comms := self._idle[writer_key].look(aggregate, now):
                ended.append(WriterTotals.of(aggregate.end(comms), caught_up=True))
        return tuple(ended)

    def _kept_contexts(self) -> list[tuple[FileKey, FileContext]]:
        """The contexts of files that may be read on; the others are let go of."""
        self._contexts = {key: context for key, context in self._contexts.items() if not context.is_empty()}
        if self._contexts:
            positions = (*self._follower.positions(), *self._follower.left())
            live = {(one.device, one.inode, one.generation) for one in positions}
            self._contexts = {key: context for key, context in self._contexts.items() if key in live}
        return list(self._contexts.items())

    # What is told.

    def _evidence(self) -> Iterable[WriterEvidence]:
        now_us = int(self._clock.time() * 1_000_000)
        for writer_key, aggregate in self._aggregates.items():
            aggregate.last_progress_us = min(aggregate.last_progress_us, now_us)  # never in the future
            memberships = aggregate.new_memberships()
            progress_us = aggregate.last_progress_us
            if memberships or self._reported.get(writer_key) != progress_us:
                self._reported[writer_key] = progress_us
                yield WriterEvidence(writer_key, memberships, progress_us / 1_000_000 if progress_us else None)

    def _publish(self, now: float, *, due: bool) -> Published | None:
        caught_up = self._follower.looked and all(record_file.file.caught_up for record_file in self._files.followed())
        just_caught_up = caught_up and not self._caught_up
        if now - self._published_at < PUBLISH_SECONDS and not just_caught_up and not due:
            return None
        self._published_at = now
        self._caught_up = caught_up
        return Published(
            writers=tuple(
                WriterTotals.of(aggregate, caught_up=self._files.is_caught_up(writer_key))
                for writer_key, aggregate in self._aggregates.items()
            ),
            caught_up=caught_up,
            results=dict(self._results),
            files=self._files.states(),
            skipped=dict(self._follower.skipped),
            lag_seconds=max(map(self._lag_seconds, self._queue), default=0.0),
            lag_bytes=sum(self._follower.lag_bytes(record_file.file) for record_file in self._queue),
            hole_bytes=self._hole_bytes,
            implausible=self._shared.plausibility.implausible,
        )

    def _lag_seconds(self, record_file: RecordFile) -> float:
        """How old the newest record read of a file is while whole lines wait in it."""
        newest_us = max((aggregate.last_progress_us for aggregate in record_file.writers.values()), default=0)
        if record_file.file.drained or not newest_us or not self._follower.lag_bytes(record_file.file):
            return 0.0
        return min(MAX_LAG_SECONDS, max(0.0, self._clock.time() - newest_us / 1_000_000))

    def _save(self, now: float, *, due: bool) -> bytes | None:
        if now - self._saved_at < SAVE_SECONDS and not due:
            return None
        self._saved_at = now
        writers = [aggregate.save() for aggregate in self._aggregates.values()]
        section = Section(
            self._follower.positions(),
            writers,
            dict(self._results),
            self._hole_bytes,
            self._follower.left(),
            self._kept_contexts(),
            self._shared.plausibility.implausible,
            self._shared.matching.save(),
        )
        encoded = msgspec.msgpack.encode(section)
        if encoded == self._section and not due:
            return None
        self._section = encoded
        return encoded


def _key(file: FollowedFile) -> FileKey:
    return file.device, file.inode, file.generation
