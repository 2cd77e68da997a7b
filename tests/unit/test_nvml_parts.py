"""NVML, the pure parts: what is believed of numbers, clocks, windows, fabric masks, links and health."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from lent import well

from agent.sdk.hardware import CheckState
from exporters.nvml import judge
from exporters.nvml.clocks import MAX_ELAPSED_SECONDS, ReasonSeconds, active
from exporters.nvml.fields import FIELDS, plausible
from exporters.nvml.nvlinks import fabric
from exporters.nvml.nvlinks.state import NvLinks
from exporters.nvml.reading import Fabric, GpuReading, Link
from exporters.nvml.windows import FLAGGED_LOOKS, LOOKS, Windows

NOT_AVAILABLE = (2**32 - 1, 2**64 - 1, -1)
"""What NVML says in the place of a number that it does not have."""
HOT = 85.0


def reading(**values: int) -> GpuReading:
    """A GPU that says this."""
    return GpuReading(0, "GPU-a", values=values)


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_not_available_is_not_believed(name: str) -> None:
    """The driver's marks for a missing number are dropped, for small fields and for large ones."""
    wide = {"energy_millijoules", "memory", "ecc", "nvlink"} & {name.partition("_")[0], name}
    marks = NOT_AVAILABLE[1:] if wide else NOT_AVAILABLE
    assert [value for value in marks if plausible({name: value})] == []
    assert plausible({name: 0}) == {name: 0}


@pytest.mark.parametrize(
    ("name", "raw", "shown"),
    [
        ("gpu_utilization_percent", 97, 0.97),
        ("power_milliwatts", 612_345, 612.345),
        ("sm_clock_megahertz", 1_830, 1.83e9),
        ("energy_millijoules", 1_500, 1.5),
        ("nvlink_receive_kibibytes", 3, 3072.0),
        ("pcie_transmit_kilobytes_per_second", 5, 5000.0),
    ],
)
def test_base_units(name: str, raw: int, shown: float) -> None:
    """Numbers are shown in base units."""
    assert FIELDS[name].in_base_units(raw) == shown


def test_most_of_a_field_is_believed_and_no_more() -> None:
    """The bound itself is believed, one more is not."""
    for name, field in FIELDS.items():
        assert plausible({name: field.most, "recovery_action": 0}) == {name: field.most, "recovery_action": 0}
        assert plausible({name: field.most + 1}) == {}
    assert plausible({"recovery_action": judge.RECOVERY_NONE}) != {}
    assert plausible({"recovery_action": 100}) == {}


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_reasons_that_the_gpu_cannot_tell_are_absent() -> None:
    """Only supported reasons are shown, and none where the driver says nothing."""
    now = GpuReading(0, reasons=0x44, supported_reasons=0x4C)
    assert active(now) == {"sw_power_cap": True, "hw_slowdown": False, "hw_thermal_slowdown": True}
    assert active(GpuReading(0, supported_reasons=0x4C)) == {}
    assert len(active(GpuReading(0, reasons=0))) == 9


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
    assert windows.is_well("key") == (flagged <= 15)


# -- the fabric --------------------------------------------------------------------------------------------------------

WELL = 0x51AA
"""Nothing wrong, everything told."""
DOMAIN = "0a0b0c0d-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("mask", "issue", "well"),
    [
        (WELL ^ 0x3, "degraded_bandwidth", False),
        (WELL ^ 0xC, "route_recovery", True),
        (WELL ^ 0x30, "route_unhealthy", False),
        (WELL ^ 0xC0, "access_timeout_recovery", True),
        (WELL ^ 0x300, "incorrect_configuration", False),
        (WELL ^ 0x3000, "no_partition", False),
        (WELL ^ 0xC000, "manager_disconnected", False),
    ],
)
def test_fabric_mask(mask: int, issue: str, well: bool) -> None:
    """Each pair of bits is one issue; what recovers by itself is shown, and is no fault."""
    found = fabric.issues(Fabric(3, 0, 0, DOMAIN, mask))
    assert len(found) == 7
    assert [name for name, bad in found.items() if bad] == [issue]
    assert fabric.is_well(Fabric(3, 0, 0, DOMAIN, mask)) == well


