"""The exporter: follows the log in a thread of its own, counts events, tells the ledger and whose rank it was."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.api import NODE, Context, ExporterConfig, Family, Metric, NoData, RankLabel, Spec, Subject
from exporters.kernel_log.classify import Category, Event, categories, classify, fails
from exporters.kernel_log.follower import Follower
from exporters.kernel_log.records import Record

INTERVAL_SECONDS = 1.0
MAX_KINDS = 512
"""Pairs of a category and a code; the events of more are counted under no code."""
MAX_LOGGED = 10
"""Events of one look that the agent's own log repeats."""
MAX_AGE_SECONDS = 600.0
"""Older lines, which a first start finds, are counted, and no more: what they tell of may be mended since."""
MAX_RANK_EVENTS = 256
"""Ranks with events, by category; those beyond show in the node's counts alone."""

EVENTS = Family(
    "rankwatch_kernel_events_total",
    "counter",
    "Lines of the kernel's log since the boot, by what they mean; code is an XID's or SXID's number or a severity, "
    "empty where there is none.",
    ("category", "code"),
    "1 per category, and 1 per code seen",
)
LAST = Family(
    "rankwatch_kernel_event_last_timestamp_seconds",
    "gauge",
    "When the last such line was written; absent before the first since the boot.",
    ("category", "code"),
    "1 per category and code seen",
)
RANK_EVENTS = Family(
    "rankwatch_rank_kernel_events_total",
    "counter",
    "Lines of the kernel's log that name the rank's process: killed for want of memory, hung, crashed in the library.",
    ("job_id", "rank", "category"),
    "1 per rank and category seen, at most 256",
    "max",
)
LOST = Family(
    "rankwatch_kernel_log_lost_total",
    "counter",
    "Records that the kernel had overwritten before they were read.",
)
FAMILIES = (EVENTS, LAST, RANK_EVENTS, LOST)


class KernelLogConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``path``: the log; reading it needs CAP_SYSLOG where kernel.dmesg_restrict is 1."""

    path: str = "/dev/kmsg"


class Seen(msgspec.Struct):
    """How often a kind of event was seen, and when last (seconds after the boot)."""

    count: int = 0
    last: float = 0.0


class Past(msgspec.Struct):
    """What the checkpoint keeps: the number of the last record, and the counts up to it, by rank too."""

    last: int = -1
    lost: int = 0
    seen: dict[str, dict[str, Seen]] = {}
    ranks: dict[tuple[str, str, str], int] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """What ``families`` renders; ``booted_seconds``: the time of the boot, to which events' times are added."""

    past: Past
    booted_seconds: float


