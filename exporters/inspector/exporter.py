"""The exporter: a reader per directory in a thread of its own, evidence to the rank table, labels from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from agent.api import Context, ExporterConfig, Metric, NoData, OwnThread, ProcFS, RankLabel, Spec, WriterKey
from exporters.inspector.families import FAMILIES
from exporters.inspector.format.plausibility import MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND, Plausibility
from exporters.inspector.reading.ownership import Ownership
from exporters.inspector.reading.published import Published
from exporters.inspector.reading.reader import DirectoryReader
from exporters.inspector.reading.reclaim import Reclaim, Reclaimer
from exporters.inspector.reading.silence import GRACE_SECONDS, RECORDING_VARIABLES, SilenceCause, SilenceWatch
from exporters.inspector.reading.turn import Turn
from exporters.inspector.rendering import InspectorSnapshot, render
from exporters.inspector.totals.aggregate import P2P_SERIES
from exporters.inspector.totals.frozen import WriterTotals
from exporters.inspector.totals.inheritance import Inheritance, Place

WAIT_SECONDS = 1.0
"""How long an update waits for a turn; a reader that takes longer is left to itself until it comes back."""
STALE_SECONDS = 10.0
"""A reader not back for so long shows no series: they would stand still."""
SILENCE_SECONDS = 5.0
"""How often the ranks without records are looked over."""
MAX_PATHS = 64
INTERVAL_SECONDS = 0.25
SERIES_CAP = 60_000
"""Above what the admission of accumulators lets through: only the backstop."""
POLL_SLACK_SECONDS = INTERVAL_SECONDS / 2
"""An update this much before the poll is due takes it: the next one would be a whole interval late."""

AbsolutePath = Annotated[str, msgspec.Meta(pattern=r"^/[^\0]*$", max_length=4096)]


class InspectorConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where Inspector's files are: directories, searched one level deep, and how often they are read."""

    paths: Annotated[list[AbsolutePath], msgspec.Meta(min_length=1, max_length=MAX_PATHS)] = msgspec.field(
        default_factory=lambda: ["/var/lib/rankwatch/inspector"]
    )
    poll_interval_seconds: Annotated[float, msgspec.Meta(ge=INTERVAL_SECONDS, le=10.0)] = INTERVAL_SECONDS
    max_bus_bandwidth_gigabytes_per_second: Annotated[float, msgspec.Meta(ge=1.0, le=100_000.0)] = (
        MAX_BUS_BANDWIDTH_GIGABYTES_PER_SECOND
    )
    reclaim: Reclaim = Reclaim()


class Checkpoint(msgspec.Struct):
    """The exporter's section of the checkpoint; ``sections`` by directory, each its reader's encoding."""

    sections: dict[str, bytes] = {}
    inherited: Inheritance = msgspec.field(default_factory=Inheritance)


class _Slot:
    """One configured directory: its reader, its thread, and the turn under way."""

    def __init__(self, path: str, reader: DirectoryReader, reclaimer: Reclaimer, thread: OwnThread) -> None:
        self.path = path
        self.reader = reader
        self.reclaimer = reclaimer
        self.thread = thread
        self.running: asyncio.Task[Turn] | None = None
        self.started_at = 0.0
        self.available = False
        self.waiting = self.failed = False
        self.published: Published | None = None
        self.section: bytes | None = None
        self.expired: list[WriterKey] = []


