"""What a reading says of a GPU's health. Pure.

Levels are what the driver itself calls wrong. Votes are about what may pass: they count when they keep coming back
(exporters/nvml/windows.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.sdk.hardware import CheckState, Fault, Told, gpu_faults
from exporters.nvml.clocks import HARDWARE_SLOWDOWN
from exporters.nvml.nvlinks import fabric
from exporters.nvml.reading import GpuReading

BUSY_PERCENT = 10
"""A GPU that does less may let its PCIe link fall to a lower generation."""
MAX_REPLAYS_PER_MINUTE = 50.0
RECOVERY_NONE = 0
RECOVER_IMEX_DOMAIN = 5
"""A wish about an NVLink domain of many nodes, which a node that is in none need not grant."""
_COUNTERS = ("energy_millijoules", "ecc_corrected_volatile", "ecc_uncorrected_volatile")
SIGNS = (*_COUNTERS, "recovery_action")
"""Values by which a reset shows."""


def levels(reading: GpuReading) -> dict[str, CheckState]:
    """By check: what it found, as far as the driver tells."""
    values = reading.values
    found: dict[str, CheckState] = {}
    for check, names in {
        "gpu_ecc_uncorrectable": ("ecc_uncorrected_volatile",),
        "gpu_row_remap_failed": ("row_remap_failed",),
        "gpu_row_remap_pending": ("row_remap_pending", "page_retirement_pending"),
    }.items():
        told = [values[name] for name in names if name in values]
        if told:
            found[check] = CheckState.of(not any(told))
    if "recovery_action" in values:
        wanted = values["recovery_action"] != RECOVERY_NONE
        is_ours = values["recovery_action"] != RECOVER_IMEX_DOMAIN or fabric.is_of_domain(reading.fabric)
        found["gpu_recovery_action"] = CheckState.of(not (wanted and is_ours))
    if reading.fabric is not None:
        found["gpu_fabric"] = CheckState.of(fabric.is_well(reading.fabric))
    return found


def votes(
    reading: GpuReading, before: GpuReading | None, elapsed_seconds: float, hot_celsius: float
) -> dict[str, bool]:
    """By check: whether something is amiss now, as far as it is known."""
    values = reading.values
    found: dict[str, bool] = {}
    if reading.reasons is not None:
        found["gpu_slowdown"] = bool(reading.reasons & HARDWARE_SLOWDOWN)
    if "temperature_celsius" in values:
        found["gpu_hot"] = values["temperature_celsius"] >= hot_celsius
    degraded = _pcie_degraded(values)
    if degraded is not None:
        found["pcie_degraded"] = degraded
    if before is not None and elapsed_seconds > 0 and {"pcie_replays"} <= values.keys() & before.values.keys():
        replays = values["pcie_replays"] - before.values["pcie_replays"]
        found["pcie_errors"] = replays * 60 / elapsed_seconds > MAX_REPLAYS_PER_MINUTE
    return found


def xid_check(xid: int) -> str:
    """The check that an Xid fails by its number alone; empty where it takes the log's line to say so."""
    return gpu_faults.judge("nvidia", Told(str(xid))).check


def xid_meaning(xid: str) -> Fault:
    """What an Xid means by its number alone."""
    return gpu_faults.judge("nvidia", Told(xid)).fault


def was_reset(reading: GpuReading, before: Mapping[str, int]) -> bool:
    """True when what only a reset or a new driver takes back has fallen, or the driver's wish for a reset is granted.

    ``before``: the SIGNS of an earlier look.
    """
    values = reading.values
    fell = any(values[name] < before[name] for name in _COUNTERS if name in values and name in before)
    granted = before.get("recovery_action", RECOVERY_NONE) != RECOVERY_NONE == values.get("recovery_action")
    return fell or granted


def _pcie_degraded(values: Mapping[str, int]) -> bool | None:
    """Fewer lanes than there could be, or, while the GPU is busy, slower ones; None when neither can be told."""
    if {"pcie_width", "pcie_max_width"} <= values.keys() and values["pcie_width"] < values["pcie_max_width"]:
        return True
    busy = values.get("gpu_utilization_percent", 0) >= BUSY_PERCENT
    if busy and {"pcie_generation", "pcie_max_generation"} <= values.keys():
        return values["pcie_generation"] < values["pcie_max_generation"]
    return None
