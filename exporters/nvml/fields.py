"""The plain numbers of a GPU: what each is called in the driver's answer and as a metric, and what is believed of it.

Pure. A number that cannot be is dropped: drivers say 4294967295 for what they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family

Number = TypeVar("Number", int, float)

GPU_LABELS = gpu_families.GPU_LABELS
_PER_GPU = "1 per GPU"

_IF_IT_HOLDS = "1 per GPU where it holds, or with all_values"

MEMORY_RESERVED = gpu_families.detail(
    "rankwatch_gpu_memory_reserved_bytes", "Memory of the GPU that driver and firmware keep."
)
MEMORY_TEMPERATURE_MAX = gpu_families.detail(
    "rankwatch_gpu_memory_temperature_max_celsius", "Temperature of the memory above which the clocks are lowered."
)
SM_CLOCK_MAX = gpu_families.detail(
    "rankwatch_gpu_sm_clock_max_hertz", "Highest clock of the streaming multiprocessors."
)
MEMORY_CLOCK_MAX = gpu_families.detail("rankwatch_gpu_memory_clock_max_hertz", "Highest clock of the memory.")
REMAPPED_ROWS = Family(
    "rankwatch_gpu_remapped_rows_total",
    "counter",
    "Rows of memory that were replaced by spare ones over the GPU's life, by what showed them to be bad: corrected or "
    "uncorrected errors; 0 only with all_values.",
    (*GPU_LABELS, "cause"),
    "up to 2 per GPU with such rows, or 2 per GPU with all_values",
)
ROW_REMAP_PENDING = gpu_families.gauge(
    "rankwatch_gpu_row_remap_pending",
    "1 while rows wait for the next reset of the GPU to be replaced; 0 only with all_values.",
    _IF_IT_HOLDS,
)
ROW_REMAP_FAILED = gpu_families.gauge(
    "rankwatch_gpu_row_remap_failed",
    "1 when a row could not be replaced: the GPU is to be exchanged; 0 only with all_values.",
    _IF_IT_HOLDS,
)
RETIRED_PAGES = Family(
    "rankwatch_gpu_retired_pages_total",
    "counter",
    "Pages of memory taken out of use over the GPU's life (before Ampere), by what showed them to be bad: single_bit "
    "or double_bit errors; 0 only with all_values.",
    (*GPU_LABELS, "cause"),
    "up to 2 per GPU with such pages, or 2 per GPU with all_values",
)
PAGE_RETIREMENT_PENDING = gpu_families.gauge(
    "rankwatch_gpu_page_retirement_pending",
    "1 while pages wait for the next reset of the GPU to be taken out of use; 0 only with all_values.",
    _IF_IT_HOLDS,
)
PCIE_THROUGHPUT = Family(
    "rankwatch_gpu_pcie_throughput_bytes_per_second",
    "gauge",
    "PCIe traffic over the driver's last 20 ms, seen from the GPU: direction transmit or receive; only where the "
    "configuration asks for it.",
    (*GPU_LABELS, "direction"),
    "2 per GPU, if asked for",
)
NVLINK_BYTES = Family(
    "rankwatch_nvlink_data_bytes_total",
    "counter",
    "Data over all NVLinks of the GPU, without the protocol's own, by direction (transmit or receive).",
    (*GPU_LABELS, "direction"),
    "2 per GPU",
)
PCIE_TRANSMITTED = gpu_families.detail(
    "rankwatch_gpu_pcie_transmitted_bytes_per_second",
    "Data that the GPU sent over PCIe, mean of the time between the last two looks; from Hopper on.",
)
PCIE_RECEIVED = gpu_families.detail(
    "rankwatch_gpu_pcie_received_bytes_per_second",
    "Data that the GPU received over PCIe, mean of the time between the last two looks; from Hopper on.",
)
NVLINK_TRANSMITTED = gpu_families.detail(
    "rankwatch_gpu_nvlink_transmitted_bytes_per_second",
    "Data that the GPU sent over all its NVLinks, mean of the time between the last two looks; from Hopper on.",
)
NVLINK_RECEIVED = gpu_families.detail(
    "rankwatch_gpu_nvlink_received_bytes_per_second",
    "Data that the GPU received over all its NVLinks, mean of the time between the last two looks; from Hopper on.",
)
MIG_ENABLED = gpu_families.gauge(
    "rankwatch_gpu_mig_enabled",
    "1 while the GPU is partitioned (MIG); 0 only with all_values, and only where it could be.",
    _IF_IT_HOLDS,
)


class Shown(Enum):
    """When a number has a series where the configuration does not ask for all_values."""

    ALWAYS = "always"
    NOT_ZERO = "not zero"
    NEVER = "never"


_TRAFFIC = {PCIE_TRANSMITTED, PCIE_RECEIVED, NVLINK_TRANSMITTED, NVLINK_RECEIVED}
_LIMITS = {MEMORY_RESERVED, MEMORY_TEMPERATURE_MAX, SM_CLOCK_MAX, MEMORY_CLOCK_MAX}
_DETAILS = gpu_families.DETAILS | _LIMITS | _TRAFFIC


class Field(NamedTuple):
    """``labels``: those after the GPU's. A value in the driver's unit is from 0 to ``most``."""

    family: Family
    most: int
    labels: tuple[str, ...] = ()
    times: int = 1
    per: int = 1
    shown: Shown = Shown.ALWAYS

    def is_shown(self, value: float, *, all_values: bool) -> bool:
        """Whether it has a series."""
        if self.shown is Shown.NOT_ZERO:
            return all_values or value != 0
        return all_values or (self.shown is Shown.ALWAYS and self.family not in _DETAILS)

    def in_base_units(self, value: float) -> float:
        """The value as the metric has it."""
        return value * self.times / self.per


_PERCENT, _FLAG, _CELSIUS, _MEGAHERTZ = 100, 1, 250, 20_000
_MILLIWATTS = 10_000_000
_BYTES = 2**50
_COUNT = 2**32 - 2
_MEBIBYTES = 2**24
_LONG_COUNT = 2**62

FIELDS: Mapping[str, Field] = {
    "gpu_utilization_percent": Field(gpu_families.UTILIZATION, _PERCENT, per=100),
    "memory_utilization_percent": Field(gpu_families.MEMORY_UTILIZATION, _PERCENT, per=100),
    "memory_total_bytes": Field(gpu_families.MEMORY, _BYTES),
    "memory_used_bytes": Field(gpu_families.MEMORY_USED, _BYTES),
    "memory_reserved_bytes": Field(MEMORY_RESERVED, _BYTES),
    "power_milliwatts": Field(gpu_families.POWER, _MILLIWATTS, per=1000),
    "power_limit_milliwatts": Field(gpu_families.POWER_LIMIT, _MILLIWATTS, per=1000),
    "energy_millijoules": Field(gpu_families.ENERGY, _LONG_COUNT, per=1000),
    "temperature_celsius": Field(gpu_families.TEMPERATURE, _CELSIUS),
    "memory_temperature_celsius": Field(gpu_families.MEMORY_TEMPERATURE, _CELSIUS),
    "slowdown_celsius": Field(gpu_families.TEMPERATURE_SLOWDOWN, _CELSIUS),
    "shutdown_celsius": Field(gpu_families.TEMPERATURE_SHUTDOWN, _CELSIUS),
    "memory_max_celsius": Field(MEMORY_TEMPERATURE_MAX, _CELSIUS),
    "sm_clock_megahertz": Field(gpu_families.SM_CLOCK, _MEGAHERTZ, times=1_000_000),
    "memory_clock_megahertz": Field(gpu_families.MEMORY_CLOCK, _MEGAHERTZ, times=1_000_000),
    "sm_clock_max_megahertz": Field(SM_CLOCK_MAX, _MEGAHERTZ, times=1_000_000),
    "memory_clock_max_megahertz": Field(MEMORY_CLOCK_MAX, _MEGAHERTZ, times=1_000_000),
    "ecc_corrected_volatile": Field(gpu_families.ECC_ERRORS, _LONG_COUNT, ("corrected", "volatile")),
    "ecc_uncorrected_volatile": Field(gpu_families.ECC_ERRORS, _LONG_COUNT, ("uncorrected", "volatile")),
    "ecc_corrected_aggregate": Field(
        gpu_families.ECC_ERRORS, _LONG_COUNT, ("corrected", "aggregate"), shown=Shown.NEVER
    ),
    "ecc_uncorrected_aggregate": Field(
        gpu_families.ECC_ERRORS, _LONG_COUNT, ("uncorrected", "aggregate"), shown=Shown.NEVER
    ),
    "rows_remapped_corrected": Field(REMAPPED_ROWS, _COUNT, ("corrected",), shown=Shown.NOT_ZERO),
    "rows_remapped_uncorrected": Field(REMAPPED_ROWS, _COUNT, ("uncorrected",), shown=Shown.NOT_ZERO),
    "row_remap_pending": Field(ROW_REMAP_PENDING, _FLAG, shown=Shown.NOT_ZERO),
    "row_remap_failed": Field(ROW_REMAP_FAILED, _FLAG, shown=Shown.NOT_ZERO),
    "pages_retired_single_bit": Field(RETIRED_PAGES, _COUNT, ("single_bit",), shown=Shown.NOT_ZERO),
    "pages_retired_double_bit": Field(RETIRED_PAGES, _COUNT, ("double_bit",), shown=Shown.NOT_ZERO),
    "page_retirement_pending": Field(PAGE_RETIREMENT_PENDING, _FLAG, shown=Shown.NOT_ZERO),
    "pcie_generation": Field(gpu_families.PCIE_GENERATION, 16),
    "pcie_max_generation": Field(gpu_families.PCIE_GENERATION_MAX, 16),
    "pcie_width": Field(gpu_families.PCIE_WIDTH, 64),
    "pcie_max_width": Field(gpu_families.PCIE_WIDTH_MAX, 64),
    "pcie_replays": Field(gpu_families.PCIE_REPLAYS, _COUNT),
    "pcie_transmit_kilobytes_per_second": Field(PCIE_THROUGHPUT, _COUNT, ("transmit",), times=1000),
    "pcie_receive_kilobytes_per_second": Field(PCIE_THROUGHPUT, _COUNT, ("receive",), times=1000),
    "nvlink_transmit_kibibytes": Field(NVLINK_BYTES, _LONG_COUNT, ("transmit",), times=1024),
    "nvlink_receive_kibibytes": Field(NVLINK_BYTES, _LONG_COUNT, ("receive",), times=1024),
    "sm_active_percent": Field(gpu_families.SM_ACTIVE, _PERCENT, per=100),
    "tensor_active_percent": Field(gpu_families.TENSOR_ACTIVE, _PERCENT, per=100),
    "dram_active_percent": Field(gpu_families.DRAM_ACTIVE, _PERCENT, per=100),
    "pcie_transmitted_mebibytes_per_second": Field(PCIE_TRANSMITTED, _MEBIBYTES, times=2**20),
    "pcie_received_mebibytes_per_second": Field(PCIE_RECEIVED, _MEBIBYTES, times=2**20),
    "nvlink_transmitted_mebibytes_per_second": Field(NVLINK_TRANSMITTED, _MEBIBYTES, times=2**20),
    "nvlink_received_mebibytes_per_second": Field(NVLINK_RECEIVED, _MEBIBYTES, times=2**20),
    "mig_enabled": Field(MIG_ENABLED, _FLAG, shown=Shown.NOT_ZERO),
}
FAMILIES = tuple(dict.fromkeys(field.family for field in FIELDS.values()))

MAX_RECOVERY_ACTION = 99
_JUDGED_ALONE = {"recovery_action": MAX_RECOVERY_ACTION}
"""Read as numbers, shown in another way: the greatest that is believed."""


def plausible(values: Mapping[str, Number]) -> dict[str, Number]:
    """What of a GPU's values can be; a fraction that is not a number cannot."""
    return {name: value for name, value in values.items() if 0 <= value <= _most(name)}


def _most(name: str) -> int:
    """The greatest value that is believed; of what has no name here none is."""
    return FIELDS[name].most if name in FIELDS else _JUDGED_ALONE.get(name, -1)
