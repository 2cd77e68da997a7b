"""The errors of each GPU in the last day, of one exporter or of all exporters: at most MAX_FAULTS per GPU. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.metrics import Family, Metric
from agent.hardware.gpu_faults import DriverReport, Fault, judge

MAX_FAULTS = 8  # Kinds of errors of one GPU that are shown
MAX_AGE_SECONDS = 86400.0  # A kind of error is dropped when it was not seen for longer than this
SAME_SECONDS = 60.0
"""Two reports of one GPU and code from two sources within this time are one error. NVML is read every 10 s."""

# fmt: off
GPU_FAULT = Family("rankwatch_gpu_fault_last_timestamp_seconds", "gauge",
    "When the driver last reported this error of the GPU. code: an Xid's number, or a word for an AMD error. unit, "
    "link (NVLink) and severity are from the driver's line. hurts: what is affected (process, gpu, link, node). role: "
    "root, or consequence of another error. action: what the GPU's maker recommends. Dropped after a day without the "
    "error.",
    ("gpu", "gpu_uuid", "pci", "code", "unit", "link", "severity", "meaning", "hurts", "role", "action"),
    "1 per GPU and kind of error, at most 8 per GPU")
# fmt: on


class TimedFault(msgspec.Struct, frozen=True):
    """An error of a GPU, and the time when it was last seen (epoch seconds)."""

    fault: Fault
    last_seconds: SavedSeconds


class GpuFault(msgspec.Struct, frozen=True):
    """An error with its GPU: index and UUID. Both are empty if only the PCI address is known."""

    gpu: str
    gpu_uuid: str
    pci: str
    timed: TimedFault


FaultsByPci: TypeAlias = Mapping[str, Sequence[TimedFault]]  # The errors by the GPU's PCI address, as sysfs writes it


def add(known: Iterable[TimedFault], fault: Fault, seconds: float) -> list[TimedFault]:
    """Return a GPU's MAX_FAULTS most important errors: ``known`` errors, and ``fault`` at ``seconds`` (epoch)."""
    return _first(_last([*known, TimedFault(fault, seconds)]))


def recent(known: Iterable[TimedFault], now_seconds: float) -> list[TimedFault]:
    """Return errors seen at most MAX_AGE_SECONDS before or after ``now_seconds`` (epoch): a clock can be set back."""
    return [timed for timed in known if abs(now_seconds - timed.last_seconds) <= MAX_AGE_SECONDS]


def merged(sources: Iterable[FaultsByPci]) -> dict[str, list[TimedFault]]:
    """Return the errors of all sources, by PCI address.

    If one source has only the number of an error and another source has its log line, the error of the log line is
    kept.
    """
    by_pci: dict[str, list[TimedFault]] = {}
    for source in sources:
        for pci, faults in source.items():
            by_pci.setdefault(pci, []).extend(faults)
    return {pci: _first(_best_known(_last(faults))) for pci, faults in by_pci.items()}


def rows(faults: Iterable[GpuFault]) -> Metric:
    """Return the family GPU_FAULT with one series for each error."""
    shown = GPU_FAULT.rows()
    for fault in faults:
        labels = (fault.gpu, fault.gpu_uuid, fault.pci, *msgspec.structs.astuple(fault.timed.fault))
        shown.add(labels, fault.timed.last_seconds)
    return shown.metric


def _last(faults: Iterable[TimedFault]) -> list[TimedFault]:
    last: dict[Fault, float] = {}
    for timed in faults:
        last[timed.fault] = max(timed.last_seconds, last.get(timed.fault, timed.last_seconds))
    return [TimedFault(fault, seconds) for fault, seconds in last.items()]


def _first(faults: Iterable[TimedFault]) -> list[TimedFault]:
    """Return the MAX_FAULTS most important errors.

    The limit drops consequences first, then errors that affect only a process, then nonfatal errors; of equal errors,
    the oldest first.
    """
    return sorted(faults, key=_worth, reverse=True)[:MAX_FAULTS]


def _best_known(faults: Sequence[TimedFault]) -> list[TimedFault]:
    """Return the errors. An error known only by its number is left out if the log line of the same error is known."""
    by_number = {
        timed.fault for timed in faults if timed.fault == judge("nvidia", DriverReport(timed.fault.code)).fault
    }
    lines = {
        timed.fault.code: timed.last_seconds
        for timed in sorted(faults, key=lambda timed: timed.last_seconds)
        if timed.fault not in by_number
    }
    return [
        timed
        for timed in faults
        if timed.fault not in by_number
        or timed.last_seconds - lines.get(timed.fault.code, float("-inf")) > SAME_SECONDS
    ]


def _worth(timed: TimedFault) -> tuple[bool, bool, bool, float]:
    fault = timed.fault
    return fault.role == "root", fault.hurts != "process", fault.severity != "nonfatal", timed.last_seconds
