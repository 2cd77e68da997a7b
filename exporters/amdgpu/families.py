"""A snapshot as metric families: those that GPUs of every maker have, and AMD's own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family, Metric, Rows
from exporters.amdgpu.baseline import View
from exporters.amdgpu.metrics_table import Table
from exporters.amdgpu.tree import RawGpu

GPU_LABELS = gpu_families.GPU_LABELS

RAS_ERRORS = Family(
    "rankwatch_gpu_ras_errors_total",
    "counter",
    "Hardware errors of AMD's GPUs since the driver was loaded, by block (umc is the memory, xgmi_wafl the links "
    "between GPUs) and type: uncorrected, corrected or deferred.",
    (*GPU_LABELS, "block", "type"),
    "2 to 3 per GPU and block",
)
XGMI_INFO = Family(
    "rankwatch_gpu_xgmi_info",
    "gauge",
    "Always 1: the XGMI hive that the GPU belongs to, where it does.",
    (*GPU_LABELS, "hive"),
    "1 per GPU of a hive",
)
XGMI_LINKS_UP = Family(
    "rankwatch_gpu_xgmi_links_up",
    "gauge",
    "XGMI links of the GPU that are up; of GPUs that tell (tables of version 1.7 and later).",
    GPU_LABELS,
    "1 per GPU that tells",
)
XGMI_LINK_UP = Family(
    "rankwatch_gpu_xgmi_link_up",
    "gauge",
    "0 while the XGMI link is down, of those that were up at some time since boot; 1 only with all_values.",
    (*GPU_LABELS, "link"),
    "1 per XGMI link that is down, or up to 8 per GPU with all_values",
)
EDGE_TEMPERATURE = Family(
    "rankwatch_gpu_edge_temperature_celsius",
    "gauge",
    "Temperature at the edge of AMD's GPU, cooler than its hottest spot.",
    GPU_LABELS,
    "1 per GPU, only with all_values",
)
PCIE_RECOVERIES = Family(
    "rankwatch_gpu_pcie_recoveries_total",
    "counter",
    "Times that the PCIe link of AMD's GPU left its working state (L0) to recover; of tables of version 1.6 and later.",
    GPU_LABELS,
    "1 per GPU, only with all_values",
)
PCIE_NAKS = Family(
    "rankwatch_gpu_pcie_naks_total",
    "counter",
    "PCIe packets that AMD's GPU refused (transmit) or had refused (receive); of tables of version 1.6 and later.",
    (*GPU_LABELS, "direction"),
    "2 per GPU, only with all_values",
)
VBIOS_INFO = Family(
    "rankwatch_gpu_vbios_info",
    "gauge",
    "Always 1: the version of the video BIOS of AMD's GPU.",
    (*GPU_LABELS, "vbios"),
    "1 per GPU, only with all_values",
)
FIRMWARE_INFO = Family(
    "rankwatch_gpu_firmware_info",
    "gauge",
    "Always 1: the version of a firmware of AMD's GPU, by the part that runs it (smc, sos, mec, ta_xgmi ...).",
    (*GPU_LABELS, "firmware", "version"),
    "up to 25 per GPU, only with all_values",
)
ROCM_INFO = Family(
    "rankwatch_rocm_info",
    "gauge",
    "Always 1: the version of ROCm that is installed on the node.",
    ("version",),
    "1",
)
_DETAILS = gpu_families.DETAILS | {EDGE_TEMPERATURE, PCIE_RECOVERIES, PCIE_NAKS, VBIOS_INFO, FIRMWARE_INFO}


class _Value(NamedTuple):
    """A family, and what the driver's number is multiplied with."""

    family: Family
    scale: float


_VALUES = {
    "busy_percent": _Value(gpu_families.UTILIZATION, 0.01),
    "memory_busy_percent": _Value(gpu_families.MEMORY_UTILIZATION, 0.01),
    "memory_bytes": _Value(gpu_families.MEMORY, 1.0),
    "memory_used_bytes": _Value(gpu_families.MEMORY_USED, 1.0),
    "pcie_replays": _Value(gpu_families.PCIE_REPLAYS, 1.0),
    "pcie_width": _Value(gpu_families.PCIE_WIDTH, 1.0),
    "pcie_max_width": _Value(gpu_families.PCIE_WIDTH_MAX, 1.0),
    "pcie_generation": _Value(gpu_families.PCIE_GENERATION, 1.0),
    "pcie_max_generation": _Value(gpu_families.PCIE_GENERATION_MAX, 1.0),
}
_SENSORS = {
    "temp/junction/input": _Value(gpu_families.TEMPERATURE, 1e-3),
    "temp/junction/crit": _Value(gpu_families.TEMPERATURE_SLOWDOWN, 1e-3),
    "temp/junction/emergency": _Value(gpu_families.TEMPERATURE_SHUTDOWN, 1e-3),
    "temp/mem/input": _Value(gpu_families.MEMORY_TEMPERATURE, 1e-3),
    "temp/edge/input": _Value(EDGE_TEMPERATURE, 1e-3),
    "power/ppt/average": _Value(gpu_families.POWER, 1e-6),
    "power/ppt/input": _Value(gpu_families.POWER, 1e-6),
    "power/ppt/cap": _Value(gpu_families.POWER_LIMIT, 1e-6),
    "freq/sclk/input": _Value(gpu_families.SM_CLOCK, 1.0),
    "freq/mclk/input": _Value(gpu_families.MEMORY_CLOCK, 1.0),
}
_TYPES = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
FAMILIES = (
    gpu_families.PRESENT,
    gpu_families.INFO,
    gpu_families.DRIVER_INFO,
    gpu_families.PROCESSES,
    gpu_families.ECC_ERRORS,
    gpu_families.ENERGY,
    gpu_families.CLOCKS_SECONDS,
    *dict.fromkeys(value.family for value in (*_VALUES.values(), *_SENSORS.values())),
    gpu_families.DRAM_ACTIVE,
    PCIE_RECOVERIES,
    PCIE_NAKS,
    VBIOS_INFO,
    FIRMWARE_INFO,
    ROCM_INFO,
    RAS_ERRORS,
    XGMI_INFO,
    XGMI_LINKS_UP,
    XGMI_LINK_UP,
)


