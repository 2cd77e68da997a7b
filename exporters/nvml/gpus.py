"""All GPUs since boot: the last reading of each, its saved state (``Remembered``), and its verdict.

Pure except for its own state. The saved state survives a restart of the agent: a GPU that is lost during the restart
counts as lost, and a link that was up before is expected to be up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.exporter import SavedCount, SavedSeconds, saved_sum
from agent.sdk.hardware import CheckState, DriverReport, TimedFault, fault_table, gpu_faults
from agent.sdk.system import pci_address
from exporters.nvml import judge
from exporters.nvml.fields import plausible
from exporters.nvml.judge import LinksView, NvLinks, ReasonSeconds, Windows
from exporters.nvml.reading import MAX_GPUS, GpuReading, LookAnswer, XidEvent

MAX_XIDS = 32  # At most this many different Xids of one GPU have their own series
MAX_XID = 9999
OTHER = "other"
_RESET_ENDS = (
    *("gpu_xid", "gpu_xid_warning", "gpu_lost"),
    *("gpu_slowdown", "gpu_hot", "pcie_degraded", "pcie_errors", "nvlink_errors", "nvlink_down", "gpu_fabric"),
)
"""Checks that a GPU reset clears: faults, even of the kernel log exporter, and checks without a value after a reset."""


class Xid(msgspec.Struct, frozen=True):
    """How often the driver reported an Xid, and the time of the last report (epoch seconds)."""

    count: SavedCount
    last_seconds: SavedSeconds


class Remembered(msgspec.Struct):
    """One GPU in the checkpoint. ``signs``: values that a reset changes; the poll that gave them may be old."""

    index: int
    pci: str
    name: str
    links: set[int] = set()
    xids: dict[str, Xid] = {}
    lost: bool = False
    signs: dict[str, int] = {}


class GpuView(msgspec.Struct, frozen=True):
    """One GPU as rendered. ``reading``: None if it is lost. A GPU without UUID was lost before its UUID was read."""

    uuid: str
    index: int
    pci: str = ""
    name: str = ""
    reading: GpuReading | None = None
    reason_seconds: dict[str, float] = {}
    links: LinksView = LinksView()
    xids: dict[str, int] = {}


class GpuVerdict(msgspec.Struct, frozen=True):
    """The checks of one GPU, to write in this order: faults to clear (``recovered``), levels, faults to latch."""

    subject: str
    levels: dict[str, CheckState]
    faults: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()


class _GpuHistory:
    """State of one GPU that is not saved in the checkpoint."""

    def __init__(self, links: Iterable[int]) -> None:
        self.links = NvLinks(set(links))
        self.seconds = ReasonSeconds()
        self.windows: Windows[str] = Windows()
        self.before: GpuReading | None = None


class Gpus:
    """State of all GPUs. ``changed``: the checkpoint must be written. ``errors``: bad values and GPUs, by error."""

    def __init__(self, hot_celsius: float, remembered: Mapping[str, Remembered]) -> None:
        self._hot_celsius = hot_celsius
        self.remembered = dict(list(remembered.items())[:MAX_GPUS])
        self._histories: dict[str, _GpuHistory] = {}
        self.errors: Counter[str] = Counter()
        self.changed = False
        self.views: tuple[GpuView, ...] = ()

    def observe(self, answer: LookAnswer, elapsed_seconds: float, now_seconds: float) -> list[GpuVerdict]:
        """Take the answer of a poll and return the verdicts.

        ``elapsed_seconds``: time since the last poll without an error, 0 for the first. ``now_seconds``: epoch seconds.
        """
        self.errors.update(answer.errors)
        readings = self._readings(answer.gpus)
        faults = self._count_events(answer.events, now_seconds)
        if answer.error:
            self.views = ()
            return [GpuVerdict(uuid, {}, tuple(faults.get(uuid, ()))) for uuid in self.remembered]
        views, verdicts = [], []
        for uuid, known in self.remembered.items():
            reading, failed = readings.get(uuid), tuple(faults.get(uuid, ()))
            if reading is not None:
                view, verdict = self._present(known, reading, elapsed_seconds, failed)
            else:
                self.changed = self.changed or not known.lost
                known.lost = True
                view = GpuView(uuid, known.index, known.pci, known.name, xids=_counts(known))
                verdict = GpuVerdict(uuid, {"gpu_lost": CheckState.FAILED}, failed)
            views.append(view)
            verdicts.append(verdict)
        nameless = self._nameless(answer.gpus, views)
        self.views = (*views, *nameless)
        return [*verdicts, *(GpuVerdict(f"index {view.index}", {"gpu_lost": CheckState.FAILED}) for view in nameless)]

    def keep_signs(self) -> None:
        """Save ``judge.SIGNS`` of the last poll. After a restart they show whether a GPU was reset meanwhile."""
        for uuid, history in self._histories.items():
            if history.before is not None:
                self.remembered[uuid].signs = _signs(history.before)
                self.changed = True

    def faults(self, now_seconds: float) -> dict[str, list[TimedFault]]:
        """Return the recent faults of each GPU (from the numbers of its Xids), by PCI address."""
        faults: dict[str, list[TimedFault]] = {}
        for known in self.remembered.values():
            recent: list[TimedFault] = []
            for name, xid in known.xids.items():
                if name != OTHER:
                    recent = fault_table.add(
                        recent, gpu_faults.judge("nvidia", DriverReport(name)).fault, xid.last_seconds
                    )
            faults[pci_address(known.pci)] = fault_table.recent(recent, now_seconds)
        return faults

    def any_lost(self) -> bool:
        """Return True while a GPU that was present is lost."""
        return any(view.reading is None for view in self.views)

    def _readings(self, gpus: Iterable[GpuReading]) -> dict[str, GpuReading]:
        """Return the plausible readings of the GPUs that answered, by UUID. New GPUs are added to ``remembered``.

        A known GPU whose UUID, address or name cannot be read keeps it.
        """
        by_uuid: dict[str, GpuReading] = {}
        uuids = {known.pci: uuid for uuid, known in self.remembered.items() if known.pci}
        for reading in gpus:
            if reading.lost:
                continue
            uuid = reading.uuid or uuids.get(reading.pci, "")
            if not uuid or uuid in by_uuid:
                self.errors["duplicate" if uuid else "nameless"] += 1
                continue
            known = self.remembered.get(uuid) or Remembered(reading.index, "", "")
            if uuid not in self.remembered and len(self.remembered) >= MAX_GPUS:
                self.errors["too_many_gpus"] += 1
                continue
            identity = (reading.index, reading.pci or known.pci, reading.name or known.name)
            if uuid not in self.remembered or identity != (known.index, known.pci, known.name):
                known.index, known.pci, known.name = identity
                self.remembered[uuid] = known
                self.changed = True
            values, activity = plausible(reading.values), plausible(reading.activity)
            dropped = len(reading.values) + len(reading.activity) - len(values) - len(activity)
            if dropped:
                self.errors["implausible"] += dropped
            by_uuid[uuid] = msgspec.structs.replace(reading, uuid=uuid, values=values, activity=activity)
        return by_uuid

    def _count_events(self, events: Iterable[XidEvent], now_seconds: float) -> dict[str, list[str]]:
        """Count events and return the checks that they fail, by UUID."""
        faults: dict[str, list[str]] = {}
        for event in events:
            known = self.remembered.get(event.uuid)
            if known is None:
                self.errors["event_of_unknown_gpu"] += 1
                continue
            self.changed = True
            name = str(event.xid) if 0 < event.xid <= MAX_XID else OTHER
            if name not in known.xids and len(known.xids) >= MAX_XIDS:
                name = OTHER
            before = known.xids[name].count if name in known.xids else 0
            known.xids[name] = Xid(saved_sum(before, event.count), now_seconds)
            if check := gpu_faults.judge("nvidia", DriverReport(str(event.xid))).check:
                faults.setdefault(event.uuid, []).append(check)
        return faults

    def _present(
        self, known: Remembered, reading: GpuReading, elapsed_seconds: float, faults: tuple[str, ...]
    ) -> tuple[GpuView, GpuVerdict]:
        history = self._histories.setdefault(reading.uuid, _GpuHistory(known.links))
        signs = history.before.values if history.before else known.signs
        if reset := known.lost or judge.was_reset(reading, signs):
            known.lost, self.changed = False, True
            history.windows, history.before = Windows(), None
            history.links.forget_windows()
        elapsed = elapsed_seconds if history.before is not None else 0.0
        for check, flagged in judge.votes(reading, history.before, elapsed, self._hot_celsius).items():
            history.windows.add(check, flagged)
        links = history.links.look(reading.links)
        if history.links.expected != known.links:
            known.links = set(history.links.expected)
            self.changed = True
        if reset or not known.signs:
            known.signs = _signs(reading)
        seconds = history.seconds.add(reading, elapsed)
        history.before = reading
        levels = {"gpu_lost": CheckState.OK, **judge.levels(reading), **history.windows.states()}
        levels |= history.links.checks(links)
        if reset and CheckState.FAILED not in levels.values():  # the Xids since the last poll came before the reset
            faults = ()
        verdict = GpuVerdict(reading.uuid, levels, faults, _RESET_ENDS if reset else ())
        identity = (reading.uuid, known.index, known.pci, known.name)
        return GpuView(*identity, reading, seconds, links, _counts(known)), verdict

    def _nameless(self, gpus: Iterable[GpuReading], views: Iterable[GpuView]) -> list[GpuView]:
        """Return the GPUs lost before their UUID was read, except indexes that ``views`` already shows as lost."""
        lost_indexes = {view.index for view in views if view.reading is None}
        lost = [gpu for gpu in gpus if gpu.lost and gpu.uuid not in self.remembered]
        return [GpuView("", gpu.index) for gpu in lost if gpu.index not in lost_indexes]


def _counts(known: Remembered) -> dict[str, int]:
    return {name: xid.count for name, xid in known.xids.items()}


def _signs(reading: GpuReading) -> dict[str, int]:
    return {name: reading.values[name] for name in judge.SIGNS if name in reading.values}