class InspectorExporter:
    """Reads Inspector's JSON lines; see DESIGN of the readers in ``reader.py``."""

    def __init__(self, config: InspectorConfig) -> None:
        self._config = config
        self._slots: list[_Slot] = []
        self._polled_at = float("-inf")
        self._labels: dict[Place, RankLabel] = {}
        self._inherited = Inheritance()
        self._silent: Counter[SilenceCause] = Counter()
        self._judged_at = float("-inf")

    async def start(self, ctx: Context) -> None:
        """Make the readers; what the checkpoint holds of a directory is given back to its reader."""
        self._ctx = ctx
        ctx.ranks.keep_variables(RECORDING_VARIABLES)
        self._silence = SilenceWatch(self._config.paths, ctx.log, ctx.ranks.labels_of)
        checkpoint = self._restore()
        self._inherited = checkpoint.inherited
        for number, path in enumerate(dict.fromkeys(self._config.paths)):
            restored = checkpoint.sections.get(path)
            thread = ctx.thread(f"inspector-{number}")
            reader = await thread.call(partial(self._reader, path, restored))
            reclaimer = Reclaimer(path, self._config.reclaim, ctx.clock, ProcFS(ctx.roots.proc))
            slot = _Slot(path, reader, reclaimer, thread)
            slot.section = restored
            self._slots.append(slot)

    async def update(self) -> None:
        """Take one turn with every directory (all that is there, in a single pass).

        NoData when there is none, unless ranks are to write elsewhere.
        """
        now = self._ctx.clock.monotonic()
        if self._ctx.once:
            await self._single_pass()
        elif now - self._polled_at >= self._config.poll_interval_seconds - POLL_SLACK_SECONDS:
            self._polled_at = now
            await self._turns(last=False)
        if now - self._judged_at >= SILENCE_SECONDS:
            self._judged_at = now
            self._silent = self._silence.look(self._ctx.ranks.without_records(GRACE_SECONDS))
        if not self._silent and not any(slot.available for slot in self._slots):
            raise NoData

    def snapshot(self) -> InspectorSnapshot:
        """What the readers published, with the labels of the moment."""
        self._ask_ranks()
        readers = tuple(self._shown())
        return InspectorSnapshot(
            readers,
            dict(self._labels),
            self._inherited.copy(),
            sum(map(self._is_busy, self._slots)),
            unpublished=len(readers) < len(self._slots),
            silent=Counter(self._silent),
            reclaimed=tuple(slot.reclaimer.totals for slot in self._slots),
        )

    def families(self, snapshot: InspectorSnapshot) -> Iterable[Metric]:
        """Render; pure."""
        return render(snapshot)

    async def drain(self) -> None:
        """Take a last turn with each reader that is free, publish the checkpoint and end the threads."""
        await self._turns(last=True)
        for writer in self._writers():  # a successor asks anew for what it restores
            self._ctx.admit.release(writer.writer_key)
        for slot in self._slots:
            if slot.running is None:
                await slot.thread.call(slot.reader.close)
            slot.thread.stop()

    async def _single_pass(self) -> None:
        await self._turns(last=False)
        while any(slot.waiting and slot.running is None for slot in self._slots):
            await self._turns(last=False)
        await self._turns(last=True)

    def _is_busy(self, slot: _Slot) -> bool:
        return slot.running is not None and self._ctx.clock.monotonic() - slot.started_at > WAIT_SECONDS

    def _shown(self) -> Iterable[Published]:
        """What is published; behind a reader that hangs or fails it stands still, and its sums are withheld."""
        now = self._ctx.clock.monotonic()
        for slot in self._slots:
            if slot.published is None:
                continue
            hangs = slot.running is not None and now - slot.started_at > STALE_SECONDS
            yield slot.published.withheld() if hangs or slot.failed else slot.published

    def _reader(self, path: str, restored: bytes | None) -> DirectoryReader:
        ctx = self._ctx
        bound = Plausibility(self._config.max_bus_bandwidth_gigabytes_per_second)
        make = partial(DirectoryReader, Path(path), ctx.clock, ctx.admit.admit, plausibility=bound)
        try:
            return make(restored=restored, from_beginning=ctx.once)
        except ValueError as error:  # msgspec's errors are ValueErrors
            ctx.log.warning("inspector checkpoint not readable, starting at the files' ends", path=path, error=error)
            return make()

    def _restore(self) -> Checkpoint:
        restored = self._ctx.state.restored
        if restored is None or self._ctx.once:
            return Checkpoint()
        try:
            return msgspec.msgpack.decode(restored, type=Checkpoint)
        except ValueError as error:
            self._ctx.log.warning("inspector checkpoint not readable, starting without it", error=error)
            return Checkpoint()

    async def _turns(self, *, last: bool) -> None:
        """One turn of every reader that is free, side by side; wait a bounded time for them."""
        ranks = self._ctx.ranks
        ownership = Ownership(ranks.held_files, ranks.hostnames, self._ctx.once)
        now = self._ctx.clock.monotonic()
        started = []
        for slot in self._slots:
            if slot.running is None:
                slot.started_at = now
                turn = _turn_of(slot, ownership, self._ctx.state.durable, last=last)
                slot.running = asyncio.ensure_future(slot.thread.call(turn))
                started.append(slot.running)
        if started:
            await asyncio.wait(started, timeout=WAIT_SECONDS)
        errors = [error for slot in self._slots if (error := self._collect(slot)) is not None]
        self._ask_ranks()
        if errors:
            raise errors[0]

    def _collect(self, slot: _Slot) -> BaseException | None:
        """Take in the turn of a reader that came back; return what it raised."""
        task = slot.running
        if task is None or not task.done():
            return None
        slot.running = None
        error = task.exception()
        slot.failed = error is not None
        if error is not None:
            return error
        turn = task.result()
        slot.available, slot.waiting = turn.available, turn.waiting
        for writer_key, memberships, progress in turn.evidence:
            self._ctx.ranks.observe_records(writer_key, memberships, progress)
        if turn.published is not None:
            slot.published = turn.published
            self._ctx.ranks.observe_bandwidths(self._bandwidths())
        for writer in turn.retired:
            self._ctx.admit.release(writer.writer_key)
            self._inherited.take(writer, self._labels)
        for left in turn.ended:
            self._ctx.admit.give_back(left.writer_key, left.series())
            self._inherited.take(left, self._labels)
        if turn.retired or turn.ended:
            self._forget()
        if turn.section is not None and not self._ctx.once:
            slot.section = turn.section
            self._checkpoint()
        return None

    def _writers(self) -> list[WriterTotals]:
        return [writer for slot in self._slots if slot.published is not None for writer in slot.published.writers]

    def _bandwidths(self) -> dict[RankLabel, float]:
        """Time-weighted bus bandwidth of each rank's collectives over the last windows, in bytes per second."""
        sums: dict[RankLabel, tuple[int, int]] = {}
        for writer in self._writers():
            for comm, comm_rank, name, bus_bytes, microseconds in writer.windows:
                label = self._labels.get((writer.writer_key, comm, comm_rank))
                if label is not None and name not in P2P_SERIES:  # these wait for a peer's whole turn
                    before = sums.get(label, (0, 0))
                    sums[label] = (before[0] + bus_bytes, before[1] + microseconds)
        return {label: total * 1_000_000 / time for label, (total, time) in sums.items()}

    def _forget(self) -> None:
        """Let go of labels and inherited totals that no writer has any more."""
        writers = self._writers()
        living = {(writer.writer_key, *place) for writer in writers for place in writer.places}
        self._labels = {place: label for place, label in self._labels.items() if place in living}
        self._inherited.prune(writers, self._labels)

    def _ask_ranks(self) -> None:
        """Ask for the labels that are missing (once given they are kept), and which writers have expired."""
        ranks = self._ctx.ranks
        for slot in self._slots:
            writers = () if slot.published is None else slot.published.writers
            slot.expired = [writer.writer_key for writer in writers if ranks.is_expired(writer.writer_key)]
            for writer in writers:
                for comm, comm_rank in writer.places:
                    place = (writer.writer_key, comm, comm_rank)
                    if place not in self._labels and (label := ranks.label(*place)) is not None:
                        self._labels[place] = label

    def _checkpoint(self) -> None:
        """Publish the readers' sections and what was inherited from writers no longer in them."""
        sections = {slot.path: slot.section for slot in self._slots if slot.section is not None}
        self._ctx.state.publish(msgspec.msgpack.encode(Checkpoint(sections, self._inherited)))


def _turn_of(slot: _Slot, ownership: Ownership, durable: bytes | None, *, last: bool) -> Callable[[], Turn]:
    expired = slot.expired

    def turn() -> Turn:
        made = slot.reader.turn(ownership, expired, last=last)
        slot.reclaimer.run(durable, slot.reader.owned())
        return made

    return turn


SPEC = Spec(
    name="inspector",
    config=InspectorConfig,
    build=InspectorExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=2.0,
    families=FAMILIES,
    series_cap=SERIES_CAP,
)