class AmdgpuSnapshot(msgspec.Struct, frozen=True):
    """What ``render`` needs; ``users``: PCI addresses by pid; ``lowered_seconds``: by address and reason;
    ``memory_active``: the share of the memory's bandwidth that was used between the last two looks, by address.

    ``all_values``: every number, also what neither rules nor dashboards ask for. ``driver``: its version, empty where
    it has none of its own. ``rocm``: the version of the node's ROCm, empty without one.
    """

    gpus: tuple[View, ...]
    users: dict[int, list[str]]
    lowered_seconds: dict[str, dict[str, float]] = {}
    memory_active: dict[str, float] = {}
    all_values: bool = False
    driver: str = ""
    rocm: str = ""


def render(snapshot: AmdgpuSnapshot) -> Iterable[Metric]:
    """The families of a snapshot."""
    rows = {family.name: family.rows() for family in FAMILIES}
    if snapshot.driver:
        rows[gpu_families.DRIVER_INFO.name].add((snapshot.driver, ""), 1)
    if snapshot.rocm:
        rows[ROCM_INFO.name].add((snapshot.rocm,), 1)
    for gpu in snapshot.gpus:
        labels = (str(gpu.index), gpu.known.uuid)
        rows[gpu_families.PRESENT.name].add(labels, float(gpu.raw is not None))
        rows[gpu_families.INFO.name].add((*labels, gpu.pci, gpu.known.name), 1)
        if gpu.raw is not None:
            users = sum(gpu.pci in used for used in snapshot.users.values())
            rows[gpu_families.PROCESSES.name].add(labels, users)
            _numbers(rows, labels, gpu)
            _versions(rows, labels, gpu.raw)
            _errors(rows, labels, gpu.raw.errors)
            if gpu.raw.table is not None:
                _table(rows, labels, gpu.raw.table)
            for reason, seconds in snapshot.lowered_seconds.get(gpu.pci, {}).items():
                rows[gpu_families.CLOCKS_SECONDS.name].add((*labels, reason), seconds)
            if gpu.pci in snapshot.memory_active:
                rows[gpu_families.DRAM_ACTIVE.name].add(labels, snapshot.memory_active[gpu.pci])
            if gpu.raw.hive:
                rows[XGMI_INFO.name].add((*labels, gpu.raw.hive), 1)
            _links(rows, labels, gpu.links, all_values=snapshot.all_values)
    hidden = frozenset() if snapshot.all_values else _DETAILS
    return [found.metric for found in rows.values() if found.metric.family not in hidden]


def _versions(rows: Mapping[str, Rows], labels: tuple[str, str], raw: RawGpu) -> None:
    if raw.vbios:
        rows[VBIOS_INFO.name].add((*labels, raw.vbios), 1)
    for part, version in raw.firmware.items():
        rows[FIRMWARE_INFO.name].add((*labels, part, version), 1)


def _numbers(rows: Mapping[str, Rows], labels: tuple[str, str], gpu: View) -> None:
    shown: dict[str, float] = {}  # a power that is averaged and measured is one
    told = gpu.raw.values | gpu.raw.sensors if gpu.raw is not None else {}
    for name, value in (_VALUES | _SENSORS).items():
        if name in told:
            shown.setdefault(value.family.name, told[name] * value.scale)
    for family, number in shown.items():
        rows[family].add(labels, number)


def _table(rows: Mapping[str, Rows], labels: tuple[str, str], table: Table) -> None:
    if table.energy_joules is not None:
        rows[gpu_families.ENERGY.name].add(labels, table.energy_joules)
    if table.pcie_recoveries is not None:
        rows[PCIE_RECOVERIES.name].add(labels, table.pcie_recoveries)
    for direction, count in table.pcie_naks.items():
        rows[PCIE_NAKS.name].add((*labels, direction), count)


def _links(rows: Mapping[str, Rows], labels: tuple[str, str], links: Mapping[int, bool], *, all_values: bool) -> None:
    if links:
        rows[XGMI_LINKS_UP.name].add(labels, sum(links.values()))
    for number, up in links.items():
        if all_values or not up:
            rows[XGMI_LINK_UP.name].add((*labels, str(number)), float(up))


def _errors(rows: Mapping[str, Rows], labels: tuple[str, str], errors: Mapping[str, Mapping[str, int]]) -> None:
    for block, counts in errors.items():
        for kind, count in counts.items():
            rows[RAS_ERRORS.name].add((*labels, block, _TYPES[kind]), count)
    for kind, count in errors.get("umc", {}).items():
        if kind != "de":
            rows[gpu_families.ECC_ERRORS.name].add((*labels, _TYPES[kind], "volatile"), count)
