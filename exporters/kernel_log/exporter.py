"""Follows the log in its own thread, counts events, and writes checks, faults and events of ranks."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from agent.sdk.evidence import Offered, Wanted
from agent.sdk.exporter import (
    HARDWARE_RIGHTS,
    MAX_SECTION_BYTES,
    Context,
    ExporterConfig,
    NoData,
    SavedCount,
    SavedSeconds,
    ShownExporter,
    Spec,
    saved_sum,
)
from agent.sdk.hardware import NODE, CheckState, Subject, SubjectKind, gpu_faults
from agent.sdk.metrics import Family, Metric
from exporters.kernel_log.classify import Category, KernelEvent, categories, fails, judged, log_events
from exporters.kernel_log.gpu_errors import GpuErrors
from exporters.kernel_log.lines import MAX_SEQUENCE
from exporters.kernel_log.mounts import still_failed, still_silent
from exporters.kernel_log.reader import EventGroup, KernelLog, LookResult

INTERVAL_SECONDS = 1.0
MAX_KINDS = 512  # Limit of pairs of category and code. Events of further pairs count with an empty code.
MAX_PARTS = 64
"""Limit per check: servers that do not respond, or file systems that became read-only. Others are only counted."""

OOM_KILL = "oom_kill"  # The category of lines that explain the end of a rank's process
READ_ONLY, SILENT = "filesystem_read_only", "nfs_not_responding"
RECOVERY = {READ_ONLY: still_failed, SILENT: still_silent}
"""Checks of file systems and servers whose end mountinfo shows, too."""

# fmt: off
EVENTS = Family("rankwatch_kernel_events_total", "counter",
    "Lines of the kernel's log since the boot, by category. code is the number of an XID or SXID, or a severity, else "
    "empty. A category without a line has no series. Therefore increase() misses the first line: for a category "
    "without a check, use rankwatch_kernel_event_last_timestamp_seconds.",
    ("category", "code"), "1 per category and code seen")
LAST = Family("rankwatch_kernel_event_last_timestamp_seconds", "gauge",
    "Time when the agent read the last line of the category and code or, for a line from before the agent's start, "
    "when the kernel wrote it. Absent until the first line since the boot.",
    ("category", "code"), "1 per category and code seen")
LOST = Family("rankwatch_kernel_log_lost_total", "counter",
    "Records that the kernel overwrote before the agent read them.")
# fmt: on
FAMILIES = (EVENTS, LAST, LOST)


class KernelLogConfig(ExporterConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``path``: the path of the log. Reading it needs CAP_SYSLOG if kernel.dmesg_restrict is 1."""

    path: str = "/dev/kmsg"


class EventCount(msgspec.Struct):
    """The number of lines of one kind, and the time of the last line (epoch seconds)."""

    last_seconds: SavedSeconds
    lines: SavedCount = msgspec.field(name="count", default=0)


class Past(msgspec.Struct):
    """The checkpoint: the number of the last record, and the counts up to it.

    ``parts``: by check, the servers or file systems that failed and have not recovered. The value is True for a file
    system that mountinfo showed as read-only, and for a server that it showed as mounted.
    """

    last: Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQUENCE)] = -1
    lost: SavedCount = 0
    counts: dict[str, dict[str, EventCount]] = msgspec.field(name="seen", default_factory=dict)
    parts: dict[str, dict[str, bool]] = {}
    gpu_errors: GpuErrors = msgspec.field(default_factory=GpuErrors)