@pytest.mark.parametrize(
    ("mask", "well"),
    [(WELL ^ 0x3, False), (WELL ^ 0x30, False), (WELL ^ 0x300, True), (WELL ^ 0x3000, True), (WELL ^ 0xC000, True)],
)
def test_a_gpu_of_no_domain_needs_no_place_in_one(mask: int, well: bool) -> None:
    """Without a domain's UUID only what is wrong with the links and routes of the node is a fault."""
    assert fabric.is_well(Fabric(3, 0, 0, "", mask)) == well


@pytest.mark.parametrize(
    ("action", "cluster", "well"),
    [
        (5, "", True),
        (5, DOMAIN, False),
        (5, None, True),
        (4, "", False),
        (6, "", False),
        (7, None, False),
        (0, "", True),
    ],
)
def test_imex_is_wanted_in_a_domain_alone(action: int, cluster: str | None, well: bool) -> None:
    """That the IMEX domain be recovered is no wish to a node that is in none; any other action is one to all."""
    joined = None if cluster is None else Fabric(3, 0, 0, cluster)
    found = judge.levels(GpuReading(0, values={"recovery_action": action}, fabric=joined))
    assert (found["gpu_recovery_action"] is CheckState.OK) == well


def test_fabric_without_a_mask() -> None:
    """An older driver tells state and status alone; what a mask does not tell is absent."""
    assert fabric.issues(Fabric(3, 0, 0, "")) == fabric.issues(Fabric(3, 0, 0, "", 0)) == {}
    assert fabric.is_well(Fabric(3, 0, 0, "", WELL))
    assert not fabric.is_well(Fabric(2, 0, 0, "", WELL))
    assert not fabric.is_well(Fabric(3, 999, 0, "", WELL))


# -- health ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "levels"),
    [
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
    ],
)
def test_levels(values: dict[str, int], levels: dict[str, bool]) -> None:
    """What the driver calls wrong is a level; of what it does not tell nothing is said."""
    assert well(judge.levels(reading(**values))) == levels


