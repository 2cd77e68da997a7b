"""The last errors of each GPU, as one exporter saw them or all together: few, the newest, and not for ever. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from agent.core.checkpoint import SavedSeconds
from agent.core.metrics import Family, Metric
from agent.hardware.gpu_faults import Fault, Told, judge

MAX_FAULTS = 8
"""Kinds of errors of one GPU that are shown."""
MAX_AGE_SECONDS = 86400.0
"""A kind that was not seen for longer is dropped."""
SAME_SECONDS = 60.0
"""What two sources tell of one GPU and code within so long is one error; NVML is asked every 10 s."""

GPU_FAULT = Family(
    "rankwatch_gpu_fault_last_timestamp_seconds",
    "gauge",
    "When the driver last told of this error of the GPU: code (an Xid's number, or a word for an error of AMD's), "
    "unit, NVLink and severity as its line names them, what it means, who is hurt (process, gpu, link, node), role "
    "(root, or consequence of another error) and the action that its maker calls for. Dropped after a day without it.",
    ("gpu", "gpu_uuid", "pci", "code", "unit", "link", "severity", "meaning", "hurts", "role", "action"),
    "1 per GPU and kind of error, at most 8 per GPU",
)


class FaultSeen(msgspec.Struct, frozen=True):
    """An error of a GPU, and when it was seen last (epoch seconds)."""

    fault: Fault
    last_seconds: SavedSeconds


class GpuFault(msgspec.Struct, frozen=True):
    """An error with its GPU: by index and UUID, both empty for one of which only the PCI address is known."""

    gpu: str
    gpu_uuid: str
    pci: str
    seen: FaultSeen


FaultsByPci: TypeAlias = Mapping[str, Sequence[FaultSeen]]
"""By a GPU's PCI address as sysfs writes it."""


def add(known: Iterable[FaultSeen], fault: Fault, seconds: float) -> list[FaultSeen]:
    """Return what is known of a GPU's errors after one more, the first MAX_FAULTS that matter."""
    return _first(_last([*known, FaultSeen(fault, seconds)]))


def recent(known: Iterable[FaultSeen], now_seconds: float) -> list[FaultSeen]:
    """Those that were seen within MAX_AGE_SECONDS."""
    return [each for each in known if now_seconds - each.last_seconds <= MAX_AGE_SECONDS]


def merged(sources: Iterable[FaultsByPci]) -> dict[str, list[FaultSeen]]:
    """What all sources tell, by address; what one knows by its number alone gives way to another's line of it."""
    found: dict[str, list[FaultSeen]] = {}
    for source in sources:
        for pci, seen in source.items():
            found.setdefault(pci, []).extend(seen)
    return {pci: _first(_told_best(_last(seen))) for pci, seen in found.items()}


def rows(faults: Iterable[GpuFault]) -> Metric:
    """Render."""
    shown = GPU_FAULT.rows()
    for each in faults:
        labels = (each.gpu, each.gpu_uuid, each.pci, *msgspec.structs.astuple(each.seen.fault))
        shown.add(labels, each.seen.last_seconds)
    return shown.metric


def _last(seen: Iterable[FaultSeen]) -> list[FaultSeen]:
    """Each error once, as it was seen last."""
    last: dict[Fault, float] = {}
    for each in seen:
        last[each.fault] = max(each.last_seconds, last.get(each.fault, each.last_seconds))
    return [FaultSeen(fault, seconds) for fault, seconds in last.items()]


def _first(seen: Iterable[FaultSeen]) -> list[FaultSeen]:
    """MAX_FAULTS at most. First gives way the oldest consequence, then what hurts a process alone, or is not fatal."""
    return sorted(seen, key=_worth, reverse=True)[:MAX_FAULTS]


def _told_best(seen: Sequence[FaultSeen]) -> list[FaultSeen]:
    """Without those of which nothing but the number is known where the same error's line is."""
    by_number = {each.fault for each in seen if each.fault == judge("nvidia", Told(each.fault.code)).fault}
    lines = {each.fault.code: each.last_seconds for each in sorted(seen, key=_age) if each.fault not in by_number}
    return [
        each
        for each in seen
        if each.fault not in by_number or each.last_seconds - lines.get(each.fault.code, float("-inf")) > SAME_SECONDS
    ]


def _age(seen: FaultSeen) -> float:
    return seen.last_seconds


def _worth(seen: FaultSeen) -> tuple[bool, bool, bool, float]:
    fault = seen.fault
    return fault.role == "root", fault.hurts != "process", fault.severity != "nonfatal", seen.last_seconds
