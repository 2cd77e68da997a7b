"""NVML, the pure parts: what is believed of numbers, clocks, windows, fabric masks, links and health."""

from typing import Any

import msgspec
from hypothesis import given, strategies as st
from lent import well

from agent.sdk.hardware import CheckState
from exporters.nvml import judge
from exporters.nvml.fields import FIELDS, JUDGED, plausible
from exporters.nvml.judge import (
    FLAGGED_LOOKS,
    LOOKS,
    MAX_ELAPSED_SECONDS,
    REASONS,
    NvLinks,
    ReasonSeconds,
    Windows,
    active_reasons,
    is_fabric_healthy,
    is_shown,
)
from exporters.nvml.reading import Fabric, GpuReading, Link

HOT = 85.0


def reading(**values: int) -> GpuReading:
    """A GPU that says this."""
    return GpuReading(0, "GPU-a", values=values)


def test_the_greatest_value_of_a_number_is_believed_and_no_more() -> None:
    """The bound itself is believed, one more is not, nor is a driver's mark for a missing number."""
    bounds = JUDGED | {name: field.most for name, field in FIELDS.items()}
    for name, most in bounds.items():
        marks = [-1, 2**64 - 1, *([2**32 - 1] if most < 2**32 else [])]
        assert [value for value in (0, most, most + 1, *marks) if plausible({name: value})] == [0, most], name
    assert plausible({"unheard_of": 0, "recovery_action": 100}) == {}


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_reasons_that_the_gpu_cannot_tell_are_absent() -> None:
    """Only supported reasons are shown, and none where the driver says nothing."""
    now = GpuReading(0, reasons=0x44, supported_reasons=0x4C)
    assert active_reasons(now) == {"sw_power_cap": True, "hw_slowdown": False, "hw_thermal_slowdown": True}
    assert active_reasons(GpuReading(0, supported_reasons=0x4C)) == {}
    assert len(active_reasons(GpuReading(0, reasons=0))) == 9
    chosen = {"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"}
    for seconds, hidden in ((0.0, chosen), (1.0, {"gpu_idle"})):
        assert {name for name in REASONS.values() if not is_shown(name, seconds)} == hidden


def test_seconds_are_the_drivers_where_it_counts() -> None:
    """The driver's nanoseconds are taken as they are, others are summed from look to look."""
    seconds = ReasonSeconds()
    now = GpuReading(
        0, reasons=0x8 | 0x40, supported_reasons=0x48, reason_nanoseconds={"hw_thermal_slowdown": 2_500_000_000}
    )
    assert seconds.add(now, 0.0) == {"hw_thermal_slowdown": 2.5, "hw_slowdown": 0.0}
    assert seconds.add(now, 10.0) == {"hw_thermal_slowdown": 2.5, "hw_slowdown": 10.0}
    assert seconds.add(msgspec.structs.replace(now, reasons=0), 10.0)["hw_slowdown"] == 10.0


def test_the_source_of_seconds_never_changes() -> None:
    """A reason that was summed at first stays so, and one that the driver counts is absent when it fails to."""
    seconds = ReasonSeconds()
    silent = GpuReading(0, reasons=0x40, supported_reasons=0x40)
    counting = msgspec.structs.replace(silent, reason_nanoseconds={"hw_thermal_slowdown": 10**15})
    seconds.add(silent, 0.0)
    assert seconds.add(counting, 10.0) == {"hw_thermal_slowdown": 10.0}
    other = ReasonSeconds()
    other.add(counting, 0.0)
    assert other.add(silent, 10.0) == {}


def test_a_long_gap_is_not_counted() -> None:
    """Nobody knows what held between looks that are far apart."""
    seconds = ReasonSeconds()
    now = GpuReading(0, reasons=0x8, supported_reasons=0x8)
    assert seconds.add(now, MAX_ELAPSED_SECONDS) == {"hw_slowdown": MAX_ELAPSED_SECONDS}
    assert seconds.add(now, MAX_ELAPSED_SECONDS + 1) == {"hw_slowdown": MAX_ELAPSED_SECONDS}


