"""What lowers a GPU's clocks (nvml.h: clocks event reasons), now and for how long. Pure but for the sums."""

from __future__ import annotations

from collections.abc import Iterable

from exporters.nvml.reading import GpuReading

IDLE = "gpu_idle"
SETTINGS = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons that somebody chose, and most nodes never have."""
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
"""Longer between two looks, and nobody knows what was in between."""
NANOSECONDS_PER_SECOND = 10**9


def active(reading: GpuReading) -> dict[str, bool]:
    """Whether each reason that this GPU can tell holds; empty where it tells none."""
    if reading.reasons is None:
        return {}
    told = reading.supported_reasons if reading.supported_reasons is not None else sum(REASONS)
    return {name: bool(reading.reasons & bit) for bit, name in REASONS.items() if told & bit}


def is_shown(reason: str, seconds: float, *, all_values: bool) -> bool:
    """Whether a reason has a series: not that the GPU was idle, and of settings only those that held, if not asked."""
    return all_values or not (reason == IDLE or (reason in SETTINGS and not seconds))


class ReasonSeconds:
    """How long each reason held on one GPU.

    The driver's own count where it has one; else the time between looks at whose end the reason held. Which of the two
    it is is settled at the first look: a change would be a jump.
    """

    def __init__(self) -> None:
        self._by_driver: dict[str, bool] = {}
        self._summed: dict[str, float] = {}

    def add(self, reading: GpuReading, elapsed_seconds: float) -> dict[str, float]:
        """Take a look, so long after the one before (0: the first); return seconds by reason, as far as known."""
        now = active(reading)
        counted = reading.reason_nanoseconds
        for reason in self._new(now, counted):
            self._by_driver[reason] = reason in counted
        for reason, holds in now.items():
            if not self._by_driver[reason]:
                elapsed = elapsed_seconds if holds and elapsed_seconds <= MAX_ELAPSED_SECONDS else 0.0
                self._summed[reason] = self._summed.get(reason, 0.0) + elapsed
        by_driver = {reason: value / NANOSECONDS_PER_SECOND for reason, value in counted.items() if 0 <= value < 2**63}
        return by_driver | self._summed

    def _new(self, *found: Iterable[str]) -> set[str]:
        return {reason for each in found for reason in each} - self._by_driver.keys()
