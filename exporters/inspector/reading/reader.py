"""Reads one directory of Inspector files into totals. Owned by one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path

import msgspec

from agent.sdk.exporter import Clock, Logger
from agent.sdk.files import FollowedFile, Follower, Listing
from agent.sdk.ranks import WriterKey
from exporters.inspector.format.passes import FileContext, RingSizes
from exporters.inspector.format.records import MAX_TOTAL, Result
from exporters.inspector.reading.intake import finish_run, take
from exporters.inspector.reading.read_queue import ReadQueue
from exporters.inspector.reading.record_files import (
    FileFailures,
    Ownership,
    RecordFile,
    RecordFiles,
    is_foreign,
    is_log,
)
from exporters.inspector.reading.turn import Published, Section, TurnResult
from exporters.inspector.reading.writers import Writers
from exporters.inspector.totals.bindings import Admit
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.shared import Shared

DISCOVER_SECONDS = 1.0
MAX_DISCOVER_SECONDS = 30.0
CATCH_UP_SECONDS = 30.0
"""After a restart, the agent withholds the counts of lines over all files until it has read each file up to the size at
which it found the file again. This is the time limit, in case a file is unreadable."""
LOOKS_SHARE = 0.01
"""Limit of the share of time for searches: on a large shared directory or a slow server, searches become rarer."""
TURN_SECONDS = 0.15  # One turn reads at most this long; the rest waits for the next turn
READ_BYTES = 128 * 1024
PIECE_SECONDS = 0.02
"""If a piece of a file takes longer, the next pieces are smaller: malformed lines cost many times as much as others."""
HOLE = b"\n\n"
"""The follower's mark for a hole that begins at a line's start: lines may be lost there without a trace."""
PUBLISH_SECONDS = 1.0
SAVE_SECONDS = 2.5  # Half the interval at which the agent writes its checkpoint, so that the two delays do not add up
BATCH_IDLE_SECONDS = 2.0
"""After this long without a line the last pass counts as over; its writer may have stopped during the pass."""


class DirectoryReader:
    """Reads one configured directory, one bounded turn at a time.

    ``restored``: an earlier turn's section; ValueError if it is unreadable. Without it, existing files are read from
    their end, unless ``from_beginning``.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        admit: Admit,
        *,
        restored: bytes | None = None,
        from_beginning: bool = False,
        shared: Shared | None = None,
        log: Logger = Logger("inspector"),  # noqa: B008  # holds nothing
    ) -> None:
        section = Section([], [], {}) if restored is None else msgspec.msgpack.decode(restored, type=Section)
        self._clock = clock
        self._log = log
        self._results = Counter(section.results)
        self._shared = shared or Shared()
        self._shared.implausible = section.implausible
        self._from_beginning = from_beginning
        known = sorted((writer.writer_key for writer in section.writers), key=attrgetter("generation"))
        generations = {(writer_key.device, writer_key.inode): writer_key.generation + 1 for writer_key in known}
        self._follower = Follower(
            Listing(root, is_log),
            clock.monotonic,
            resume=section.positions,
            lost_positions=section.left,
            generations=generations,
            start_at_end=restored is None and not from_beginning,
            wall_clock=clock.time,
        )
        now, skipped = clock.monotonic(), self._follower.skipped
        shares = {(position.device, position.inode): position.share for position in (*section.positions, *section.left)}
        self._writers = Writers(admit, self._shared, section.writers, now, shares, skipped)
        self._shared.matching.restore(section.waiting, self._writers.credit_of)
        self._failures = FileFailures(skipped, log)
        self._files = RecordFiles(self._follower, self._failures, frozenset(generations))
        self._queue = ReadQueue(self._files, self._read_some, self._failures, clock)
        self._contexts = dict(section.contexts)
        self._discover_at = self._published_at = self._saved_at = float("-inf")
        self._caught_up = False
        self._made_at = clock.monotonic()
        self._section = restored

    def turn(
        self,
        ownership: Ownership,
        retire: Iterable[WriterKey] = (),
        rings: Mapping[WriterKey, RingSizes] | None = None,
        *,
        last: bool = False,
    ) -> TurnResult:
        """Read for at most TURN_SECONDS; ``retire``: writers to end; ``last``: publish and save even if not due.

        ``rings``: known ring sizes of writers. If a turn raises, the next turn returns the results of both.
        """
        now = self._clock.monotonic()
        self._writers.learn_ring_sizes(rings or {})
        self._writers.retire(retire)
        if now >= self._discover_at:
            self._discover(ownership, now)
        elif self._files.follow_held_files(ownership, now):
            self._queue.add(self._files.followed())
        waiting = self._queue.read(now, now + TURN_SECONDS)
        self._writers.tidy(now, int(self._clock.time() * 1_000_000))
        self._finish_runs(now, at_once=last and self._from_beginning)
        self._shared.matching.settle()
        self._writers.end_idle(now)
        due = last or bool(self._writers.retired or self._writers.ended)
        published = self._publish(now, due=due)
        section = self._save(now, due=due)
        evidence = self._writers.evidence()
        retired, self._writers.retired = tuple(self._writers.retired), []
        ended, self._writers.ended = tuple(self._writers.ended), []
        available, is_refused = self._follower.available, self._follower.is_refused
        return TurnResult(available, is_refused, waiting, evidence, published, section, retired, ended)

    def owned(self) -> dict[tuple[int, int], FollowedFile]:
        """Return the files that this node reads, by device and inode."""
        return {record_file.file.identity: record_file.file for record_file in self._files.followed()}

    def totals(self) -> tuple[WriterTotals, ...]:
        """Return the totals of each writer's records."""
        return tuple(
            WriterTotals.of(aggregate, caught_up=self._files.is_caught_up(aggregate.writer_key))
            for aggregate in self._writers
        )

    def close(self) -> None:
        """Close all files."""
        self._follower.close()

    def _discover(self, ownership: Ownership, now: float) -> None:
        files = self._follower.discover(partial(is_foreign, ownership))
        self._files.sync(files, ownership, now)
        self._queue.add(self._files.followed())
        ended = self._clock.monotonic()
        self._discover_at = ended + min(MAX_DISCOVER_SECONDS, max(DISCOVER_SECONDS, (ended - now) / LOOKS_SHARE))

    def _read_some(self, record_file: RecordFile) -> bool:
        chunk = self._follower.read(record_file.file, min(READ_BYTES, record_file.piece_bytes))
        if record_file.file.generation != record_file.generation:
            record_file.generation = record_file.file.generation
            record_file.writers.clear()
            record_file.known.clear()
        if chunk is None:
            return False
        record_file.read_at = began = self._clock.monotonic()  # the time to read is not part of the piece's cost
        if chunk.hole_bytes:
            self._log.warning("NUL bytes in an Inspector file, lines may be lost", path=record_file.file.path)
        if chunk.overlong:
            self._results[Result.OVERLONG] += chunk.overlong
        context = self._contexts.setdefault(record_file.key, FileContext())
        pieces = [chunk.data]
        if chunk.hole_bytes or chunk.overlong:
            context.end()
            pieces = chunk.data.split(HOLE)
        self._take(pieces, record_file, context)
        record_file.note_piece(is_dear=self._clock.monotonic() - began > PIECE_SECONDS, most_bytes=READ_BYTES)
        return True

    def _take(self, pieces: list[bytes], record_file: RecordFile, context: FileContext) -> None:
        """Add a chunk's lines to totals; ``pieces``: the chunk, cut at holes.

        Lines are read once: after an error, lines that were not added count as failed.
        """
        counted = sum(self._results.values())
        try:
            for number, piece in enumerate(pieces):
                if number:
                    context.end()
                ring_lines = self._writers.smallest_ring(record_file)
                take(piece, partial(self._writers.of, record_file), self._results, context, ring_lines)
        except Exception:
            context.end()
            lines = sum(1 for piece in pieces for line in piece.split(b"\n") if line.strip())
            self._results[Result.FAILED] += lines - (sum(self._results.values()) - counted)
            raise

    def _finish_runs(self, now: float, *, at_once: bool) -> None:
        """End the open runs of files that are idle or gone: no line will end them."""
        for key in [key for key, context in self._contexts.items() if context.run is not None]:
            record_file = self._files.files.get(key[:2])
            is_gone = self._follower.looked and (record_file is None or record_file.key != key)
            rests = record_file and record_file.file.drained and now - record_file.read_at >= BATCH_IDLE_SECONDS
            if at_once or rests or is_gone:
                with self._failures.of(record_file, now):
                    finish_run(self._contexts[key], self._writers.known(key))

    def _publish(self, now: float, *, due: bool) -> Published | None:
        caught_up = self._follower.looked and (
            now - self._made_at > CATCH_UP_SECONDS
            or all(record_file.file.caught_up for record_file in self._files.followed())
        )
        due |= caught_up and not self._caught_up
        if now - self._published_at < PUBLISH_SECONDS and not due:
            return None
        published = Published(
            writers=self.totals(),
            caught_up=caught_up,
            results=dict(self._results),
            files=self._files.states(),
            skipped=dict(self._follower.skipped) | self._shared.refused(),
            lag_bytes=sum(self._follower.lag_bytes(record_file.file) for record_file in self._queue),
            implausible=self._shared.implausible,
        )
        self._published_at = now
        self._caught_up = caught_up
        return published

    def _save(self, now: float, *, due: bool) -> bytes | None:
        """Return the encoded section if it is due and changed, else None: then the last section stays valid."""
        if now - self._saved_at < SAVE_SECONDS and not due:
            return None
        self._saved_at = now
        try:
            encoded = msgspec.msgpack.encode(self._current_section())
        except Exception as error:  # noqa: BLE001  # whatever it is: the turn has further results
            self._follower.skipped["not_saved"] += 1
            self._log.error("inspector state not saved", error=type(error).__name__)
            return None
        if encoded == self._section and not due:
            return None
        self._section = encoded
        return encoded

    def _current_section(self) -> Section:
        positions = (*self._follower.positions(), *self._follower.lost_positions()) if self._contexts else ()
        live = {position.key for position in positions}
        self._contexts = {
            key: context for key, context in self._contexts.items() if key in live and (context.header or context.run)
        }
        return Section(
            self._follower.positions(),
            [aggregate.save() for aggregate in self._writers],
            {result: min(MAX_TOTAL, count) for result, count in self._results.items()},
            self._follower.lost_positions(),
            list(self._contexts.items()),
            min(MAX_TOTAL, self._shared.implausible),
            self._shared.matching.save(),
        )
