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


class FaultSeen(msgspec.Struct, frozen=True):
    """An error of a GPU, and the time when it was last seen (epoch seconds)."""

    fault: Fault
    last_seconds: SavedSeconds


class GpuFault(msgspec.Struct, frozen=True):
    """An error with its GPU: index and UUID. Both are empty if only the PCI address is known."""

    gpu: str
    gpu_uuid: str
    pci: str
    seen: FaultSeen


FaultsByPci: TypeAlias = Mapping[str, Sequence[FaultSeen]]  # The errors by the GPU's PCI address, as sysfs writes it


def add(known: Iterable[FaultSeen], fault: Fault, seconds: float) -> list[FaultSeen]:
    """Return a GPU's MAX_FAULTS most important errors: ``known`` errors, and ``fault`` at ``seconds`` (epoch)."""
    return _first(_last([*known, FaultSeen(fault, seconds)]))


def recent(known: Iterable[FaultSeen], now_seconds: float) -> list[FaultSeen]:
    """Return the errors that were seen within MAX_AGE_SECONDS of ``now_seconds`` (epoch): a clock can be set back."""
    return [fault_seen for fault_seen in known if abs(now_seconds - fault_seen.last_seconds) <= MAX_AGE_SECONDS]


def merged(sources: Iterable[FaultsByPci]) -> dict[str, list[FaultSeen]]:
    """Return the errors of all sources, by PCI address.

    If one source has only the number of an error and another source has its log line, the error of the log line is
    kept.
    """
    by_pci: dict[str, list[FaultSeen]] = {}
    for source in sources:
        for pci, seen in source.items():
            by_pci.setdefault(pci, []).extend(seen)
    return {pci: _first(_best_known(_last(seen))) for pci, seen in by_pci.items()}


def rows(faults: Iterable[GpuFault]) -> Metric:
    """Return the family GPU_FAULT with one series for each error."""
    shown = GPU_FAULT.rows()
    for fault in faults:
        labels = (fault.gpu, fault.gpu_uuid, fault.pci, *msgspec.structs.astuple(fault.seen.fault))
        shown.add(labels, fault.seen.last_seconds)
    return shown.metric


def _last(seen: Iterable[FaultSeen]) -> list[FaultSeen]:
    last: dict[Fault, float] = {}
    for fault_seen in seen:
        last[fault_seen.fault] = max(fault_seen.last_seconds, last.get(fault_seen.fault, fault_seen.last_seconds))
    return [FaultSeen(fault, seconds) for fault, seconds in last.items()]


def _first(seen: Iterable[FaultSeen]) -> list[FaultSeen]:
    """Return the MAX_FAULTS most important errors.

    The limit drops consequences first, then errors that affect only a process, then nonfatal errors; of equal errors,
    the oldest first.
    """
    return sorted(seen, key=_worth, reverse=True)[:MAX_FAULTS]


def _best_known(seen: Sequence[FaultSeen]) -> list[FaultSeen]:
    """Return the errors. An error known only by its number is left out if the log line of the same error is known."""
    by_number = {
        fault_seen.fault
        for fault_seen in seen
        if fault_seen.fault == judge("nvidia", DriverReport(fault_seen.fault.code)).fault
    }
    lines = {
        fault_seen.fault.code: fault_seen.last_seconds
        for fault_seen in sorted(seen, key=lambda fault_seen: fault_seen.last_seconds)
        if fault_seen.fault not in by_number
    }
    return [
        fault_seen
        for fault_seen in seen
        if fault_seen.fault not in by_number
        or fault_seen.last_seconds - lines.get(fault_seen.fault.code, float("-inf")) > SAME_SECONDS
    ]


def _worth(seen: FaultSeen) -> tuple[bool, bool, bool, float]:
    fault = seen.fault
    return fault.role == "root", fault.hurts != "process", fault.severity != "nonfatal", seen.last_seconds