# -- windows -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=100))
def test_window_is_the_last_looks(flags: list[bool]) -> None:
    """The ratio is that of flagged looks among the last 30, and more than 15 are too many."""
    windows: Windows[str] = Windows()
    for flag in flags:
        windows.add("key", flag)
    flagged = sum(flags[-LOOKS:])
    assert windows.ratio("key") == (flagged / 30 if flags else None)
    assert well(windows.levels()) == ({"key": flagged <= 15} if flags else {})


# -- the fabric --------------------------------------------------------------------------------------------------------

WELL = 0x51AA  # No fault, every field known
DOMAIN = "0a0b0c0d-0000-4000-8000-000000000001"


def test_fabric_mask() -> None:
    """Each pair of bits is a fault of a GPU in a domain, unless it recovers; without a domain its links decide."""
    masks = {
        0x3: (False, False),  # degraded bandwidth
        0xC: (True, True),  # a route recovers
        0x30: (False, False),  # unhealthy route
        0xC0: (True, True),  # an access timeout recovers
        0x300: (False, True),  # incorrect configuration
        0x3000: (False, True),  # no partition
        0xC000: (False, True),  # manager disconnected
        0: (True, True),
    }
    for mask, healthy in masks.items():
        assert tuple(is_fabric_healthy(Fabric(3, 0, 0, cluster, WELL ^ mask)) for cluster in (DOMAIN, "")) == healthy
    for health in (None, 0, WELL):
        found = [
            is_fabric_healthy(Fabric(state, status, 0, DOMAIN, health)) for state, status in ((3, 0), (2, 0), (3, 9))
        ]
        assert found == [True, False, False]


def test_imex_is_wanted_in_a_domain_alone() -> None:
    """Recovery of the IMEX domain is no action for a node outside a domain; any other action is one for all."""
    for action, cluster, healthy in (
        (5, "", True),
        (5, DOMAIN, False),
        (5, None, True),
        (4, "", False),
        (6, "", False),
        (7, None, False),
        (0, "", True),
    ):
        joined = None if cluster is None else Fabric(3, 0, 0, cluster)
        found = judge.levels(GpuReading(0, values={"recovery_action": action}, fabric=joined))
        assert (found["gpu_recovery_action"] is CheckState.OK) == healthy


# -- health ------------------------------------------------------------------------------------------------------------


def test_levels() -> None:
    """What the driver calls wrong is a level; of what it does not tell nothing is said."""
    cases: list[Any] = [
        ({}, {}),
        ({"ecc_uncorrected_volatile": 0}, {"gpu_ecc_uncorrectable": True}),
        ({"ecc_uncorrected_volatile": 1, "ecc_corrected_volatile": 9}, {"gpu_ecc_uncorrectable": False}),
        ({"ecc_uncorrected_aggregate": 7}, {}),
        (
            {"row_remap_failed": 1, "row_remap_pending": 0},
            {"gpu_row_remap_failed": False, "gpu_row_remap_pending": True},
        ),
        ({"page_retirement_pending": 1, "row_remap_pending": 0}, {"gpu_row_remap_pending": False}),
        ({"recovery_action": 0}, {"gpu_recovery_action": True}),
        ({"recovery_action": 42}, {"gpu_recovery_action": False}),
    ]
    for values, levels in cases:
        assert well(judge.levels(reading(**values))) == levels


