"""Renders a snapshot as metric families: the families of all GPU makers, and AMD's own. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family, Metric, Rows
from exporters.amdgpu.baseline import View

# fmt: off
RAS_ERRORS = gpu_families.counter("rankwatch_gpu_ras_errors_total",
    "Hardware errors of AMD GPUs since the driver was loaded, by type (uncorrected, corrected or deferred) and block: "
    "umc is the memory, xgmi_wafl the links between GPUs.",
    "2 to 3 per GPU and block", "block", "type")
# fmt: on
_NUMBERS = {
    "busy_percent": (gpu_families.UTILIZATION, 0.01, ()),
    "memory_bytes": (gpu_families.MEMORY, 1.0, ()),
    "memory_used_bytes": (gpu_families.MEMORY_USED, 1.0, ()),
    "pcie_replays": (gpu_families.PCIE_REPLAYS, 1.0, ()),
    "temp/junction/input": (gpu_families.TEMPERATURE, 1e-3, ("core",)),
    "temp/mem/input": (gpu_families.TEMPERATURE, 1e-3, ("memory",)),
    "power/ppt/average": (gpu_families.POWER, 1e-6, ()),
    "power/ppt/input": (gpu_families.POWER, 1e-6, ()),
    "power/ppt/cap": (gpu_families.POWER_LIMIT, 1e-6, ()),
    "freq/sclk/input": (gpu_families.SM_CLOCK, 1.0, ()),
}
"""Maps values and sensors to family, factor to its unit, and further labels. A series has the first present value."""
_TYPES = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
FAMILIES = (
    gpu_families.PRESENT,
    gpu_families.INFO,
    gpu_families.DRIVER_INFO,
    gpu_families.PROCESSES,
    gpu_families.ECC_ERRORS,
    gpu_families.CLOCKS_SECONDS,
    *dict.fromkeys(family for family, _, _ in _NUMBERS.values()),
    gpu_families.ACTIVE,
    RAS_ERRORS,
)


class AmdgpuSnapshot(msgspec.Struct, frozen=True):
    """``users``: PCI addresses by pid. ``lowered_seconds``: seconds of lowered clocks, by PCI address and reason.

    ``memory_active``: by PCI address, the used share (0 to 1) of the memory bandwidth between the last two polls.
    ``versions``: the versions of the driver and of ROCm.
    """

    gpus: tuple[View, ...]
    users: dict[int, list[str]]
    lowered_seconds: dict[str, dict[str, float]] = {}
    memory_active: dict[str, float] = {}
    versions: tuple[str, str] = ("", "")


def render(snapshot: AmdgpuSnapshot) -> Iterable[Metric]:
    """Return the metric families of a snapshot."""
    rows = {family: family.rows() for family in FAMILIES}
    driver, rocm = snapshot.versions
    if driver or rocm:
        rows[gpu_families.DRIVER_INFO].add((driver, "", rocm), 1)
    for gpu in snapshot.gpus:
        labels = (str(gpu.index), gpu.known.uuid)
        rows[gpu_families.PRESENT].add(labels, float(gpu.raw is not None))
        rows[gpu_families.INFO].add((*labels, gpu.pci, gpu.known.name), 1)
        if gpu.raw is None:
            continue
        rows[gpu_families.PROCESSES].add(labels, sum(gpu.pci in used for used in snapshot.users.values()))
        _numbers(rows, labels, gpu.raw.values | gpu.raw.sensors)
        _errors(rows, labels, gpu.raw.errors)
        for reason, seconds in snapshot.lowered_seconds.get(gpu.pci, {}).items():
            rows[gpu_families.CLOCKS_SECONDS].add((*labels, reason), seconds)
        if gpu.pci in snapshot.memory_active:
            rows[gpu_families.ACTIVE].add((*labels, "dram"), snapshot.memory_active[gpu.pci])
    return [row.metric for row in rows.values()]


def _numbers(rows: Mapping[Family, Rows], labels: tuple[str, str], values: Mapping[str, float]) -> None:
    shown: dict[tuple[Family, tuple[str, ...]], float] = {}
    for name, (family, factor, further) in _NUMBERS.items():
        if name in values:
            shown.setdefault((family, further), values[name] * factor)
    for (family, further), number in shown.items():
        rows[family].add((*labels, *further), number)


def _errors(rows: Mapping[Family, Rows], labels: tuple[str, str], errors: Mapping[str, Mapping[str, int]]) -> None:
    for block, counts in errors.items():
        for kind, count in counts.items():
            rows[RAS_ERRORS].add((*labels, block, _TYPES[kind]), count)
    for kind, count in errors.get("umc", {}).items():
        if kind != "de":
            rows[gpu_families.ECC_ERRORS].add((*labels, _TYPES[kind], "volatile"), count)