class KernelLogExporter(ShownExporter[bytes]):
    """Exports the kernel's events, which fail or clear checks. The series come from the encoded checkpoint."""

    def __init__(self, config: KernelLogConfig) -> None:
        super().__init__(b"", render)
        self._config = config
        self._past = Past()
        self._refused = False

    async def start(self, ctx: Context) -> None:
        """Restore the counts since the boot."""
        self._ctx = ctx
        self._thread = ctx.thread("kernel_log")
        self._past = ctx.state.restore(Past, ctx.log) or Past()
        self.shown = msgspec.msgpack.encode(self._past)
        self._names: dict[SubjectKind, dict[str, str]] = {}
        self._is_backlog = True
        await self._thread.call(categories)
        await self._thread.call(gpu_faults.read_table)
        self._log = KernelLog(Path(self._config.path), self._past.last, ctx.roots, ctx.failures)
        ctx.evidence.offer(self._last_lines)

    async def _last_lines(self, _wanted: Wanted) -> Offered:
        """Return the kernel's last lines, each with its seconds after the boot.

        Reads the log first: a GPU's error can come less than one update interval before the death that it explains.
        """
        if not self._is_backlog:
            await self._thread.call(self._log.catch_up)
        lines = [f"{record.seconds:.6f} {record.text}\n" for record in tuple(self._log.last_records)]
        why = f"no right to read {self._config.path}" if self._refused and not lines else ""
        return Offered({"kernel.log": "".join(lines).encode()}, why=why)

    async def update(self) -> None:
        """Count new events. Raise NoData without a log.

        Without the right to read the log, raise PermissionError if enabled is true, else NoData.
        """
        self._learn_names()
        try:
            failed = tuple(part for check in RECOVERY for part in self._past.parts.get(check, ()))
            look = await self._thread.call(partial(self._log.look, failed, is_backlog=self._is_backlog))
        except FileNotFoundError:
            raise NoData from None
        except PermissionError as error:
            if not self._refused:
                self._refused = True
                self._ctx.log.warning(
                    "cannot read the kernel's log {path}: the agent needs CAP_SYSLOG and, in a container, this device",
                    path=self._config.path,
                    error=error.strerror,
                )
            if self._config.enabled is True:
                raise
            self._ctx.note.say("no right to the kernel's log", HARDWARE_RIGHTS)
            raise NoData(self._ctx.note.text) from None
        self._ctx.note.say("")
        self._note(look)
        self._past.last, self._is_backlog = self._log.lines.settled, False
        now = self._ctx.clock.time()
        for check, parts in self._past.parts.items():
            self._ctx.checks.report(NODE, check, CheckState.of(not parts))
        self._past.gpu_errors.forget(now)
        self._ctx.hardware.observe_faults(self._past.gpu_errors.faults)
        self.shown = msgspec.msgpack.encode(self._past)
        self._ctx.state.publish(self.shown)

    def _note(self, look: LookResult) -> None:
        self._past.lost = saved_sum(self._past.lost, look.lost)
        if look.mounted is not None:
            for check in RECOVERY.keys() & self._past.parts.keys():
                self._past.parts[check] = RECOVERY[check](self._past.parts[check], look.mounted)
        now, monotonic = self._ctx.clock.time(), self._ctx.clock.monotonic()
        logged: list[tuple[KernelEvent, dict[str, str], int]] = []
        for group in look.groups:
            seconds = now - monotonic + group.seconds if self._is_backlog else now
            take = partial(self._take, group, seconds, logged)
            self._ctx.failures.attempt("a kernel event", take, category=group.event.category)
        log_events(self._ctx.log, logged)

    def _take(self, group: EventGroup, seconds: float, logged: list[tuple[KernelEvent, dict[str, str], int]]) -> None:
        """Count equal events, the last at ``seconds`` (epoch). Unless old, they fail or clear checks and are logged."""
        event = group.event
        codes = self._past.counts.setdefault(event.category, {})
        kinds = sum(map(len, self._past.counts.values()))
        count = codes.setdefault(event.code if event.code in codes or kinds < MAX_KINDS else "", EventCount(seconds))
        count.lines = saved_sum(count.lines, group.times)
        count.last_seconds = seconds
        rank = self._rank_of(event)
        if group.is_old:
            return
        self._report(event, fails(event, group.seconds))
        self._note_fault(event, seconds)
        logged.append((event, rank, group.times))

    def _note_fault(self, event: KernelEvent, seconds: float) -> None:
        """Save a GPU's error. Fail a check if the programs of several users fail at one place of the GPU."""
        error = judged(event)
        if error is None or event.gpu_error is None or not event.pci:
            return
        errors = self._past.gpu_errors
        errors.note(event.pci, error.fault, seconds)
        again = errors.repeats(event.pci, event.gpu_error, event.user, seconds)
        if again is not None:
            error = gpu_faults.judge("nvidia", again)
            errors.note(event.pci, error.fault, seconds)
            self._ctx.checks.latch(self._named("gpu", event.pci), error.check)

    def _report(self, event: KernelEvent, check: str) -> None:
        """Fail ``check`` (empty: none) for the event's part or device, and clear the checks that the event heals."""
        category = categories()[event.category]
        if check and event.part:
            parts = self._past.parts.setdefault(check, {})
            if len(parts) < MAX_PARTS:
                parts.setdefault(event.part, False)
        elif check:
            self._ctx.checks.latch(self._subject(category, event), check)
        for healed in category.heals if event.part else ():
            self._past.parts.get(healed, {}).pop(event.part, None)
        if category.heals and event.pci:
            self._ctx.checks.clear(self._subject(category, event), category.heals)
        elif category.heals and not event.part:
            self._ctx.checks.clear(None, category.heals)

    def _subject(self, category: Category, event: KernelEvent) -> Subject:
        return self._named(category.subject, event.pci) if category.subject != "node" and event.pci else NODE

    def _named(self, kind: SubjectKind, pci: str) -> Subject:
        """Return the device at the address. The address is its name until an exporter names the device."""
        return Subject(kind, self._names.get(kind, {}).get(pci, pci))

    def _learn_names(self) -> None:
        """Read the devices' names by address, and rename the subjects of checks that have an address as name."""
        hardware = self._ctx.hardware
        # a number alone is a driver's index: another GPU may have it later
        gpus = {gpu.pci: gpu.uuid for gpu in hardware.gpus() if gpu.uuid and not gpu.uuid.isdigit()}
        nics = {nic.pci: nic.device for nic in hardware.nics() if nic.device}
        names: dict[SubjectKind, dict[str, str]] = {"gpu": gpus, "nic": nics}
        for kind, known in names.items():
            if known != self._names.get(kind, {}):
                self._ctx.checks.rename(kind, known)
        self._names = names

    def _rank_of(self, event: KernelEvent) -> dict[str, str]:
        """Return the labels of the rank whose process the event names; write an OOM kill to the rank table."""
        views = [view for view in self._ctx.ranks.snapshot().ranks if event.pid and view.process.key.pid == event.pid]
        if not views:
            return {}
        newest = max(views, key=lambda view: view.process.key)  # the pid of an exited rank can be used again
        if event.category == OOM_KILL and not self._is_backlog:  # an older line may name another process
            self._ctx.ranks.observe_oom_kill(newest.process.key)
        return {"job_id": newest.label.job_id, "rank": newest.label.rank}

    async def drain(self) -> None:
        """Close the log."""
        await self._thread.call(self._log.close)


def render(section: bytes) -> Iterable[Metric]:
    """Return the families of the counts in an encoded Past."""
    past = msgspec.msgpack.decode(section, type=Past)
    events, last = EVENTS.rows(), LAST.rows()
    for category in categories():
        for code, count in past.counts.get(category, {}).items():
            events.add((category, code), count.lines)
            last.add((category, code), count.last_seconds)
    yield from (events.metric, last.metric, LOST.single(past.lost))


SPEC = Spec(
    name="kernel_log",
    config=KernelLogConfig,
    build=KernelLogExporter,
    interval_seconds=INTERVAL_SECONDS,
    deadline_seconds=5.0,
    families=FAMILIES,
    checkpoint_bytes=MAX_SECTION_BYTES,
    series_cap=2_000,
)
