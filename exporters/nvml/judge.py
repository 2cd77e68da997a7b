"""The health of a GPU: checks of one reading (levels), and checks over the last polls (votes, windows). Pure.

A level is a state that the driver itself reports. A vote is a condition that may be temporary: a check fails when more
than FLAGGED_LOOKS of the last LOOKS polls see the condition. The module also adds up for how long each reason lowers a
GPU's clocks (nvml.h: clocks event reasons).
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

import msgspec

from agent.sdk.hardware import CheckState
from exporters.nvml.reading import Fabric, GpuReading, Link

SETTINGS = frozenset({"applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Reasons that an administrator's settings cause; most nodes have no such setting."""
REASONS = {  # all reasons of nvml.h except 0x1 (the GPU is idle)
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
MAX_ELAPSED_SECONDS = 60.0  # A longer time between two polls is not counted: the state between them is unknown
NANOSECONDS_PER_SECOND = 10**9
BUSY_PERCENT = 10  # Below this utilization a GPU can lower the generation of its PCIe link to save power
MAX_REPLAYS_PER_MINUTE = 50.0
RECOVERY_NONE = 0
DRAIN_P2P = 3  # When the peer-to-peer traffic has ended, the driver requests another action, or none
RECOVER_IMEX_DOMAIN = 5  # An action for an NVLink domain of many nodes. A node outside a domain can ignore it.
LOOKS = 30
FLAGGED_LOOKS = 15  # A check fails when more than this many of the last LOOKS polls are flagged
_COUNTERS = ("energy_millijoules", "ecc_corrected_volatile", "ecc_uncorrected_volatile")
SIGNS = (*_COUNTERS, "recovery_action")  # Values that a reset changes
_LEVELS = {
    "gpu_ecc_uncorrectable": ("ecc_uncorrected_volatile",),
    "gpu_row_remap_failed": ("row_remap_failed",),
    "gpu_row_remap_pending": ("row_remap_pending", "page_retirement_pending"),
}
Key = TypeVar("Key")
COMPLETED = 3
_TRUE, _FALSE = 1, 2
_FAULTS = {0: _TRUE, 4: _TRUE}
"""Degraded bandwidth and unhealthy route: the shift of two bits in the health mask, and the value that is a fault.

The value 0 means "not supported". A route timeout or access timeout from which the fabric recovers is not a fault.
"""
_DOMAIN_FAULTS = {12: _FALSE, 14: _FALSE}
"""No partition, and fabric manager disconnected: faults only in a domain of many nodes (IMEX)."""
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_GOOD = 8, 0xF, 1
"""A value other than 0 and _CONFIGURATION_GOOD is an incorrect configuration, but only for a GPU in a domain."""


def active_reasons(reading: GpuReading) -> dict[str, bool]:
    """Return whether each reason that this GPU supports is active; empty when the driver reports no reasons."""
    if reading.reasons is None:
        return {}
    supported = reading.supported_reasons if reading.supported_reasons is not None else sum(REASONS)
    return {name: bool(reading.reasons & bit) for bit, name in REASONS.items() if supported & bit}


def is_shown(reason: str, seconds: float) -> bool:
    """Return whether a reason has a series. A setting has one only after it was active; others always have one."""
    return reason not in SETTINGS or seconds > 0


class ReasonSeconds:
    """How long each reason was active on one GPU, in seconds.

    If the driver reports this time, its value is used. Otherwise the time between two polls is added if the reason is
    active at the second poll. The first poll decides between the two methods: a later switch would make a jump.
    """

    def __init__(self) -> None:
        self._by_driver: dict[str, bool] = {}
        self._summed: dict[str, float] = {}

    def add(self, reading: GpuReading, elapsed_seconds: float) -> dict[str, float]:
        """Add a poll and return the known seconds by reason.

        ``elapsed_seconds``: the time since the previous poll, 0 for the first poll.
        """
        now = active_reasons(reading)
        counted = reading.reason_nanoseconds
        for reason in {*now, *counted} - self._by_driver.keys():
            self._by_driver[reason] = reason in counted
        for reason, is_active in now.items():
            if not self._by_driver[reason]:
                elapsed = elapsed_seconds if is_active and elapsed_seconds <= MAX_ELAPSED_SECONDS else 0.0
                self._summed[reason] = self._summed.get(reason, 0.0) + elapsed
        by_driver = {reason: value / NANOSECONDS_PER_SECOND for reason, value in counted.items() if 0 <= value < 2**63}
        return by_driver | self._summed


def levels(reading: GpuReading) -> dict[str, CheckState]:
    """Return the state of each check whose value the driver reports."""
    values = reading.values
    states: dict[str, CheckState] = {}
    for check, names in _LEVELS.items():
        known = [values[name] for name in names if name in values]
        if known:
            states[check] = CheckState.of(not any(known))
    if "recovery_action" in values:
        is_requested = values["recovery_action"] != RECOVERY_NONE
        applies = values["recovery_action"] != RECOVER_IMEX_DOMAIN or _is_in_domain(reading.fabric)
        states["gpu_recovery_action"] = CheckState.of(not (is_requested and applies))
    if reading.fabric is not None:
        states["gpu_fabric"] = CheckState.of(is_fabric_healthy(reading.fabric))
    return states


def votes(
    reading: GpuReading, before: GpuReading | None, elapsed_seconds: float, hot_celsius: float
) -> dict[str, bool]:
    """Return whether this poll is flagged, for each check with known values.

    ``elapsed_seconds``: the time since ``before``, the previous reading. ``hot_celsius``: see ``NvmlConfig``.
    """
    values = reading.values
    flagged: dict[str, bool] = {}
    if reading.reasons is not None:
        flagged["gpu_slowdown"] = bool(reading.reasons & HARDWARE_SLOWDOWN)
    if "temperature_celsius" in values:
        flagged["gpu_hot"] = values["temperature_celsius"] >= hot_celsius
    degraded = _pcie_degraded(values)
    if degraded is not None:
        flagged["pcie_degraded"] = degraded
    if before is not None and elapsed_seconds > 0 and "pcie_replays" in values and "pcie_replays" in before.values:
        replays = values["pcie_replays"] - before.values["pcie_replays"]
        flagged["pcie_errors"] = replays * 60 / elapsed_seconds > MAX_REPLAYS_PER_MINUTE
    return flagged


def was_reset(reading: GpuReading, before: Mapping[str, int]) -> bool:
    """Return True after a reset: a counter fell, or the driver no longer requests a reset or reboot.

    Only a reset or a newly loaded driver lowers these counters. ``before``: the SIGNS of an earlier poll.
    """
    values = reading.values
    fell = any(values[name] < before[name] for name in _COUNTERS if name in values and name in before)
    requested = before.get("recovery_action", RECOVERY_NONE) not in (RECOVERY_NONE, DRAIN_P2P, RECOVER_IMEX_DOMAIN)
    done = requested and values.get("recovery_action") == RECOVERY_NONE
    return fell or done


def _pcie_degraded(values: Mapping[str, int]) -> bool | None:
    """Return True for fewer lanes than possible or, on a busy GPU, a lower generation; None if idle or unknown."""
    if {"pcie_width", "pcie_max_width"} <= values.keys() and values["pcie_width"] < values["pcie_max_width"]:
        return True
    busy = values.get("gpu_utilization_percent", 0) >= BUSY_PERCENT
    if busy and {"pcie_generation", "pcie_max_generation"} <= values.keys():
        return values["pcie_generation"] < values["pcie_max_generation"]
    return None


# -- the NVLink fabric (nvml.h: GPU fabric info) -----------------------------------------------------------------------


def _is_in_domain(fabric: Fabric | None) -> bool:
    """Return True for a GPU in an NVLink domain, which can span nodes. A GPU outside a domain has no cluster UUID."""
    return fabric is not None and bool(fabric.cluster)


def is_fabric_healthy(fabric: Fabric) -> bool:
    """Return True when the GPU has joined the fabric and its health mask has no fault that applies to it."""
    mask, faults = fabric.health or 0, dict(_FAULTS)
    configuration = _CONFIGURATION_GOOD
    if _is_in_domain(fabric):
        faults |= _DOMAIN_FAULTS
        configuration = mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK
    faulty = any(mask >> shift & 3 == value for shift, value in faults.items())
    return fabric.state == COMPLETED and fabric.status == 0 and not faulty and configuration in (0, _CONFIGURATION_GOOD)


class Windows(Generic[Key]):
    """For each key, which of the last LOOKS polls were flagged."""

    def __init__(self) -> None:
        self._bits: dict[Key, int] = {}

    def add(self, key: Key, flagged: bool) -> None:
        """Add a poll."""
        self._bits[key] = (self._bits.get(key, 0) << 1 | flagged) & ((1 << LOOKS) - 1)

    def ratio(self, key: Key) -> float | None:
        """Return flagged polls divided by LOOKS, even when there were fewer polls; None before the first poll."""
        bits = self._bits.get(key)
        return None if bits is None else bits.bit_count() / LOOKS

    def states(self) -> dict[Key, CheckState]:
        """Return the state by key: FAILED while more than FLAGGED_LOOKS polls are flagged."""
        return {key: CheckState.of(bits.bit_count() <= FLAGGED_LOOKS) for key, bits in self._bits.items()}


ERROR_KINDS = ("replay", "recovery", "crc", "receive", "phy_retry")
MAX_COUNT = 2**62  # A greater error count of one link is not plausible


class LinksView(msgspec.Struct, frozen=True):
    """The links as rendered. ``up``: whether the link is up, for each link with a known state that was up before.

    ``errors``: errors on all links, by kind. ``flagged``: by link number, the share of the last polls with new errors.
    """

    up: dict[int, bool] = {}
    errors: dict[str, int] = {}
    flagged: dict[int, float] = {}


class NvLinks:
    """The links of one GPU. ``expected``: the numbers of the links that were up before.

    The error sums never fall: after a link restarts its counter, or does not answer, only new errors are added.
    """

    def __init__(self, expected: Collection[int] = ()) -> None:
        self.expected = set(expected)
        self._errors: Counter[str] = Counter()
        self._counted: dict[tuple[int, str], int] = {}
        self._windows: Windows[int] = Windows()
        self._before: Mapping[int, Mapping[str, int]] = {}

    def look(self, links: Collection[Link]) -> LinksView:
        """Add a poll and return the view of the links."""
        self.expected |= {link.number for link in links if link.up}
        errors = {link.number: _plausible(link.errors) for link in links}
        for number, now in errors.items():
            before = self._before.get(number)
            if before is not None and now:
                self._windows.add(number, any(value > before.get(kind, value) for kind, value in now.items()))
            for kind, value in now.items():
                counted = self._counted.get((number, kind), 0)
                self._errors[kind] += value - counted if value >= counted else value
                self._counted[number, kind] = value
        self._before = errors
        up = {link.number: link.up for link in links if link.up is not None and link.number in self.expected}
        ratios = {number: self._windows.ratio(number) for number in errors}
        flagged = {number: ratio for number, ratio in ratios.items() if ratio is not None}
        return LinksView(up, dict(self._errors), flagged)

    def forget_windows(self) -> None:
        """Drop the windows after a reset of the GPU, so that errors before it do not count any more."""
        self._windows = Windows()
        self._before = {}

    def checks(self, view: LinksView) -> dict[str, CheckState]:
        """Return the state of each check that has data."""
        states: dict[str, CheckState] = {}
        if view.up:
            states["nvlink_down"] = CheckState.of(all(view.up.values()))
        if view.flagged:
            levels = self._windows.states()
            states["nvlink_errors"] = CheckState.of(all(levels[number] is CheckState.OK for number in view.flagged))
        return states


def _plausible(errors: Mapping[str, int]) -> dict[str, int]:
    return {kind: value for kind, value in errors.items() if kind in ERROR_KINDS and 0 <= value <= MAX_COUNT}
