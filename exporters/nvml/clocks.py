"""Why the driver lowers a GPU's clocks (nvml.h: clocks event reasons): the reasons now, and seconds of each reason.

Pure except for the sums.
"""

from __future__ import annotations

from exporters.nvml.reading import GpuReading

IDLE = "gpu_idle"
SETTINGS = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons that an administrator's settings cause; most nodes have no such setting."""
REASONS = {
    0x1: IDLE,
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
"""The hardware itself lowers the clocks, by half or more: because of heat, or the power supply's brake signal."""
MAX_ELAPSED_SECONDS = 60.0
"""A longer time between two looks is not counted: the state between them is unknown."""
NANOSECONDS_PER_SECOND = 10**9


def active(reading: GpuReading) -> dict[str, bool]:
    """Return, by reason that this GPU supports, whether it is active; empty when the driver reports no reasons."""
    if reading.reasons is None:
        return {}
    supported = reading.supported_reasons if reading.supported_reasons is not None else sum(REASONS)
    return {name: bool(reading.reasons & bit) for bit, name in REASONS.items() if supported & bit}


def is_shown(reason: str, seconds: float) -> bool:
    """Return whether a reason has a series: idleness never, a setting after it was active once, all others always."""
    return not (reason == IDLE or (reason in SETTINGS and not seconds))


class ReasonSeconds:
    """How long each reason was active on one GPU, in seconds.

    The driver's own count is used if it has one. Otherwise the time between two looks counts when the reason is active
    at the second look. The first look decides between the two methods: a later switch would make the counter jump.
    """

    def __init__(self) -> None:
        self._by_driver: dict[str, bool] = {}
        self._summed: dict[str, float] = {}

    def add(self, reading: GpuReading, elapsed_seconds: float) -> dict[str, float]:
        """Add a look and return the known seconds by reason.

        ``elapsed_seconds``: the time since the previous look, 0 for the first one.
        """
        now = active(reading)
        counted = reading.reason_nanoseconds
        for reason in {*now, *counted} - self._by_driver.keys():
            self._by_driver[reason] = reason in counted
        for reason, holds in now.items():
            if not self._by_driver[reason]:
                elapsed = elapsed_seconds if holds and elapsed_seconds <= MAX_ELAPSED_SECONDS else 0.0
                self._summed[reason] = self._summed.get(reason, 0.0) + elapsed
        by_driver = {reason: value / NANOSECONDS_PER_SECOND for reason, value in counted.items() if 0 <= value < 2**63}
        return by_driver | self._summed
