"""The numeric values of a GPU: their names in the helper's answer, their metrics, and their greatest plausible values.

Pure. An implausible number is dropped: drivers return 4294967295 for an unknown number.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from agent.sdk.hardware import gpu_families
from agent.sdk.metrics import Family

Number = TypeVar("Number", int, float)

# fmt: off
NVLINK_BYTES = gpu_families.counter("rankwatch_nvlink_data_bytes_total",
    "Data sent or received over all NVLinks of the GPU, without protocol overhead, by direction (transmit or receive).",
    "2 per GPU", "direction")
# fmt: on


class Field(NamedTuple):
    """A number with a metric: the metric is the number times ``times``, divided by ``per``.

    ``most``: the greatest plausible number, in the driver's unit. ``labels``: the label values after the GPU's.
    """

    family: Family
    most: int
    labels: tuple[str, ...] = ()
    times: int = 1
    per: int = 1


_BYTES = 2**50
_COUNT = 2**32 - 2
_LONG_COUNT = 2**62
_FLAG = 1

FIELDS: Mapping[str, Field] = {
    "gpu_utilization_percent": Field(gpu_families.UTILIZATION, 100, per=100),
    "memory_total_bytes": Field(gpu_families.MEMORY, _BYTES),
    "memory_used_bytes": Field(gpu_families.MEMORY_USED, _BYTES),
    "power_milliwatts": Field(gpu_families.POWER, 10_000_000, per=1000),
    "power_limit_milliwatts": Field(gpu_families.POWER_LIMIT, 10_000_000, per=1000),
    "temperature_celsius": Field(gpu_families.TEMPERATURE, 250, ("core",)),
    "memory_temperature_celsius": Field(gpu_families.TEMPERATURE, 250, ("memory",)),
    "sm_clock_megahertz": Field(gpu_families.SM_CLOCK, 20_000, times=1_000_000),
    "ecc_corrected_volatile": Field(gpu_families.ECC_ERRORS, _LONG_COUNT, ("corrected", "volatile")),
    "ecc_uncorrected_volatile": Field(gpu_families.ECC_ERRORS, _LONG_COUNT, ("uncorrected", "volatile")),
    "pcie_replays": Field(gpu_families.PCIE_REPLAYS, _COUNT),
    "nvlink_transmit_kibibytes": Field(NVLINK_BYTES, _LONG_COUNT, ("transmit",), times=1024),
    "nvlink_receive_kibibytes": Field(NVLINK_BYTES, _LONG_COUNT, ("receive",), times=1024),
    "sm_active_percent": Field(gpu_families.ACTIVE, 100, ("sm",), per=100),
    "tensor_active_percent": Field(gpu_families.ACTIVE, 100, ("tensor",), per=100),
    "dram_active_percent": Field(gpu_families.ACTIVE, 100, ("dram",), per=100),
}
FAMILIES = tuple(dict.fromkeys(field.family for field in FIELDS.values()))
JUDGED: Mapping[str, int] = {
    "energy_millijoules": _LONG_COUNT,
    "recovery_action": 99,
    "row_remap_pending": _FLAG,
    "row_remap_failed": _FLAG,
    "page_retirement_pending": _FLAG,
    "pcie_generation": 16,
    "pcie_max_generation": 16,
    "pcie_width": 64,
    "pcie_max_width": 64,
    "mig_enabled": _FLAG,
}
"""The greatest plausible value of each number that only checks read."""
_MOST = {**JUDGED, **{name: field.most for name, field in FIELDS.items()}}


def plausible(values: Mapping[str, Number]) -> dict[str, Number]:
    """Return the plausible values of a GPU. NaN and a name that this module does not list are not plausible."""
    return {name: value for name, value in values.items() if 0 <= value <= _MOST.get(name, -1)}