def test_votes() -> None:
    """A reading that may pass is a vote; the slower link of an idle GPU is none."""
    cases: list[Any] = [
        ({}, {}),
        ({"temperature_celsius": 84}, {"gpu_hot": False}),
        ({"temperature_celsius": 85}, {"gpu_hot": True}),
        ({"pcie_width": 8, "pcie_max_width": 16}, {"pcie_degraded": True}),
        ({"pcie_width": 16, "pcie_max_width": 16}, {}),
        ({"pcie_generation": 1, "pcie_max_generation": 5, "gpu_utilization_percent": 9}, {}),
        ({"pcie_generation": 4, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": True}),
        ({"pcie_generation": 5, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": False}),
    ]
    for values, votes in cases:
        assert judge.votes(reading(**values), None, 0.0, HOT) == votes


def test_only_the_hardware_slowing_down_counts() -> None:
    """A power cap is normal, the hardware's own slowdown is not."""
    cases: list[Any] = [(0, False), (0x4 | 0x20, False), (0x8, True), (0x40, True), (0x80, True)]
    for bits, slow in cases:
        assert judge.votes(GpuReading(0, reasons=bits), None, 0.0, HOT) == {"gpu_slowdown": slow}


def test_replays_per_minute() -> None:
    """More than 50 replays a minute are too many; a counter that fell is a new one."""
    cases: list[Any] = [(8, False), (9, True), (-5, False)]
    for replays, bad in cases:
        now, before = reading(pcie_replays=100 + replays), reading(pcie_replays=100)
        assert judge.votes(now, before, 10.0, HOT) == {"pcie_errors": bad}
        assert judge.votes(now, before, 0.0, HOT) == judge.votes(now, None, 10.0, HOT) == {}


def test_a_reset_shows() -> None:
    """Counters that start again, or a pending reset that is done, show a reset; missing readings do not."""
    cases: list[Any] = [
        ({}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 5}, {}, False),
        ({"energy_millijoules": 5}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 6}, {"energy_millijoules": 5}, True),
        ({"ecc_uncorrected_volatile": 1}, {"ecc_uncorrected_volatile": 0}, True),
        ({"recovery_action": 1}, {"recovery_action": 0}, True),
        ({"recovery_action": 0}, {"recovery_action": 1}, False),
        ({"recovery_action": 1}, {"recovery_action": 2}, False),
        ({"recovery_action": 1}, {}, False),
    ]
    for before, now, reset in cases:
        assert judge.was_reset(reading(**now), before) == reset


# -- links -------------------------------------------------------------------------------------------------------------


def link(up: bool | None = True, number: int = 0, **errors: int) -> Link:
    """A link with these errors."""
    return Link(number, up, errors)


def test_errors_of_all_links_never_fall() -> None:
    """A link that counts anew, or does not answer for a look, adds what is new to the errors of all, and no more."""
    nvlinks = NvLinks()
    looks: list[dict[str, int]] = [{"crc": 5}, {}, {"crc": 6}, {"crc": 2, "replay": 1}]
    seen = [nvlinks.look([link(number=0, **errors), link(number=1, crc=100)]).errors for errors in looks]
    nvlinks.forget_errors()
    assert seen == [{"crc": 105}, {"crc": 105}, {"crc": 106}, {"crc": 108, "replay": 1}]
    assert nvlinks.look([link(crc=0)]).errors == {"crc": 108, "replay": 1}


def test_flagged_links() -> None:
    """A counter that rises flags the look; 15 of 30 are allowed, 16 fail the check, a steady or fallen one is none."""
    nvlinks = NvLinks()
    for count in range(FLAGGED_LOOKS + 1):
        view = nvlinks.look([link(replay=5, recovery=count), link(number=1, replay=5)])
    assert view.flagged == {0: 0.5, 1: 0.0}
    assert well(nvlinks.checks(view)) == {"nvlink_down": True, "nvlink_errors": True}
    view = nvlinks.look([link(recovery=99), link(number=1, replay=0, crc=7)])
    assert (view.flagged[1], well(nvlinks.checks(view))) == (0.0, {"nvlink_down": True, "nvlink_errors": False})
    nvlinks.forget_errors()
    view = nvlinks.look([link(recovery=0)])
    assert (view.flagged, well(nvlinks.checks(view))) == ({}, {"nvlink_down": True})


def test_absurd_link_errors_are_dropped() -> None:
    """Unknown kinds and impossible counts are not counted."""
    assert NvLinks().look([link(replay=2**62 + 1, crc=2**62, other=1, recovery=-1)]).errors == {"crc": 2**62}
