"""Why a GPU's clocks are lowered (nvml.h: clocks event reasons), now and in seconds. Pure but for the sums."""

from __future__ import annotations

from exporters.nvml.reading import GpuReading

IDLE = "gpu_idle"
SETTINGS = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Settings of an administrator; most nodes never have one."""
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
"""The hardware itself lowers the clocks, by half or more: heat, or the power supply's brake."""
MAX_ELAPSED_SECONDS = 60.0
"""The time between two looks that are further apart is not counted: no one looked in between."""
NANOSECONDS_PER_SECOND = 10**9


def active(reading: GpuReading) -> dict[str, bool]:
    """Whether each reason that this GPU supports holds; empty where the driver gives none."""
    if reading.reasons is None:
        return {}
    supported = reading.supported_reasons if reading.supported_reasons is not None else sum(REASONS)
    return {name: bool(reading.reasons & bit) for bit, name in REASONS.items() if supported & bit}


def is_shown(reason: str, seconds: float) -> bool:
    """Whether a reason has a series: idleness never, a setting once it held, all others always."""
    return not (reason == IDLE or (reason in SETTINGS and not seconds))


class ReasonSeconds:
    """How long each reason held on one GPU.

    The driver's own count where it has one; else the time between looks at whose end the reason held. The first look
    decides between the two: a later change would be a jump.
    """

    def __init__(self) -> None:
        self._by_driver: dict[str, bool] = {}
        self._summed: dict[str, float] = {}

    def add(self, reading: GpuReading, elapsed_seconds: float) -> dict[str, float]:
        """Take a look, ``elapsed_seconds`` after the one before (0: the first); return the known seconds by reason."""
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