@pytest.mark.parametrize(
    ("values", "votes"),
    [
        ({}, {}),
        ({"temperature_celsius": 84}, {"gpu_hot": False}),
        ({"temperature_celsius": 85}, {"gpu_hot": True}),
        ({"pcie_width": 8, "pcie_max_width": 16}, {"pcie_degraded": True}),
        ({"pcie_width": 16, "pcie_max_width": 16}, {}),
        ({"pcie_generation": 1, "pcie_max_generation": 5, "gpu_utilization_percent": 9}, {}),
        ({"pcie_generation": 4, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": True}),
        ({"pcie_generation": 5, "pcie_max_generation": 5, "gpu_utilization_percent": 10}, {"pcie_degraded": False}),
    ],
)
def test_votes(values: dict[str, int], votes: dict[str, bool]) -> None:
    """What may pass is voted on; an idle GPU's slower link is nothing."""
    assert judge.votes(reading(**values), None, 0.0, HOT) == votes


@pytest.mark.parametrize(("bits", "slow"), [(0, False), (0x4 | 0x20, False), (0x8, True), (0x40, True), (0x80, True)])
def test_only_the_hardware_slowing_down_counts(bits: int, slow: bool) -> None:
    """A power cap is normal, the hardware's own slowdown is not."""
    assert judge.votes(GpuReading(0, reasons=bits), None, 0.0, HOT) == {"gpu_slowdown": slow}


@pytest.mark.parametrize(("replays", "bad"), [(8, False), (9, True), (-5, False)])
def test_replays_per_minute(replays: int, bad: bool) -> None:
    """More than 50 replays a minute are too many; a counter that fell is a new one."""
    now, before = reading(pcie_replays=100 + replays), reading(pcie_replays=100)
    assert judge.votes(now, before, 10.0, HOT) == {"pcie_errors": bad}
    assert judge.votes(now, before, 0.0, HOT) == judge.votes(now, None, 10.0, HOT) == {}


@pytest.mark.parametrize(
    ("before", "now", "reset"),
    [
        ({}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 5}, {}, False),
        ({"energy_millijoules": 5}, {"energy_millijoules": 5}, False),
        ({"energy_millijoules": 6}, {"energy_millijoules": 5}, True),
        ({"ecc_uncorrected_volatile": 1}, {"ecc_uncorrected_volatile": 0}, True),
        ({"recovery_action": 1}, {"recovery_action": 0}, True),
        ({"recovery_action": 0}, {"recovery_action": 1}, False),
        ({"recovery_action": 1}, {"recovery_action": 2}, False),
        ({"recovery_action": 1}, {}, False),
    ],
)
def test_a_reset_shows(before: dict[str, int], now: dict[str, int], reset: bool) -> None:
    """Counters that begin again, or a granted wish for a reset, are a reset; silence is none."""
    assert judge.was_reset(reading(**now), before) == reset


# -- links -------------------------------------------------------------------------------------------------------------


def links(**kwargs: Any) -> list[Link]:
    """Link 0 with these errors, link 1 that is never up."""
    return [Link(0, kwargs.pop("up", True), kwargs), Link(1, up=False, errors={})]


def test_a_link_that_was_never_up_is_no_fault() -> None:
    """It has no state and no say, until it is up for the first time."""
    nvlinks = NvLinks()
    shown = nvlinks.look(links())
    assert [link.up for link in shown] == [True, None]
    assert well(nvlinks.checks(shown)) == {"nvlink_down": True}
    shown = nvlinks.look(links(up=False))
    assert [link.up for link in shown] == [False, None]
    assert well(nvlinks.checks(shown)) == {"nvlink_down": False}
    assert well(nvlinks.checks(nvlinks.look(links()))) == {"nvlink_down": True}


def test_links_expected_from_before() -> None:
    """A link that was up before the agent restarted is down, not absent."""
    nvlinks = NvLinks([1])
    assert [link.up for link in nvlinks.look(links())] == [True, False]


def test_a_link_whose_state_is_not_told_says_nothing() -> None:
    """Nothing is known of it for that look: neither up nor down."""
    nvlinks = NvLinks([0])
    shown = nvlinks.look([Link(0, None)])
    assert (shown[0].up, nvlinks.checks(shown)) == (None, {})


def test_errors_of_all_links_never_fall() -> None:
    """Links that count anew, or that do not tell for a look, add what is new to the errors of all, and no more."""
    nvlinks = NvLinks()
    looks = [{"crc": 5}, {}, {"crc": 6}, {"crc": 2, "replay": 1}]
    seen = []
    for errors in looks:
        nvlinks.look([Link(0, up=True, errors=errors), Link(1, up=True, errors={"crc": 100})])
        seen.append(dict(nvlinks.errors))
    nvlinks.forget_errors()
    nvlinks.look([Link(0, up=True, errors={"crc": 0})])
    assert seen == [{"crc": 105}, {"crc": 105}, {"crc": 106}, {"crc": 108, "replay": 1}]
    assert nvlinks.errors == {"crc": 108, "replay": 1}


def test_flagged_links() -> None:
    """Any counter that rises flags the look; 15 of 30 are allowed, 16 are too many; a steady counter is well."""
    nvlinks = NvLinks()
    for count in range(FLAGGED_LOOKS + 1):
        shown = nvlinks.look(
            [Link(0, up=True, errors={"replay": 5, "recovery": count}), Link(1, up=True, errors={"replay": 5})]
        )
    assert [link.flagged_ratio for link in shown] == [0.5, 0.0]
    assert well(nvlinks.checks(shown)) == {"nvlink_down": True, "nvlink_errors": True}
    shown = nvlinks.look([Link(0, up=True, errors={"recovery": 99}), Link(1, up=True, errors={"replay": 5})])
    assert well(nvlinks.checks(shown)) == {"nvlink_down": True, "nvlink_errors": False}
    nvlinks.forget_errors()
    shown = nvlinks.look([Link(0, up=True, errors={"recovery": 0})])
    assert (shown[0].flagged_ratio, well(nvlinks.checks(shown))) == (None, {"nvlink_down": True})


def test_a_counter_that_fell_or_appeared_flags_nothing() -> None:
    """Only a rise is an error."""
    nvlinks = NvLinks()
    for errors in ({"replay": 9}, {"replay": 0}, {"replay": 0, "crc": 7}):
        shown = nvlinks.look([Link(0, up=True, errors=errors)])
    assert shown[0].flagged_ratio == 0.0


def test_absurd_link_errors_are_dropped() -> None:
    """Kinds that nobody knows and counts that cannot be are not shown."""
    (shown,) = NvLinks().look(
        [Link(0, up=True, errors={"replay": 2**62 + 1, "crc": 2**62, "other": 1, "recovery": -1})]
    )
    assert shown.errors == {"crc": 2**62}