class KernelLogExporter:
    """See the package."""

    def __init__(self, config: KernelLogConfig) -> None:
        self._config = config
        self._past = Past()
        self._refused = False

    async def start(self, ctx: Context) -> None:
        """Take back what was counted since the boot."""
        self._ctx = ctx
        self._thread = ctx.thread("kernel_log")
        self._past = ctx.state.restore(Past, ctx.log) or Past()
        await self._thread.call(categories)
        self._follower = Follower(Path(self._config.path), self._past.last)

    async def update(self) -> None:
        """Count what is new; NoData where there is no log, or none that may be read unless it was asked for."""
        try:
            events, lost = await self._thread.call(self._read)
        except FileNotFoundError:
            raise NoData from None
        except PermissionError as error:
            if not self._refused:
                self._refused = True
                self._ctx.log.warning(
                    "the kernel's log may not be read", path=self._config.path, error=error.strerror, needs="CAP_SYSLOG"
                )
            if self._config.enabled is True:
                raise
            raise NoData from None
        self._past.last, self._past.lost = self._follower.last, self._past.lost + lost
        for number, (record, event) in enumerate(events):
            self._take(record, event, is_logged=number < MAX_LOGGED)
        self._forget_ranks()
        self._ctx.state.publish(msgspec.msgpack.encode(self._past))

    def _read(self) -> tuple[list[tuple[Record, Event]], int]:
        """New events of the kernel's own (a user's word under a kernel's name is none), and records lost."""
        batch = self._follower.read()
        events = [
            (record, event)
            for record in batch.records
            if record.from_kernel and (event := classify(record.text)) is not None
        ]
        return events, batch.lost

    def _take(self, record: Record, event: Event, *, is_logged: bool) -> None:
        codes = self._past.seen.setdefault(event.category, {})
        kinds = sum(map(len, self._past.seen.values()))
        seen = codes.setdefault(event.code if event.code in codes or kinds < MAX_KINDS else "", Seen())
        seen.count += 1
        seen.last = record.seconds
        rank = self._count_rank(event)
        if self._ctx.clock.monotonic() - record.seconds > MAX_AGE_SECONDS:
            return
        self._tell(event)
        if is_logged:
            self._ctx.log.warning(
                "the kernel tells of trouble", category=event.category, code=event.code, pci=event.pci, **rank
            )

    def _tell(self, event: Event) -> None:
        category = categories()[event.category]
        subject = self._subject(category, event)
        if check := fails(event):
            self._ctx.checks.latch(subject, check)
        if category.heals:
            everywhere = [] if event.pci else [Subject("gpu", gpu.uuid) for gpu in self._ctx.hardware.gpus()]
            for each in (subject, *everywhere):
                self._ctx.checks.clear(each, category.heals)

    def _subject(self, category: Category, event: Event) -> Subject:
        """The piece of hardware at the address; by its address where nobody has named it yet."""
        if category.subject == "gpu" and event.pci:
            names = {gpu.pci: gpu.uuid for gpu in self._ctx.hardware.gpus()}
            return Subject("gpu", names.get(event.pci, event.pci))
        if category.subject == "nic" and event.pci:
            devices = {nic.pci: nic.device for nic in self._ctx.hardware.nics()}
            return Subject("nic", devices.get(event.pci, event.pci))
        return NODE

    def _count_rank(self, event: Event) -> dict[str, str]:
        """Count an event that names a rank's process, and say whose it is."""
        if not event.pid:
            return {}
        for view in self._ctx.ranks.snapshot().ranks:
            if view.process.facts is not None and view.process.facts.key.pid == event.pid:
                key = (*view.label, event.category)
                if key in self._past.ranks or len(self._past.ranks) < MAX_RANK_EVENTS:
                    self._past.ranks[key] = self._past.ranks.get(key, 0) + 1
                return {"job_id": view.label.job_id, "rank": view.label.rank}
        return {}

    def _forget_ranks(self) -> None:
        """Drop what is known of ranks that are shown no more."""
        if self._past.ranks:
            shown = {view.label for view in self._ctx.ranks.snapshot().ranks}
            self._past.ranks = {key: count for key, count in self._past.ranks.items() if RankLabel(*key[:2]) in shown}

    def snapshot(self) -> Snapshot:
        """Copy the counts."""
        past = msgspec.msgpack.decode(msgspec.msgpack.encode(self._past), type=Past)
        return Snapshot(past, self._ctx.clock.time() - self._ctx.clock.monotonic())

    def families(self, snapshot: Snapshot) -> Iterable[Metric]:
        """Render; pure."""
        events, last, ranks = EVENTS.rows(), LAST.rows(), RANK_EVENTS.rows()
        for category in categories():
            codes = snapshot.past.seen.get(category, {})
            if "" not in codes:
                events.add((category, ""), 0)
            for code, seen in codes.items():
                events.add((category, code), seen.count)
                last.add((category, code), snapshot.booted_seconds + seen.last)
        for key, count in snapshot.past.ranks.items():
            ranks.add(key, count)
        yield events.metric
        yield last.metric
        yield ranks.metric
        yield LOST.single(snapshot.past.lost)

    async def drain(self) -> None:
        """Let go of the log."""
        await self._thread.call(self._follower.close)
        self._thread.stop()


SPEC = Spec(
    name="kernel_log",
    config=KernelLogConfig,
    build=KernelLogExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    series_cap=2_000,
)
